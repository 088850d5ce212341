"""Two transcripts of one dialogue, field by field, and the differences that have been judged and accepted.

`accepted.toml` lists them: where (dialogue, step, path; `*` stands for anything), what each side says where that
matters, and the reason. Everything that is not listed is a failure, and so is what is listed and no longer shows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from conformance.differential.normal_form import differing
from conformance.differential.talk import Step

ACCEPTED_FILE: Final = Path(__file__).with_name("accepted.toml")
SHOWN_MAX: Final = 120


class Difference(msgspec.Struct, frozen=True):
    dialogue: str
    step: str
    request: str
    version: int
    path: str
    kafka: str
    penstock: str

    @property
    def sentence(self) -> str:
        return (
            f"{self.dialogue}: {self.step} ({self.request} v{self.version}): {self.path}: "
            f"Kafka says {self.kafka}, Penstock {self.penstock}"
        )


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Where it stands on the page.
    section: str
    dialogue: str
    path: str
    reason: str
    step: str = "*"
    kafka: str = "*"
    penstock: str = "*"

    def covers(self, difference: Difference) -> bool:
        return (
            matches(self.dialogue, difference.dialogue)
            and matches(self.step, difference.step)
            and matches(self.path, difference.path)
            and matches(self.kafka, difference.kafka)
            and matches(self.penstock, difference.penstock)
        )


def matches(pattern: str, text: str) -> bool:
    return _compiled(pattern).fullmatch(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """`*` is anything, `|` parts alternatives; all else is meant as it stands: names here have dots and brackets."""
    alternatives = (".*".join(re.escape(part) for part in each.split("*")) for each in pattern.split("|"))
    return re.compile("|".join(f"(?:{each})" for each in alternatives), re.DOTALL)


def load_accepted() -> list[Accepted]:
    with ACCEPTED_FILE.open("rb") as file:
        return msgspec.convert(tomllib.load(file).get("accepted", []), list[Accepted])


def compare(dialogue: str, kafka: Iterable[Step], penstock: Iterable[Step]) -> Iterator[Difference]:
    """The script is the same, so the steps are; one that asked differently after a different answer is told so."""
    for one, other in zip(kafka, penstock, strict=False):
        if (one.name, one.version) != (other.name, other.version):
            yield Difference(dialogue, one.name, one.request, one.version, "step", one.name, other.name)
            return
        yield from _compare_step(dialogue, one, other)


def _compare_step(dialogue: str, kafka: Step, penstock: Step) -> Iterator[Difference]:
    for path, one, other in differing(kafka.answer, penstock.answer):
        yield Difference(dialogue, kafka.name, kafka.request, kafka.version, path, shown(one), shown(other))


def shown(value: Any) -> str:
    """A part that only one side has is shown as a whole."""
    if isinstance(value, str):
        return value[:SHOWN_MAX]
    return "null" if value is None else str(value)[:SHOWN_MAX]
