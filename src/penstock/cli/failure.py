"""Errors as a user sees them: one sentence on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.base.printable import printable

JSON_OPTION: Final = "--json"

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

# For whoever debugs Penstock itself: shows where an unexpected error came from.
TRACEBACK_VARIABLE: Final = "PENSTOCK_TRACEBACK"


class CommandError(Exception):
    """The command cannot go on; the text is the sentence that the user reads."""

    def __init__(self, sentence: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def sentence_of(error: BaseException) -> str:
    """One line. Errors of ours say it themselves; for others the kind is told with the text."""
    text = " ".join(str(error).split())
    if isinstance(error, BaseExceptionGroup):
        return sentence_of(error.exceptions[0])
    if type(error).__module__.startswith("penstock."):
        return text or type(error).__name__
    if isinstance(error, OSError):
        reason = (error.strerror or text or type(error).__name__).lower()
        return f"{error.filename}: {reason}" if error.filename else reason
    kind = type(error).__name__
    return f"unexpected {kind}: {text} (set {TRACEBACK_VARIABLE}=1 to see where)" if text else f"unexpected {kind}"


def exit_code_of(error: BaseException) -> int:
    if isinstance(error, BaseExceptionGroup):
        return exit_code_of(error.exceptions[0])
    code = getattr(error, "exit_code", EXIT_FAILED)
    return code if isinstance(code, int) else EXIT_FAILED


def report(sentence: str, *, exit_code: int, as_json: bool) -> None:
    text = f"penstock: {sentence}"
    if as_json:
        text = msgspec.json.encode({"error": sentence, "exit_code": exit_code}).decode()
    # A broker's error may name what a stranger wrote.
    sys.stderr.write((printable(text) if sys.stderr.isatty() else text) + "\n")


def wants_json(arguments: Sequence[str]) -> bool:
    """Asked of the words themselves: a command line that cannot be understood is refused in JSON too."""
    words = list(arguments)
    return JSON_OPTION in (words[: words.index("--")] if "--" in words else words)


def silence_standard_output() -> None:
    """The reader of our output has gone: what is still buffered must not complain at the end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
