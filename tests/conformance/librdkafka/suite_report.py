"""The run as people and programs read it: a table, a JSON document, and the written list in docs/conformance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.librdkafka.outcomes import Expected, Need, Outcome, State, Verdict, is_good, judge
from conformance.librdkafka.suite_catalogue import SuiteTest
from conformance.librdkafka.suite_source import PACKAGE, VERSION

LIST: Final = Path(__file__).parents[3] / "docs" / "conformance" / "librdkafka.md"
# What a person writes stands above, what the runner writes below.
MARK: Final = "<!-- Below: written by `make conformance-list` from tests/conformance/librdkafka/expected.toml -->"

_STYLES: Final = {
    Verdict.PASSES: "green",
    Verdict.LISTED: "yellow",
    Verdict.BROKEN: "bold red",
    Verdict.MENDED: "bold magenta",
}
_NEEDS: Final = {
    Need.KAFKA_INSTALLATION: "Need a Kafka installation",
    Need.SEVERAL_NODES: "Need several nodes",
    Need.NOT_BUILT_YET: "Need what Penstock does not have yet",
    Need.SUITE: "Cannot pass against any broker of today",
}


def print_outcomes(outcomes: Sequence[Outcome], expected: dict[str, Expected], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in ("test", "verdict", "seconds", "what it said"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for outcome in sorted(outcomes, key=lambda found: found.name):
        verdict = judge(outcome, expected)
        said = expected[outcome.name].reason if verdict is Verdict.LISTED else outcome.said
        if outcome.attempts > 1:
            said = f"(at attempt {outcome.attempts}) {said}"
        style = _STYLES[verdict]
        table.add_row(outcome.name, Text(verdict, style), f"{outcome.seconds:.1f}", Text(said))
    console.print(table)
    counts = Counter(judge(outcome, expected) for outcome in outcomes)
    parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    console.print(f"{PACKAGE} {VERSION}: {len(outcomes)} tests: {', '.join(parts)}", style="bold")


def as_document(outcomes: Sequence[Outcome], expected: dict[str, Expected]) -> dict[str, Any]:
    verdicts = {outcome.name: judge(outcome, expected) for outcome in outcomes}
    return {
        "package": f"{PACKAGE}@{VERSION}",
        "counts": dict(Counter(verdicts.values())),
        "is_good": all(map(is_good, verdicts.values())),
        "tests": [
            {
                "name": outcome.name,
                "state": outcome.state,
                "verdict": verdicts[outcome.name],
                "seconds": outcome.seconds,
                "attempts": outcome.attempts,
                "said": outcome.said,
            }
            for outcome in sorted(outcomes, key=lambda found: found.name)
        ],
    }


def attempts_needed(outcomes: Iterable[Outcome]) -> list[str]:
    return sorted(found.name for found in outcomes if found.attempts > 1 and found.state is State.PASSED)


# The written list


def write_list(catalogue: Sequence[SuiteTest], expected: dict[str, Expected], path: Path = LIST) -> None:
    """Keeps what stands above the mark."""
    above, mark, _ = path.read_text().partition(MARK)
    assert mark, f"{path.name} has lost its mark: {MARK}"
    path.write_text(f"{above}{MARK}\n\n{render_list(catalogue, expected)}")


def render_list(catalogue: Sequence[SuiteTest], expected: dict[str, Expected]) -> str:
    against_a_broker = [test for test in catalogue if not test.is_local and not test.is_manual]
    never_run = [test for test in against_a_broker if test.is_known_issue]
    local = {test.name for test in catalogue if test.is_local}
    always = {
        name: listed for name, listed in sorted(expected.items()) if not listed.group_protocol and name not in local
    }
    passing = len(against_a_broker) - len(never_run) - len(always)
    lines = [
        f"`{PACKAGE}` {VERSION} has {len(catalogue)} tests, {len(against_a_broker)} of them against a broker:",
        f"{passing} pass, {len(always)} are listed here"
        + (f", {len(never_run)} its authors know to fail against Kafka too and are not run" if never_run else "")
        + ".",
        "",
    ]
    for need, title in _NEEDS.items():
        lines += _section(title, {name: listed for name, listed in always.items() if listed.need is need})
    some = {name: listed for name, listed in sorted(expected.items()) if listed.group_protocol and name not in local}
    for protocol in sorted({listed.group_protocol for listed in some.values()}):
        members = {name: listed for name, listed in some.items() if listed.group_protocol == protocol}
        lines += _section(f"Only with `--group-protocol {protocol}`", members)
    without_broker = {name: listed for name, listed in sorted(expected.items()) if name in local}
    lines += _section("Of those that need no broker (`--local`)", without_broker)
    if never_run:
        lines += ["## Known to fail by its authors", "", ", ".join(test.name for test in never_run) + ".", ""]
    return "\n".join(lines)


def _section(title: str, members: dict[str, Expected]) -> list[str]:
    if not members:
        return []
    rows = [f"| {name} | {listed.reason} |" for name, listed in members.items()]
    return [f"## {title}", "", "| test | why |", "|---|---|", *rows, ""]
