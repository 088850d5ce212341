"""What the log commands do, on the directory of a node that is stopped.

Progress is seen from outside: the files that the check reads are counted as they are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from penstock.cli.confirmation import confirm
from penstock.cli.failure import EXIT_FAILED, CommandError
from penstock.cli.output import counted, human_bytes, print_json, print_table, say, write_text
from penstock.cli.progress import BenchProgress
from penstock.cli.record_format import iso_time, json_value, render_bytes
from penstock.codec.batch.compression import Codec
from penstock.storage.files.directory import DirectoryFiles
from penstock.storage.files.protocols import File, Files
from penstock.storage.repair import check as log_check
from penstock.storage.repair.check import DumpedBatch, LogReport, RepairReport
from penstock.storage.repair.survey import LogProblem, ProblemKind

# Told on the screen now and then: a bar that moves with every read of 64 KiB would cost more than the reads.
TELL_BYTES: Final = 8 * 1024 * 1024
# By the name of a topic, or by how the names of logs end that the node keeps beside partitions.
_CONSEQUENCES: Final = {
    "__consumer_offsets": "positions committed in what was lost are those before it: look at them with "
    "`penstock group describe` and set them with `penstock group reset` before consumers start",
    "__transaction_state": "transactions that were under way may never end: look for them with "
    "`penstock transaction find-hanging`",
    ".queues": "messages acknowledged in what was lost are delivered again",
    ".schedule": "delayed messages in what was lost are not delivered; for those that are still known to be due an "
    "empty message with the header penstock-schedule-lost comes",
}


def verify(directory: Path, topic: str | None, partition: int | None, *, as_json: bool) -> int:
    """The exit code: a torn end is what a crash leaves and the next start cuts, everything else is damage."""
    with _counted_files(directory, "verify") as files:
        reports = log_check.verify(str(directory), topic=topic, partition=partition, files=files)
    damaged = [report for report in reports if any(_is_damage(problem) for problem in report.problems)]
    if as_json:
        print_json({"logs": [_report_document(report) for report in reports], "damaged": len(damaged)})
    else:
        columns = ("topic", "partition", "segments", "batches", "records", "start", "end", "size", "state")
        print_table(columns, [_report_cells(report) for report in reports])
        for report in reports:
            for problem in report.problems:
                place = report.place
                write_text(f"{place.topic} partition {place.partition}: {problem.describe()}\n")
            _tell_open_transactions(report)
            _tell_kept_files(report)
    return EXIT_FAILED if damaged else 0


def _tell_open_transactions(report: LogReport) -> None:
    place = report.place
    for producer_id, first_offset in report.open_transactions:
        write_text(
            f"{place.topic} partition {place.partition}: transaction of producer {producer_id} is under way "
            f"since offset {first_offset}\n"
        )


def _tell_kept_files(report: LogReport) -> None:
    place = report.place
    for name in report.kept_files:
        write_text(
            f"{place.topic} partition {place.partition}: bytes that were taken out of the log are kept in "
            f"{place.directory}/{name}\n"
        )


def _is_damage(problem: LogProblem) -> bool:
    return problem.kind is not ProblemKind.TORN_TAIL


def _report_cells(report: LogReport) -> tuple[object, ...]:
    if any(_is_damage(problem) for problem in report.problems):
        state = "DAMAGED"
    else:
        state = "torn end" if report.problems else "whole"
    return (
        report.place.topic,
        report.place.partition,
        report.segment_count,
        report.batch_count,
        report.record_count,
        report.log_start,
        report.log_end,
        human_bytes(report.size_bytes),
        state,
    )


def _report_document(report: LogReport) -> dict[str, object]:
    return {
        "topic": report.place.topic,
        "topic_id": report.place.topic_id,
        "partition": report.place.partition,
        "segments": report.segment_count,
        "batches": report.batch_count,
        "records": report.record_count,
        "start": report.log_start,
        "end": report.log_end,
        "size_bytes": report.size_bytes,
        "problems": [_problem_document(problem) for problem in report.problems],
        "kept_files": list(report.kept_files),
        "transactional_batches": report.transactional_count,
        "markers": report.marker_count,
        "aborted_transactions": report.aborted_count,
        "open_transactions": [
            {"producer_id": producer_id, "first_offset": first_offset}
            for producer_id, first_offset in report.open_transactions
        ],
    }


def _problem_document(problem: LogProblem) -> dict[str, object]:
    return cast(dict[str, object], msgspec.to_builtins(problem))


def dump(
    directory: Path,
    topic: str,
    partition: int,
    *,
    from_offset: int,
    count: int | None,
    with_records: bool,
    as_json: bool,
) -> None:
    batches = log_check.dump(
        str(directory), topic=topic, partition=partition, from_offset=from_offset, with_records=with_records
    )
    for batch in itertools.islice(batches, count):
        text = msgspec.json.encode(_batch_document(batch)).decode() if as_json else _batch_text(batch)
        write_text(text + "\n")


def _batch_document(batch: DumpedBatch) -> dict[str, object]:
    document: dict[str, object] = {
        "segment": batch.segment_base_offset,
        "position": batch.position,
        "size_bytes": batch.header.size_bytes,
        "last_offset": batch.header.last_offset,
        **msgspec.to_builtins(batch.header),
    }
    if batch.marker is not None:
        document["marker"] = {
            "type": "commit" if batch.marker.is_commit else "abort",
            "coordinator_epoch": batch.marker.coordinator_epoch,
        }
    if isinstance(batch.records, str):
        document["unreadable"] = batch.records
    elif batch.records:
        document["records"] = [
            {
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "key": json_value(record.key, "text"),
                "value": json_value(record.value, "text"),
                "headers": [[name, json_value(value, "text")] for name, value in record.headers],
            }
            for record in batch.records
        ]
    return document


def _batch_text(batch: DumpedBatch) -> str:
    header = batch.header
    codec = Codec(header.codec).name.lower() if header.codec in set(Codec) else f"codec {header.codec}"
    marks = [codec] + ["transactional"] * header.is_transactional + ["control"] * header.is_control
    if batch.marker is not None:
        kind = "commit" if batch.marker.is_commit else "abort"
        marks.append(f"{kind} by coordinator epoch {batch.marker.coordinator_epoch}")
    if header.is_idempotent:
        marks.append(f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}")
    lines = [
        f"offsets {header.base_offset}-{header.last_offset}  segment {batch.segment_base_offset:020} "
        f"byte {batch.position}  {header.size_bytes} B  {counted(header.record_count, 'record')}  "
        f"epoch {header.leader_epoch}  {iso_time(header.max_timestamp)}  {', '.join(marks)}"
    ]
    if isinstance(batch.records, str):
        lines.append(f"  cannot be read: {batch.records}")
    else:
        for record in batch.records:
            key, value = (
                render_bytes(part, "text").decode(errors="backslashreplace") for part in (record.key, record.value)
            )
            lines.append(f"  {record.offset}  {iso_time(record.timestamp_ms)}  {key}  {value}")
    return "\n".join(lines)


def repair(
    directory: Path,
    topic: str | None,
    partition: int | None,
    *,
    drop: int | None,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    if drop is not None and (topic is None or partition is None):
        raise CommandError("--drop needs the topic and the partition whose batch is meant")
    question = f"Set damaged bytes in {directory} aside? Their messages are lost to readers."
    confirm(question, is_confirmed=is_confirmed, refused="nothing was repaired")
    with _counted_files(directory, "repair") as files:
        reports = log_check.repair(str(directory), topic=topic, partition=partition, drop=drop, files=files)
    if as_json:
        print_json({"repaired": [_repair_document(report) for report in reports]})
        return
    for report in reports:
        for done in report.repairs:
            place = f"{report.place.topic} partition {report.place.partition}"
            kept = f", bytes kept in {done.saved_path}" if done.saved_path else ""
            write_text(f"{place}: {done.problem.describe()}: repaired{kept}\n")
        consequence = _consequence(report.place.topic)
        if consequence is not None:
            write_text(f"{report.place.topic} partition {report.place.partition}: {consequence}\n")
    if not reports:
        say("nothing to repair")


def _consequence(topic: str) -> str | None:
    """What follows from records that a log of the node's own has lost."""
    if topic in _CONSEQUENCES:
        return _CONSEQUENCES[topic]
    return next((text for suffix, text in _CONSEQUENCES.items() if suffix[0] == "." and topic.endswith(suffix)), None)


