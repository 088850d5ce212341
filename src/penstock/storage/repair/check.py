"""A stopped node's directory, looked at from outside: `penstock log verify | dump | repair`. Blocking.

All three take the directory's lock, so they never meet a node that is writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.storage.errors import DataDirectoryError
from penstock.storage.files.directory import DirectoryFiles
from penstock.storage.files.directory_lock import locked_error
from penstock.storage.files.protocols import Files
from penstock.storage.log.checkpoint_file import pack_entry, read_checkpoint, unpack_entries, write_checkpoint
from penstock.storage.log.cut_bytes import CUT_SUFFIX
from penstock.storage.log.derived import known_end
from penstock.storage.log.home import read_topic_facts
from penstock.storage.log.swap import settle_swaps
from penstock.storage.repair.rewrite import DAMAGED_SUFFIX, Repair, repair_log
from penstock.storage.repair.survey import LogProblem, LogSurvey, ProblemKind, segment_path
from penstock.storage.store import LOCK_FILE, LOGS_DIRECTORY, TOPIC_ID

# Before its first batch a topic has no file that tells its name, and after damage to it neither.
UNKNOWN_TOPIC = "?"


class LogPlace(msgspec.Struct, frozen=True):
    """One log in a data directory."""

    topic: str
    topic_id: str
    partition: int
    directory: str


class LogReport(msgspec.Struct, frozen=True):
    place: LogPlace
    segment_count: int
    batch_count: int
    record_count: int
    size_bytes: int
    log_start: int
    log_end: int
    problems: tuple[LogProblem, ...]
    # Batches of transactions, and the markers that end them.
    transactional_count: int = 0
    marker_count: int = 0
    aborted_count: int = 0
    # Producer and first offset of each that no marker has ended: readers of committed records stop at the first.
    open_transactions: tuple[tuple[int, int], ...] = ()
    # What starts after a crash have cut from its end, and repairs have set aside.
    kept_files: tuple[str, ...] = ()


class RepairReport(msgspec.Struct, frozen=True):
    place: LogPlace
    repairs: tuple[Repair, ...]


class DumpedBatch(msgspec.Struct, frozen=True):
    place: LogPlace
    segment_base_offset: int
    position: int
    header: BatchHeader
    # Only when asked for; a text when they cannot be read.
    records: tuple[StoredRecord, ...] | str = ()
    # Of a control batch; None: it ends no transaction.
    marker: EndMarker | None = None


def verify(
    root: str, *, topic: str | None = None, partition: int | None = None, files: Files | None = None
) -> list[LogReport]:
    """Every checksum of every batch is computed. Raises DirectoryLockedError, DataDirectoryError."""
    with locked_directory(root, files) as seam:
        return [_report(seam, place, _survey(seam, root, place)) for place in _places(seam, root, topic, partition)]


def dump(
    root: str,
    *,
    topic: str,
    partition: int,
    from_offset: int = 0,
    with_records: bool = False,
    files: Files | None = None,
) -> Iterator[DumpedBatch]:
    """Whole batches, from the one that holds `from_offset` on; the caller stops when it has enough."""
    with locked_directory(root, files) as seam:
        for place in _places(seam, root, topic, partition):
            settle_swaps(seam, place.directory, seam.file_sizes(place.directory))
            for segment_base_offset, position, header in LogSurvey(seam, place.directory).batches():
                if header.next_offset <= from_offset:
                    continue
                data = b""
                if with_records or header.is_control:
                    path = segment_path(place.directory, segment_base_offset)
                    data = seam.open(path).read_at(position, header.size_bytes)
                records = _records(data) if with_records else ()
                marker = _marker(data) if header.is_control else None
                yield DumpedBatch(place, segment_base_offset, position, header, records, marker)


def repair(
    root: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    drop: int | None = None,
    files: Files | None = None,
) -> list[RepairReport]:
    """Sets damaged bytes aside and makes the logs whole; those without a problem are not touched or named. `drop`: the
    batch with that offset of the one log goes as well, whole as it is, because nobody can read what is in it."""
    with locked_directory(root, files) as seam:
        reports = []
        for place in _places(seam, root, topic, partition):
            survey = _survey(seam, root, place, drop)
            if survey.problems:
                repairs = repair_log(seam, survey, partial(_forget_checkpoint, seam, root, place))
                reports.append(RepairReport(place, tuple(repairs)))
        return reports


@contextmanager
def locked_directory(root: str, files: Files | None) -> Iterator[Files]:
    seam: Files = files if files is not None else DirectoryFiles()
    if not seam.exists(f"{root}/{LOGS_DIRECTORY}"):
        raise DataDirectoryError(f"{root} is not a data directory: it has no {LOGS_DIRECTORY}/ in it")
    lock = seam.lock(f"{root}/{LOCK_FILE}")
    if lock is None:
        raise locked_error(seam, root, f"{root}/{LOCK_FILE}")
    try:
        yield seam
    finally:
        lock.release()


def _places(files: Files, root: str, topic: str | None, partition: int | None) -> list[LogPlace]:
    places: list[LogPlace] = []
    logs_directory = f"{root}/{LOGS_DIRECTORY}"
    # Also what the checkpoint knows and the disk no longer has.
    payload = read_checkpoint(files, root)
    known = {(key[0].hex(), key[1]) for key in unpack_entries(payload)} if payload is not None else set()
    # A name that is no id is of a topic that is being removed.
    topic_ids = {topic_id for topic_id in files.list_directory(logs_directory) if TOPIC_ID.fullmatch(topic_id)}
    for topic_id in sorted(topic_ids | {topic_id for topic_id, _ in known}):
        directory = f"{logs_directory}/{topic_id}"
        facts = read_topic_facts(files, directory)
        name = facts.name if facts is not None else UNKNOWN_TOPIC
        if topic is not None and topic not in (name, topic_id):
            continue
        partitions = {int(entry) for entry in files.list_directory(directory) if entry.isdigit()}
        partitions |= {number for known_id, number in known if known_id == topic_id}
        places.extend(
            LogPlace(name, topic_id, number, f"{directory}/{number}")
            for number in sorted(partitions)
            if partition is None or number == partition
        )
    if topic is not None and not places:
        asked = topic if partition is None else f"{topic}-{partition}"
        raise DataDirectoryError(f"{root} holds nothing of {asked}")
    return sorted(places, key=lambda place: (place.topic, place.topic_id, place.partition))


def _survey(files: Files, root: str, place: LogPlace, drop: int | None = None) -> LogSurvey:
    # What was committed before the node died is completed, or replaced segments would be taken for damage.
    settle_swaps(files, place.directory, files.file_sizes(place.directory))
    payload = read_checkpoint(files, root)
    entry = None
    if payload is not None:
        entry = unpack_entries(payload).get((bytes.fromhex(place.topic_id), place.partition))
    survey = LogSurvey(
        files,
        place.directory,
        known_start=entry.segments[0].base_offset if entry is not None and entry.segments else 0,
        known_end=max(entry.end_offset if entry is not None else 0, known_end(files, place.directory)),
        known_last=entry.segments[-1].base_offset if entry is not None and entry.segments else None,
    )
    dropped = [
        _dropped(segment_base_offset, position, header)
        for segment_base_offset, position, header in survey.batches()
        if drop is not None and header.base_offset <= drop <= header.last_offset
    ]
    if drop is not None and not dropped:
        raise DataDirectoryError(f"{place.topic}-{place.partition} has no batch with offset {drop}")
    survey.problems.extend(dropped)
    survey.problems.sort(key=lambda problem: (problem.segment_base_offset, problem.start))
    return survey


def _dropped(segment_base_offset: int, position: int, header: BatchHeader) -> LogProblem:
    end = position + header.size_bytes
    reason = "the operator wants it dropped"
    kind = ProblemKind.DAMAGE
    return LogProblem(
        kind,
        segment_base_offset,
        position,
        end,
        header.base_offset,
        header.next_offset,
        reason,
        header.leader_epoch,
    )


def _report(files: Files, place: LogPlace, survey: LogSurvey) -> LogReport:
    names = files.list_directory(place.directory)
    return LogReport(
        place,
        survey.segment_count,
        survey.batch_count,
        survey.record_count,
        survey.size_bytes,
        survey.log_start,
        survey.log_end,
        tuple(survey.problems),
        survey.transactional_count,
        survey.marker_count,
        len(survey.producers.transactions.aborted),
        tuple(survey.producers.transactions.ongoing.items()),
        tuple(name for name in names if name.endswith((CUT_SUFFIX, DAMAGED_SUFFIX))),
    )


def _records(data: bytes) -> tuple[StoredRecord, ...] | str:
    records = read_records(data)
    return records.reason if isinstance(records, BatchProblem) else tuple(records)


def _marker(data: bytes) -> EndMarker | None:
    marker = read_marker(data)
    return marker if isinstance(marker, EndMarker) else None


def _forget_checkpoint(files: Files, root: str, place: LogPlace) -> None:
    payload = read_checkpoint(files, root)
    if payload is None:
        return
    entries = unpack_entries(payload)
    entries.pop((bytes.fromhex(place.topic_id), place.partition), None)
    write_checkpoint(files, root, [pack_entry(entry) for entry in entries.values()])
