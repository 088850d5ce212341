"""The work of `penstock archive list|show|forget|compact`: the table is looked at and looked after without Spark."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.cli.failure import CommandError
from penstock.cli.option_values import duration_ms
from penstock.cli.output import counted, human_bytes, print_json, print_table, say

if TYPE_CHECKING:
    from penstock.pipeline.archive.snapshot import ArchivedRange, ArchiveSnapshot

# Directories below the one that was named.
DEPTH_MAX: Final = 3
SHOW_COLUMNS: Final = ("topic", "partition", "first", "end", "messages", "files", "size", "oldest", "youngest")


def check_installed() -> None:
    if importlib.util.find_spec("deltalake") is None or importlib.util.find_spec("pyarrow") is None:
        raise CommandError('deltalake is not installed: pip install "penstock[spark]"')


def list_archives(directory: str, *, as_json: bool) -> None:
    check_installed()
    found = [(path, summary) for path in _tables(Path(directory)) if (summary := _summary(path)) is not None]
    if as_json:
        print_json({"archives": [summary for _, summary in found]})
    elif found:
        rows = [
            (
                summary["path"],
                ", ".join(summary["topics"]),
                summary["message_count"],
                summary["file_count"],
                human_bytes(summary["size_bytes"]),
                moment(summary["last_commit_ms"]),
            )
            for _, summary in found
        ]
        print_table(("path", "topics", "messages", "files", "size", "last commit"), rows)
    else:
        say(f"no archives at or below {directory}")


def _tables(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        raise CommandError(f"{directory} is not a directory")
    for folder, folders, _ in os.walk(directory):
        here = Path(folder)
        if "_delta_log" in folders:
            folders.clear()
            yield here
        elif len(here.relative_to(directory).parts) >= DEPTH_MAX:
            folders.clear()
        folders.sort()


def _summary(path: Path) -> dict[str, Any] | None:
    """None: a Delta table that is no archive."""
    from penstock.pipeline.archive.snapshot import open_archive
    from penstock.pipeline.table.options import TableError

    try:
        snapshot = open_archive(str(path))
    except TableError:
        return None
    if snapshot is None:
        return None
    return {
        "path": snapshot.path,
        "topics": snapshot.topics,
        "message_count": sum(file.row_count for file in snapshot.files),
        "file_count": len(snapshot.files),
        "size_bytes": sum(file.size_bytes for file in snapshot.files),
        "version": snapshot.version,
        "last_commit_ms": last_commit_ms(snapshot.path),
    }


def last_commit_ms(path: str) -> int | None:
    from penstock.pipeline.table.commit import open_table

    table = open_table(path)
    entries = [] if table is None else table.history(1)
    return int(entries[0]["timestamp"]) if entries else None


def show(path: str, *, topic: str | None, as_json: bool) -> None:
    from penstock.pipeline.archive.snapshot import ranges_of

    check_installed()
    snapshot = _open(path)
    ranges = [each for each in ranges_of(snapshot) if topic is None or each.topic == topic]
    if topic is not None and not ranges:
        raise CommandError(f"{path} holds nothing of topic {topic!r}")
    committed_ms = last_commit_ms(path)
    if as_json:
        print_json(
            {
                "path": path,
                "version": snapshot.version,
                "last_commit_ms": committed_ms,
                "partitions": [msgspec.structs.asdict(each) for each in ranges],
            }
        )
        return
    total = sum(each.size_bytes for each in ranges)
    title = f"{path}, version {snapshot.version} of {moment(committed_ms) or 'unknown'}, {human_bytes(total)}"
    print_table(SHOW_COLUMNS, [_cells(each) for each in ranges] or [("-",) * len(SHOW_COLUMNS)], title=title)


def _open(path: str) -> ArchiveSnapshot:
    from penstock.pipeline.archive.snapshot import open_archive

    snapshot = open_archive(path)
    if snapshot is None:
        raise CommandError(f"{path} is not an archive: there is no Delta table")
    return snapshot


def _cells(found: ArchivedRange) -> tuple[object, ...]:
    return (
        found.topic,
        found.partition,
        found.first_offset,
        found.end_offset,
        found.row_count,
        found.file_count,
        human_bytes(found.size_bytes),
        moment(found.timestamp_ms_first),
        moment(found.timestamp_ms_last),
    )


def moment(timestamp_ms: int | None) -> str | None:
    from datetime import datetime

    if timestamp_ms is None:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def forget(path: str, topic: str, *, only_id: bool, as_json: bool) -> None:
    check_installed()
    from penstock.pipeline.archive import forget as archive_forget

    done = archive_forget.forget(path, topic, only_id=only_id)
    if as_json:
        print_json(done)
    elif only_id:
        say(f"the next archive of {topic} goes on, whatever topic of that name it is")
    else:
        say(f"{counted(done.message_count, 'message')} of {topic} removed; an archive of it begins anew")


def compact(path: str, *, keep: str | None, vacuum_after: str, as_json: bool) -> None:
    check_installed()
    from penstock.pipeline.archive.snapshot import archive_options
    from penstock.pipeline.table import upkeep as table_upkeep

    keep_ms = None if keep is None else duration_ms(keep, "--keep")
    after_ms = duration_ms(vacuum_after, "--vacuum-after")
    from deltalake.exceptions import DeltaError

    _open(path)
    removed = 0
    try:
        if keep_ms is not None:
            removed = table_upkeep.keep_days(path, keep_ms=keep_ms, now_ms=SystemClock().now_ms())
        done = table_upkeep.compact(archive_options(path))
        deleted = table_upkeep.vacuum(path, after_ms=after_ms)
    except DeltaError as error:
        raise CommandError(f"{path} was not looked after to the end, and may be again: {error}") from error
    if as_json:
        print_json({**msgspec.structs.asdict(done), "removed_count": removed, "deleted_file_count": deleted})
    told = f"{counted(removed, 'message')} of old days removed, " if keep_ms is not None else ""
    compacted = f"{counted(done.files_before, 'small file')} became {done.files_after:,}"
    say(f"{told}{compacted}, {counted(deleted, 'unused file')} deleted")
