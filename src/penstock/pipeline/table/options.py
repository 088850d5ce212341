"""The options of `format("penstock-table")`, a Delta table, read into one struct; and what a task tells of its files.

path          where the table lies: a directory, or a URI that Arrow and delta-rs both know
partitionBy   columns that become directories: readers pass over whole ones
splitBy       columns of which each file has one value, without a directory for it
positions     true: rows are of topics, and each commit says how far each partition has come
compactEvery  so many batches after the last one, small files are put together; 0: never
description   a text of the table, given when it is made
files         a schema: rows are not of the table but tell of files that are written already (`task_files`)
topicIds      which topics the rows are of, where two of one name must not come together (`source/topic_identity`)
queryId, batchId   which batch of which query this is, where Spark does not say it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.base.typed_values import read_json
from penstock.pipeline.source.options import OptionError

FORMAT: Final = "penstock-table"
COMPACT_EVERY_DEFAULT: Final = 20

_KNOWN: Final = frozenset({
    "path", "partitionby", "splitby", "positions", "compactevery", "description", "files", "queryid", "batchid",
    "topicids", "queryname", "checkpointlocation",
})  # fmt: skip


class TableError(Exception):
    """One sentence on what cannot be written to a table, or read from it."""


class TableOptions(msgspec.Struct, frozen=True):
    path: str
    partition_by: tuple[str, ...] = ()
    split_by: tuple[str, ...] = ()
    has_positions: bool = False
    compact_every: int = COMPACT_EVERY_DEFAULT
    description: str | None = None
    # Of the table, as Spark writes it.
    files_schema: str | None = None
    topic_ids: dict[str, int] = {}
    query_id: str | None = None
    batch_id: int | None = None


class NewFile(msgspec.Struct, frozen=True):
    """A file that a task has written; no reader sees it before it is committed."""

    # Below the table's path.
    path: str
    size_bytes: int
    row_count: int
    # By column of `partition_by`, as text; None for null.
    partition_values: dict[str, str | None]
    # The same of `split_by`.
    split_values: dict[str, str | None]
    # Delta's statistics, as JSON.
    statistics: str
    offset_first: int = -1
    offset_last: int = -1


def parse_table_options(options: Mapping[str, str]) -> TableOptions:
    known = {name.lower(): value for name, value in options.items()}
    for name in known:
        if name not in _KNOWN:
            raise OptionError(f"option {name!r} is not known to {FORMAT}")
    if not known.get("path"):
        raise OptionError("option path says where the table lies")
    query_id = known.get("queryid") or None
    batch_id = _number(known, "batchid", -1)
    if batch_id >= 0 and query_id is None:
        raise OptionError("batchId says which batch of a query this is: queryId must say of which query")
    return TableOptions(
        path=known["path"].rstrip("/") or "/",
        partition_by=_names(known.get("partitionby", "")),
        split_by=_names(known.get("splitby", "")),
        has_positions=known.get("positions", "false").lower() == "true",
        compact_every=_number(known, "compactevery", COMPACT_EVERY_DEFAULT),
        description=known.get("description") or None,
        files_schema=known.get("files") or None,
        topic_ids=_topic_ids(known),
        query_id=query_id,
        batch_id=None if batch_id < 0 else batch_id,
    )


def check_table_columns(types: Mapping[str, str], options: TableOptions) -> None:
    """`types` are Spark's, by column; raises `OptionError` with the sentence."""
    for name in (*options.partition_by, *options.split_by):
        if name not in types:
            raise OptionError(f"the table is to be partitioned by {name!r}, and there is no such column")
    for name, kind in types.items():
        if "void" in kind or "timestamp_ntz" in kind or "variant" in kind or "interval" in kind:
            raise OptionError(f"column {name!r} is {kind}, which the table cannot hold: cast it first")
    if len(types) == len(options.partition_by):
        raise OptionError("the table is partitioned by all of its columns: one at least must be left for its files")


def _topic_ids(options: Mapping[str, str]) -> dict[str, int]:
    try:
        return read_json(options.get("topicids") or "{}", dict[str, int])
    except msgspec.MsgspecError as error:
        raise OptionError(f"topicIds is not understood: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdigit():
        raise OptionError(f"{name} is {text!r}, a whole number is meant")
    return int(text)
