"""What commands print: tables for people, one JSON document for programs.

Whatever goes out goes through here. A terminal gets nothing that could steer it (`base/printable`); a file and a pipe
get every byte as it is, as whoever reads them wants it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.base.printable import printable, printable_bytes

T = TypeVar("T")

# Wide enough that no cell is cut where nobody looks at it: a pipe has no width.
PIPE_WIDTH: Final = 200

BOX: Final = "\N{WHITE SQUARE}"

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def run_async(work: Coroutine[object, object, T]) -> T:
    """Runs a command's coroutine on uvloop, as the node itself does."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def print_json(document: object) -> None:
    write_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def write_text(text: str) -> None:
    """To standard output."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def write_bytes(data: bytes) -> None:
    """To standard output, at once: records come when they come."""
    sys.stdout.buffer.write(printable_bytes(data) if sys.stdout.isatty() else data)
    sys.stdout.buffer.flush()


def print_table(columns: Sequence[str] | None, rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Numbers to the right, everything else to the left. Without columns: rows of a name and what it has."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(_printable(title)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=columns is not None,
        show_edge=False,
    )
    for position, name in enumerate(columns or ("",) * len(rows[0])):
        is_number = any(isinstance(row[position], int | float) for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        # Text, not markup: a topic's config may hold brackets.
        table.add_row(*(Text(_cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def say(sentence: str) -> None:
    """For people, beside the output: standard error."""
    sys.stderr.write((printable(sentence) if sys.stderr.isatty() else sentence) + "\n")


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def human_bytes(count: int) -> str:
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return _printable(str(value))


def _printable(text: str) -> str:
    """What moves a cursor or recolours a terminal is shown as a box: keys and values are anybody's."""
    return "".join(character if character.isprintable() or character == "\n" else BOX for character in text)
