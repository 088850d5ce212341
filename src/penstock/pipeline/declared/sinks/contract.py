"""What a sink of a pipeline must be able to do. The rest of the pipeline knows its sink by this alone.

A sink is a frozen struct in a module of its own. Its fields are the keys of the file; one of them, in `KEYS`, tells
that it is this sink. It is asked in this order:

    check ──────► check_columns ──► check_place ──► columns ──► write
    the file      the columns of    what is there   what is     the query
    by itself     the result        already         written     of Spark

`claims` and `describe` may be asked at any time. A new sink is one module here, and one line in `kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems, suggestion

# Called with the rows of a batch, its number, and the names of the columns.
ShowRows = Callable[[list[dict[str, Any]], int, list[str]], None]


class Mode(StrEnum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink writes that other pipelines, or other parts of its own, must know of."""

    # Created before the start, if it is not there.
    topic: str | None = None
    # None: as many as the node gives by default.
    partitions: int | None = None
    # No other query may write there.
    directory: str | None = None


class Description(msgspec.Struct, frozen=True):
    """A sink in words: `topic revenue`, and `revenue` where it is clear what is meant."""

    text: str
    name: str
    # Drawn as a cylinder.
    is_table: bool = False


class Place(msgspec.Struct, frozen=True):
    """Where a query is to begin, or to go on."""

    # Of the pipeline file: paths begin here.
    directory: Path
    checkpoint: str


class Target(msgspec.Struct, frozen=True):
    """What a sink needs to write, besides what the file says."""

    spark: Any
    bootstrap: str
    # Of the pipeline file: paths begin here.
    directory: Path
    show: ShowRows


class SinkContract(Protocol):
    KEYS: ClassVar[tuple[str, ...]]

    @property
    def mode(self) -> Mode:
        """In which Spark runs the query."""
        ...

    @property
    def claims(self) -> Claims: ...

    def describe(self) -> Description: ...

    def check(self, read: Mapping[str, str], path: Where, problems: Problems) -> None:
        """What the file says, by itself: neither a node nor Spark is there. `read`: which source reads which topic."""
        ...

    def check_columns(self, types: Mapping[str, str], path: Where, problems: Problems) -> None:
        """Whether the sink can take the result: `types` are Spark's, by column."""
        ...

    def check_place(self, spark: Any, place: Place, path: Where, problems: Problems) -> None:
        """Whether the sink can write there, before the query is started."""
        ...

    def columns(self, types: Mapping[str, str]) -> list[str]:
        """What is written, as expressions of SQL. Empty: the result as it is."""
        ...

    def write(self, writer: Any, target: Target) -> Any:
        """The writer of a stream, with everything that this sink adds to it; the caller starts it."""
        ...


def check_named(columns: Iterable[tuple[str, str]], types: Mapping[str, str], path: Where, problems: Problems) -> None:
    """Columns that the file names, each with its key, must be in the result."""
    for key, column in columns:
        if column not in types:
            has = f" (it has {', '.join(types)})"
            problems.add((*path, key), f"the result has no column {column!r}{suggestion(column, types)}{has}")
