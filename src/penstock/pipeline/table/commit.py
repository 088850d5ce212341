"""The driver's work in a table: the files of all tasks of a batch become visible in one Delta commit, or not at all.

Exactly once, by compare and set: a commit is tried for one version of the table only, after looking in the version
before it whether this batch (Delta's `txn` action: query, number) is there already. Whoever was overtaken looks again.
So neither a batch that Spark repeats nor a driver that was thought dead adds a row twice.

A table of topics says in the same commit how far each partition has come: `txn` actions named
penstock/<topic>/<partition> whose version is the first offset that is not in the table; and penstock/<topic>/id, which
topic of that name it is (`source/topic_identity`). Delta keeps them over compactions and checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.pipeline.source.topic_identity import OtherTopicError, is_other, other_topic
from penstock.pipeline.table.files import sync_path
from penstock.pipeline.table.options import NewFile, TableError, TableOptions

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

# Overtaken so often, one after the other: nobody compacts or writes that fast.
ATTEMPTS_MAX: Final = 60
WAIT_SECONDS_MAX: Final = 0.25

# A stream commits thousands of times a day: without a checkpoint now and then, and an end to old versions, looking for
# the newest would take ever longer. Old versions stay as long as the files that they alone have (`upkeep`).
CONFIGURATION: Final = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 7 days"}

Place = tuple[str, int]


class OverlapError(TableError):
    """Another writer has put the same messages into the table."""


class Committed(msgspec.Struct, frozen=True):
    version: int
    # False: this batch had been committed before.
    is_new: bool


def position_name(topic: str, partition: int) -> str:
    return f"penstock/{topic}/{partition}"


def identity_name(topic: str) -> str:
    return f"penstock/{topic}/id"


def open_table(path: str, *, version: int | None = None) -> DeltaTable | None:
    """None: there is no table yet."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    check_place(path)
    try:
        return DeltaTable(path, version=version)
    except TableNotFoundError:
        return None


def check_place(path: str) -> None:
    """Raises `TableError` where no table can be."""
    if not path:
        raise TableError("the table's path is empty")
    if "://" in path:
        return
    if "%" in path:
        # delta-rs takes what follows for the number of a character, and Spark does not.
        raise TableError(f"{path}: the path of a table cannot have a % in it")
    if Path(path).exists() and not Path(path).is_dir():
        raise TableError(f"{path} is a file: a table is a directory")


def check_may_begin(path: str, partition_by: Sequence[str]) -> None:
    """Raises `TableError` if other things are where a table is to be made: its upkeep could take them for leftovers."""
    if "://" in path or not Path(path).is_dir():
        return
    # Hidden things, as Delta sees it; a file system's own; and files of tasks that did not live to see a commit.
    allowed = ("_", ".", "lost+found", *(f"{name}=" for name in partition_by[:1]))
    strange = [entry.name for entry in sorted(Path(path).iterdir()) if not entry.name.startswith(allowed)]
    if strange:
        raise TableError(f"{path} is not a table, and {strange[0]} is there: a directory of its own is meant")


def commit_files(
    options: TableOptions,
    schema_json: str,
    files: Sequence[NewFile],
    *,
    writer_id: str | None,
    batch_id: int | None,
    replaces: bool = False,
) -> Committed:
    """`schema_json` is Spark's text of the rows' schema, which is Delta's as well."""
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError

    schema = Schema.from_json(schema_json)
    for attempt in range(ATTEMPTS_MAX):
        table = open_table(options.path)
        if table is not None:
            known = None if writer_id is None else table.transaction_version(writer_id)
            if known is not None and batch_id is not None and known >= batch_id:
                return Committed(table.version(), False)
        try:
            version = _commit_once(options, schema, files, table, writer_id, batch_id, replaces)
        except CommitFailedError:
            # Somebody committed in between: he may have been us.
            time.sleep(min(0.01 * 2**attempt, WAIT_SECONDS_MAX))
            continue
        if version is not None:
            _sync_log(options.path, version)
            return Committed(version, True)
    raise TableError(f"{options.path}: overtaken by other writers {ATTEMPTS_MAX} times in a row")


