"""Which tests the suite has: read from the table in its own `test.c`, so that a newer suite brings its tests itself.

A number such as 0045 stands for several tests (0045_subscribe_update, 0045_subscribe_update_mock, …). The suite's
program chooses by number, we choose and judge by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_SCENARIO: Final = "default"
# Tests about logging in: they run once with each of these, against a node where one has to. 0135 is about users and
# passwords, 0142 has parts for those and parts for tokens.
MECHANISMS: Final = {
    "0135": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "0142": ("SCRAM-SHA-256", "OAUTHBEARER"),
}

_TABLE = re.compile(r"^struct test tests\[\] = \{(?P<body>.*?)^\s*\{NULL\}\};", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"_TEST\(")
_SCENARIO = re.compile(r"\.scenario\s*=\s*\"(?P<names>[^\"]*)\"")


class SuiteTest(msgspec.Struct, frozen=True):
    name: str
    flags: frozenset[str] = frozenset()
    scenarios: tuple[str, ...] = (DEFAULT_SCENARIO,)

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    @property
    def is_local(self) -> bool:
        """Needs no broker, or brings a mock of one: it proves nothing about ours."""
        return "TEST_F_LOCAL" in self.flags

    @property
    def is_manual(self) -> bool:
        """A tool to be started by hand, with no verdict."""
        return "TEST_F_MANUAL" in self.flags

    @property
    def is_known_issue(self) -> bool:
        """The suite's authors know it to fail against Kafka too."""
        return "TEST_F_KNOWN_ISSUE" in self.flags


class CatalogueError(Exception):
    """test.c does not look as we know it; the version of the suite is not one we can run."""


def read_catalogue(test_c: Path) -> list[SuiteTest]:
    return parse_catalogue(test_c.read_text(errors="replace"))


def parse_catalogue(text: str) -> list[SuiteTest]:
    table = _TABLE.search(text)
    if table is None:
        raise CatalogueError("test.c holds no table `struct test tests[]`")
    tests = [_parse_entry(entry) for entry in _entries(_COMMENT.sub("", table["body"]))]
    if not tests:
        raise CatalogueError("the table of test.c holds no test")
    return tests


def _entries(body: str) -> Iterator[str]:
    """What stands inside each `_TEST(…)`; parentheses nest: `_TEST(0012_x, 0, TEST_BRKVER(0, 9, 0, 0))`."""
    for found in _ENTRY.finditer(body):
        depth, end = 1, found.end()
        while depth:
            if end >= len(body):
                raise CatalogueError(f"the entry at {body[found.start() : found.start() + 40]!r} has no end")
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        yield body[found.end() : end - 1]


def _parse_entry(entry: str) -> SuiteTest:
    name, flags, *_ = [part.strip() for part in entry.split(",")]
    scenario = _SCENARIO.search(entry)
    return SuiteTest(
        name=name,
        flags=frozenset(flag.strip() for flag in flags.split("|") if flag.strip() != "0"),
        scenarios=tuple(scenario["names"].split(",")) if scenario else (DEFAULT_SCENARIO,),
    )


class Errand(msgspec.Struct, frozen=True):
    """One start of the suite's program (one for each mechanism): a number, a scenario, the tests that it will run."""

    number: str
    scenario: str
    tests: tuple[SuiteTest, ...]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Empty: nobody has to log in."""
        return MECHANISMS.get(self.number, ())


def plan_errands(tests: Iterable[SuiteTest], *, only: Iterable[str] = (), with_local: bool = False) -> list[Errand]:
    """What to start, in the order of the catalogue.

    Manual tests are never started, known issues neither: they fail against Kafka as well. `only` holds beginnings of
    names; a local test that is named there runs without `with_local`.
    """
    chosen: dict[tuple[str, str], list[SuiteTest]] = {}
    beginnings = tuple(only)
    for test in tests:
        if test.is_manual or test.is_known_issue:
            continue
        if beginnings and not test.name.startswith(beginnings):
            continue
        if test.is_local and not (with_local or beginnings):
            continue
        chosen.setdefault((test.number, test.scenarios[0]), []).append(test)
    return [Errand(number, scenario, tuple(members)) for (number, scenario), members in chosen.items()]
