"""Spark's errors as one sentence: without the class, the state, the plan and the stack that it puts around it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.pipeline.declared.problems import suggestion

# How the sentence of a bad row begins that ends its query, so that it is known here.
BAD_ROW: Final = "bad row: "
# How much of a bad value is told.
SHOWN_CHARACTERS: Final = 200

_CLASS: Final = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]\s+")
_LINE: Final = re.compile(r"(?:; |\()line (\d+),? pos (\d+)")
# The last line of a Python traceback; ours and Python's own errors end so.
_PYTHON: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)
_MISSING_VIEW: Final = re.compile(r"The table or view `([^`]+)` cannot be found")
_SENTENCE_CHARACTERS_MAX: Final = 400
# What surrounds the reason and says nothing of it.
_WRAPPERS: Final = frozenset({"STREAM_FAILED", "FAILED_EXECUTE_UDF", "TASK_WRITE_FAILED", "WRITING_JOB_ABORTED"})


# What Spark says of a checkpoint that another query wrote.
_OTHER_QUERY: Final = re.compile(
    r"sources in the checkpoint offsets|STATE_STORE_\w*(?:SCHEMA|FORMAT)|STREAM_CHECKPOINT_\w*MISMATCH|"
    r"stateful operators.{0,40}checkpoint|Provided schema doesn't match"
)
_BEGIN_ANEW: Final = (
    "the pipeline was changed so that its checkpoint no longer fits; give it another name, or begin anew with "
    "`penstock pipeline reset`"
)


class SqlComplaint(msgspec.Struct, frozen=True):
    text: str
    # Of the SQL, from 1.
    line: int | None = None


def read_complaint(error: BaseException, views: tuple[str, ...] = ()) -> SqlComplaint:
    """What Spark has against a statement; `views` are those that there are."""
    full = str(error).strip()
    place = _LINE.search(full)
    line = None if place is None else int(place[1])
    missing = _MISSING_VIEW.search(full)
    if missing is not None:
        known = f"; there are {', '.join(views)}" if views else ""
        told = suggestion(missing[1], views) or known
        return SqlComplaint(f"there is no source or step {missing[1]!r}{told}", line)
    return SqlComplaint(_cleaned(full), line)


def is_transient(text: str) -> bool:
    """A machine with too much to do, not a pipeline with a mistake: it is started again whatever it declares."""
    return "Python worker failed to connect back" in text or "waiting for the Python worker to connect back" in text


def read_failure(text: str, explain: Callable[[dict[str, Any]], str] | None = None) -> str:
    """Why a query ended, in one sentence. `explain` knows more of a bad row than Spark does."""
    bad_row = _bad_row(text, explain)
    if bad_row is not None:
        return bad_row
    # Innermost last: the end of the last traceback is what happened, everything before is how it was told.
    head = text.partition("\n=== Streaming Query ===")[0]
    if _OTHER_QUERY.search(head):
        return f"{_BEGIN_ANEW} ({_cleaned(head)})"
    found = _PYTHON.findall(head)
    if found:
        kind, told = found[-1]
        return _shortened(told if kind.startswith("penstock.") else f"{kind}: {told}")
    return _cleaned(head)


def _bad_row(text: str, explain: Callable[[dict[str, Any]], str] | None) -> str | None:
    start = text.find(BAD_ROW)
    if start < 0:
        return None
    try:
        row, _ = json.JSONDecoder().raw_decode(text[start + len(BAD_ROW) :])
    except ValueError:
        return None
    value = str(row.get("value"))
    why = row.get("error") or row["stage"]
    # Only a beginning comes here: what is wrong with a long value may be behind it.
    if explain is not None and len(value) < SHOWN_CHARACTERS:
        why = explain(row)
    return (
        f"bad row in source {row['source']!r}, at offset {row['offset']} of partition {row['partition']} of topic "
        f"{row['topic']!r}: {why}: {_shortened(value, 120)}"
    )


def _cleaned(text: str) -> str:
    """The innermost error class that says something, up to its SQL state."""
    starts = [match for match in _CLASS.finditer(text) if match[1].partition(".")[0] not in _WRAPPERS]
    if starts:
        text = text[starts[-1].end() :]
    text = text.partition(" SQLSTATE:")[0].partition("\n\n")[0].partition("\tat ")[0]
    text = re.sub(r"\b(?:org|java|scala)\.[\w.$]+(?:Exception|Error): ", "", text)
    # One line: what follows the first is advice on other products' catalogs.
    return _shortened(text.strip().splitlines()[0] if text.strip() else "no reason was told")


def _shortened(text: str, characters_max: int = _SENTENCE_CHARACTERS_MAX) -> str:
    text = " ".join(text.split()).rstrip(".;")
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."