def _commit_once(
    options: TableOptions,
    schema: Schema,
    files: Sequence[NewFile],
    table: DeltaTable | None,
    writer_id: str | None,
    batch_id: int | None,
    replaces: bool,
) -> int | None:
    """The version it became; None: the table was made or changed in between, and has to be looked at again."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, create_table_with_add_actions

    now_ms = SystemClock().now_ms()
    actions = [
        AddAction(file.path, file.size_bytes, file.partition_values, now_ms, True, file.statistics) for file in files
    ]
    transactions = [] if writer_id is None or batch_id is None else [Transaction(writer_id, batch_id, now_ms)]
    for (topic, partition), end in _positions(options, files, table).items():
        transactions.append(Transaction(position_name(topic, partition), end, now_ms))
    for topic, identity in _identities(options, files, table).items():
        transactions.append(Transaction(identity_name(topic), identity, now_ms))
    # No retries of delta-rs's own: they would look at nothing but the version.
    properties = CommitProperties(max_commit_retries=0, app_transactions=transactions)
    partition_by = list(options.partition_by)
    if table is None:
        try:
            create_table_with_add_actions(
                options.path,
                schema,
                actions,
                mode="error",
                partition_by=partition_by,
                description=options.description,
                configuration=CONFIGURATION,
                commit_properties=properties,
            )
        except DeltaError:
            if open_table(options.path) is None:
                raise
            return None
        return 0
    _check_partitioning(table, options)
    if not replaces and _has_adapted(table, schema):
        # What was looked at is the version before.
        return None
    mode = "overwrite" if replaces else "append"
    table.create_write_transaction(list(actions), mode, schema, partition_by, commit_properties=properties)
    # It was that version or none: compare and set.
    return table.version() + 1


def _positions(options: TableOptions, files: Sequence[NewFile], table: DeltaTable | None) -> Mapping[Place, int]:
    if not options.has_positions:
        return {}
    firsts: dict[Place, int] = {}
    ends: dict[Place, int] = {}
    for file in files:
        values = file.partition_values | file.split_values
        place = (values["topic"] or "", int(values["partition"] or 0))
        firsts[place] = min(firsts.get(place, file.offset_first), file.offset_first)
        ends[place] = max(ends.get(place, 0), file.offset_last + 1)
    for (topic, partition), first in firsts.items():
        known = None if table is None else table.transaction_version(position_name(topic, partition))
        if known is not None and first < known:
            raise OverlapError(
                f"{options.path}: it holds partition {partition} of {topic!r} up to offset {known}, and {first} was to "
                "be added: does another archive write to it? Nothing was added."
            )
    return ends


def _identities(options: TableOptions, files: Sequence[NewFile], table: DeltaTable | None) -> Mapping[str, int]:
    """Those that the table does not know yet."""
    fresh: dict[str, int] = {}
    for topic in sorted({file.partition_values.get("topic") or "" for file in files}):
        found = options.topic_ids.get(topic)
        known = None if table is None else table.transaction_version(identity_name(topic))
        if is_other(known, found):
            raise OtherTopicError(other_topic(options.path, topic))
        if found and not known:
            fresh[topic] = found
    return fresh


def _check_partitioning(table: DeltaTable, options: TableOptions) -> None:
    found = tuple(table.metadata().partition_columns)
    if found != options.partition_by:
        raise TableError(
            f"{options.path} is partitioned by {', '.join(found) or 'nothing'}, and "
            f"{', '.join(options.partition_by) or 'nothing'} was asked for"
        )


def _has_adapted(table: DeltaTable, schema: Schema) -> bool:
    """New columns are added; a column that became another is refused."""
    known = {field.name: field.type for field in table.schema().fields}
    for field in schema.fields:
        if field.name in known and known[field.name] != field.type:
            raise TableError(
                f"column {field.name!r} is {_type_name(known[field.name])} in {table.table_uri}, and "
                f"{_type_name(field.type)} was to be added: another table, or another name for it"
            )
    fresh = [field for field in schema.fields if field.name not in known]
    if fresh:
        table.alter.add_columns(fresh)
    return bool(fresh)


def _type_name(kind: object) -> str:
    return str(getattr(kind, "type", kind))


def _sync_log(path: str, version: int) -> None:
    """delta-rs leaves that to the kernel; but a broker may delete what it hears that we have."""
    root = Path(path.removeprefix("file://")).absolute()
    file = root / "_delta_log" / f"{version:020}.json"
    if file.exists():
        sync_path(str(file), root=str(root))
