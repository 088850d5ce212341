"""`make conformance`: librdkafka's own C tests against a node of this tree.

    PYTHONPATH=tests python -m conformance.librdkafka                 everything against a broker
    … --only 0012 --only 0081_admin                                   some, by the beginning of their names
    … --group-protocol consumer --only 0113                           with KIP-848 consumers

Ends with 0 if every test that is not listed in expected.toml passed and every listed one did not, with 1 if not. Where
the suite cannot be had (no npm, no compiler, no registry) it says why and ends with 0: that is no fault of the node.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.differential.reference_broker import find_jars
from conformance.librdkafka import suite_report
from conformance.librdkafka.kafka_scripts import JAVA_TESTS
from conformance.librdkafka.outcomes import Expected, Need, Outcome, for_protocol, is_good, judge, load_expected
from conformance.librdkafka.suite_catalogue import Errand, plan_errands, read_catalogue
from conformance.librdkafka.suite_run import Settings, run_errands
from conformance.librdkafka.suite_source import CACHE, NoSuite, Suite, prepare_suite

EXPECTED: Final = Path(__file__).with_name("expected.toml")
LOGS: Final = CACHE / "last-run"
# Most tests wait more than they work.
JOBS: Final = 2

app = typer.Typer(add_completion=False)


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option(help="The beginning of a test's name; may be repeated.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Tests at the same time.")] = JOBS,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer messages, and many parts of tests left out.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Also the tests that need no broker.")] = False,
    group_protocol: Annotated[str, typer.Option(help="classic or consumer.")] = "classic",
    debug: Annotated[str, typer.Option(help="librdkafka's debug contexts, into the logs of the tests.")] = "",
    logs: Annotated[Path, typer.Option(help="Where logs and the node's data go; emptied first.")] = LOGS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
    write_list: Annotated[bool, typer.Option("--write-list", help="Write docs/conformance, run nothing.")] = False,
) -> None:
    console = Console(stderr=as_json)
    suite = prepare_suite(console.print, jobs=jobs)
    if isinstance(suite, NoSuite):
        console.print(f"skipped: {suite.reason}", style="yellow")
        return
    expected, catalogue = load_expected(EXPECTED), read_catalogue(suite.table)
    if write_list:
        suite_report.write_list(catalogue, expected)
        return
    expected = for_protocol(expected, group_protocol)
    errands = plan_errands(catalogue, only=only or (), with_local=local)
    if not errands:
        raise typer.BadParameter(f"no test begins with {', '.join(only or ())}")
    jars = _find_jars()
    if isinstance(jars, str):
        console.print(f"without a client in Java: {jars}", style="yellow")
        expected |= {name: Expected(Need.KAFKA_INSTALLATION, f"Java's client: {jars}") for name in JAVA_TESTS}
    settings = Settings(
        logs,
        is_quick=quick,
        jobs=jobs,
        group_protocol=group_protocol,
        debug=debug,
        jars=None if isinstance(jars, str) else jars,
        listed=frozenset(expected),
    )
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise typer.BadParameter(f"another run is at work in {logs}: wait for it, or name another --logs") from None
        outcomes = _run(suite, errands, settings, expected, console)
    if as_json:
        sys.stdout.write(json.dumps(suite_report.as_document(outcomes, expected), indent=2) + "\n")
    else:
        suite_report.print_outcomes(outcomes, expected, console)
        console.print(f"logs: {logs}")
    if not all(is_good(judge(outcome, expected)) for outcome in outcomes):
        raise typer.Exit(1)


def _find_jars() -> Path | str:
    """Kafka's jars, which the comparison with Kafka itself fetches; or the reason why there are none."""
    return "there is no Java compiler" if shutil.which("javac") is None else find_jars()


def _run(
    suite: Suite, errands: list[Errand], settings: Settings, expected: dict[str, Expected], console: Console
) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes: list[Outcome] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("librdkafka", total=sum(len(errand.tests) for errand in errands))
        for outcome in run_errands(suite, errands, settings):
            outcomes.append(outcome)
            progress.advance(task)
            verdict = judge(outcome, expected)
            if not is_good(verdict) or not console.is_terminal:
                progress.console.print(
                    f"{outcome.name}: {verdict} ({outcome.seconds:.1f} s) {outcome.said}", markup=False
                )
    return outcomes


if __name__ == "__main__":
    app()
