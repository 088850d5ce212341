"""How a running pipeline shows itself: a live table in a terminal, lines of a log elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.base.log_events import LogFormat, configure, get_logger
from penstock.base.printable import printable
from penstock.cli.output import print_table
from penstock.pipeline.declared.status import FAILED, FINISHED, LOST, RESTARTING, RUNNING, STOPPED, Status

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_COLOURS: Final = {
    RUNNING: "green",
    FINISHED: "green",
    STOPPED: "dim",
    RESTARTING: "yellow",
    FAILED: "red",
    LOST: "red",
}
# Events that a table does not show by itself.
_SPOKEN: Final = frozenset({"pipeline failed", "pipeline restarts", "schema found", "topic created", "bad rows"})


class LogView:
    """Events with fields on standard error; rows of a console sink on standard output."""

    def __init__(self, log_format: LogFormat) -> None:
        configure(log_format)
        self._log = get_logger("pipeline")

    def event(self, name: str, **fields: object) -> None:
        if name in ("pipeline failed", "pipeline restarts"):
            self._log.error(name, **fields)
        else:
            self._log.info(name, **fields)

    def show(self, statuses: list[Status]) -> None:
        """A log says what happens, not how it is."""

    def rows(self, pipeline: str, batch_id: int, columns: list[str], rows: list[dict[str, Any]]) -> None:
        print_rows(pipeline, batch_id, columns, rows)


class LiveView:
    def __init__(self, live: Live) -> None:
        self._live = live

    def event(self, name: str, **fields: object) -> None:
        if name in _SPOKEN:
            told = "  ".join(f"{key}={value}" for key, value in fields.items())
            self._live.console.print(printable(f"{name}  {told}"), markup=False, highlight=False)

    def show(self, statuses: list[Status]) -> None:
        self._live.update(status_table(statuses))

    def rows(self, pipeline: str, batch_id: int, columns: list[str], rows: list[dict[str, Any]]) -> None:
        print_rows(pipeline, batch_id, columns, rows)


@contextmanager
def open_view(*, as_json: bool) -> Iterator[LogView | LiveView]:
    if as_json or not sys.stderr.isatty():
        yield LogView("json" if as_json else "text")
        return
    from rich.console import Console
    from rich.live import Live

    with Live(status_table([]), console=Console(stderr=True), refresh_per_second=4) as live:
        yield LiveView(live)


def print_rows(pipeline: str, batch_id: int, columns: list[str], rows: list[dict[str, Any]]) -> None:
    if rows:
        print_table(columns, [[_shown(row[name]) for name in columns] for row in rows], title=f"{pipeline} {batch_id}")
        sys.stdout.flush()


def status_table(statuses: Sequence[Status]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("pipeline", "state"):
        table.add_column(name)
    for name in ("rows/s", "batch ms", "batch", "rows in", "rows out", "bad rows", "lag"):
        table.add_column(name, justify="right")
    table.add_column("last error", overflow="fold")
    for status in statuses:
        table.add_row(
            Text(printable(status.name)),
            Text(status.state, style=_COLOURS.get(status.state, "")),
            *(Text(cell) for cell in _numbers(status)),
            Text(printable(status.last_error), style="red"),
        )
    return table


def _numbers(status: Status) -> list[str]:
    lag = "-" if status.lag is None else f"{status.lag:,}"
    counts = [f"{count:,}" for count in (status.rows_in, status.rows_out, status.bad_rows)]
    batch = "-" if status.batch_id < 0 else f"{status.batch_id:,}"
    return [f"{status.rows_per_second:,.0f}", f"{status.batch_ms:,}", batch, *counts, lag]


def _shown(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value if value is None or isinstance(value, int | float | str) else str(value)
