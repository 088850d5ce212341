"""An archive forgets a topic, or only which one of its name it was: in one commit, whatever else is written meanwhile.

Delta cannot take back what a `txn` action said: 0 stands for never. Files go later, with the table's upkeep, because a
query may still read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.pipeline.archive.snapshot import open_archive
from penstock.pipeline.source.topic_identity import UNKNOWN
from penstock.pipeline.table.commit import identity_name, open_table, position_name
from penstock.pipeline.table.options import TableError
from penstock.pipeline.table.upkeep import removal, stored_files

if TYPE_CHECKING:
    from penstock.pipeline.archive.snapshot import ArchiveSnapshot

# Overtaken so often by those who write.
ATTEMPTS_MAX: Final = 20


class Forgotten(msgspec.Struct, frozen=True):
    topic: str
    message_count: int
    file_count: int


def forget(path: str, topic: str, *, only_id: bool) -> Forgotten:
    """With `only_id` nothing is removed, and whatever topic of that name is archived next goes on where it ends."""
    from deltalake.exceptions import CommitFailedError

    for _ in range(ATTEMPTS_MAX):
        snapshot = open_archive(path, partitions={topic: [0]})
        if snapshot is None:
            raise TableError(f"{path} is not an archive: there is no Delta table")
        if topic not in snapshot.topics:
            raise TableError(f"{path} holds nothing of topic {topic!r}")
        try:
            return _forget_once(snapshot, topic, only_id=only_id)
        except CommitFailedError:
            continue
    raise TableError(f"{path}: overtaken by other writers {ATTEMPTS_MAX} times in a row, nothing was changed")


def _forget_once(snapshot: ArchiveSnapshot, topic: str, *, only_id: bool) -> Forgotten:
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = SystemClock().now_ms()
    table = open_table(snapshot.path, version=snapshot.version)
    assert table is not None
    names = [identity_name(topic)]
    actions: list[AddAction | RemoveAction] = []
    files = [] if only_id else [file for file in stored_files(table) if file.partition_values["topic"] == topic]
    if not only_id:
        names += [position_name(topic, partition) for name, partition in sorted(snapshot.ends) if name == topic]
        actions += [removal(file, now_ms, is_change=True) for file in files]
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        list(table.metadata().partition_columns),
        commit_properties=CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(name, UNKNOWN, now_ms) for name in names]
        ),
    )
    return Forgotten(topic, sum(file.row_count for file in files), len(files))