def _repair_document(report: RepairReport) -> dict[str, object]:
    return {
        "topic": report.place.topic,
        "partition": report.place.partition,
        "repairs": [{**_problem_document(done.problem), "saved_path": done.saved_path} for done in report.repairs],
    }


# -- progress


@contextmanager
def _counted_files(directory: Path, title: str) -> Iterator[Files]:
    total = sum(path.stat().st_size for path in directory.rglob("*.log") if path.is_file())
    with BenchProgress(title, float(total)) as progress:
        read_bytes = told_bytes = 0

        def count(size_bytes: int) -> None:
            nonlocal read_bytes, told_bytes
            read_bytes += size_bytes
            if read_bytes - told_bytes >= TELL_BYTES:
                told_bytes = read_bytes
                progress.update(read_bytes, human_bytes(read_bytes))

        yield cast(Files, _CountedFiles(DirectoryFiles(), count))


class _CountedFiles:
    """The file seam with an ear on its reads; everything else passes through."""

    def __init__(self, files: Files, count: Callable[[int], None]) -> None:
        self._files = files
        self._count = count

    def open(self, path: str, *, create: bool = False) -> File:
        return cast(File, _CountedFile(self._files.open(path, create=create), self._count))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _CountedFile:
    def __init__(self, file: File, count: Callable[[int], None]) -> None:
        self._file = file
        self._count = count

    def read_at(self, position: int, size: int) -> bytes:
        data = self._file.read_at(position, size)
        self._count(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
