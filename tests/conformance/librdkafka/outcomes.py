"""What a start of the suite's program said, and how that stands to what we expect.

    the program's report ──parse_report──> Outcome per test ──judge──> Verdict

A test that passes though it is listed fails the run as one that fails unlisted does: a list that nobody prunes soon
says nothing.
"""

from __future__ import annotations

import enum
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

_COLOUR = re.compile(r"\x1b(?:\[[0-9;]*m|\(B)")
_FAILURE = re.compile(r"### Test \"(?P<name>[^\"]*)\" failed at (?P<place>[^:\s]+:\d+)")
_SKIPPED = re.compile(r"\[(?P<name>\w+)[^\]]*\].*?SKIPPING TEST: (?P<why>.*)")
SAID_CHARACTERS_MAX: Final = 300


class State(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(msgspec.Struct, frozen=True):
    name: str
    state: State
    seconds: float = 0.0
    said: str = ""
    attempts: int = 1


# RUNNING: the program gave up while the test was at work.
_STATES: Final = {"PASSED": State.PASSED, "SKIPPED": State.SKIPPED, "FAILED": State.FAILED, "RUNNING": State.FAILED}


def parse_report(report: str, output: str, names: Iterable[str]) -> list[Outcome]:
    """An outcome for each of `names`: from the program's JSON report, with its words from what it printed.

    The report alone is trusted: the printed summary stays in a buffer when the program ends itself by abort(), as it
    does after each failure. Where there is no report the program died early, and so did every test.
    """
    told = _read_states(report)
    found: list[Outcome] = []
    for name in names:
        state, seconds = told.get(name, (State.FAILED, 0.0))
        said = "" if state is State.PASSED else last_words(output, name)
        found.append(Outcome(name, state, seconds, said))
    return found


def _read_states(report: str) -> dict[str, tuple[State, float]]:
    try:
        tests = json.loads(report)["tests"]
    except (json.JSONDecodeError, KeyError):
        return {}
    return {
        name: (_STATES[test["state"]], float(test["duration"]))
        for name, test in tests.items()
        if test["state"] in _STATES
    }


def merge(runs: Sequence[Sequence[Outcome]]) -> list[Outcome]:
    """Of several runs of the same tests: a test has passed if it has in all of them, else the first that has not."""
    merged = []
    for outcomes in zip(*runs, strict=True):
        worst = next((each for each in outcomes if each.state is not State.PASSED), outcomes[0])
        merged.append(msgspec.structs.replace(worst, seconds=sum(each.seconds for each in outcomes)))
    return merged


def last_words(output: str, name: str, *, lines_max: int = 2) -> str:
    """The test's failure as the program tells it, or its reason for skipping, or else the end of what was said."""
    lines = [line.strip() for line in _COLOUR.sub("", output).splitlines() if line.strip()]
    for number, line in enumerate(lines):
        failure = _FAILURE.search(line)
        # Behind the name stands the part of the test that was at work.
        if failure is not None and failure["name"].partition(" ")[0] == name:
            return f"{failure['place']}: {' / '.join(lines[number + 1 : number + lines_max])}"[:SAID_CHARACTERS_MAX]
        skipped = _SKIPPED.search(line)
        if skipped is not None and skipped["name"] == name:
            return skipped["why"][:SAID_CHARACTERS_MAX]
    return " / ".join(lines[-lines_max:])[:SAID_CHARACTERS_MAX]


# What we expect


class Need(enum.StrEnum):
    """Why a test may fail. NOT_BUILT_YET is work that is still to be done."""

    KAFKA_INSTALLATION = "kafka-installation"
    SEVERAL_NODES = "several-nodes"
    NOT_BUILT_YET = "not-built-yet"
    SUITE = "suite"


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    need: Need
    reason: str
    # "classic" or "consumer": it fails where the tests' consumers speak that; empty: always.
    group_protocol: str = ""


def load_expected(path: Path) -> dict[str, Expected]:
    listed = msgspec.convert(tomllib.loads(path.read_text()), dict[str, Expected])
    silent = [name for name, expected in listed.items() if not expected.reason.strip()]
    if silent:
        raise ValueError(f"{path.name}: no reason is given for {', '.join(silent)}")
    return listed


def for_protocol(expected: dict[str, Expected], group_protocol: str) -> dict[str, Expected]:
    return {name: listed for name, listed in expected.items() if listed.group_protocol in ("", group_protocol)}


class Verdict(enum.StrEnum):
    PASSES = "passes"
    LISTED = "listed"
    BROKEN = "fails and is not listed"
    MENDED = "passes and is still listed"


def judge(outcome: Outcome, expected: dict[str, Expected]) -> Verdict:
    is_listed = outcome.name in expected
    if outcome.state is State.PASSED:
        return Verdict.MENDED if is_listed else Verdict.PASSES
    return Verdict.LISTED if is_listed else Verdict.BROKEN


def is_good(verdict: Verdict) -> bool:
    return verdict in {Verdict.PASSES, Verdict.LISTED}
