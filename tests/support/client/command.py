"""`penstock …` as a function of the test: its words in, exit code, output and errors out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from penstock.cli.app import app, run

Penstock = Callable[..., tuple[int, str, str]]


def command(capsys: pytest.CaptureFixture[str], *, first: Sequence[str] = (), last: Sequence[str]) -> Penstock:
    """`first` and `last` stand around the words of every call: which node is meant, who asks."""

    def call(*words: str) -> tuple[int, str, str]:
        code = run(app, [*first, *words, *last])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
