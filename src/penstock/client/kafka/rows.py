"""The records of fetched batches, one by one, trimmed to what was asked for.

A batch may begin before the position that was fetched and end after the last wanted offset. Control batches
(the markers of transactions) are nobody's messages and are left out, as are those that the consumer found aborted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.client.kafka.consumer import Fetched
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch, read_header
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.net.errors import ClientError

NO_END: Final = 0x7FFF_FFFF_FFFF_FFFF


class UnreadableBatchError(ClientError):
    """A batch came that is damaged, or that this client cannot open."""


class SkippedBatches:
    """Whoever wants the rest counts what cannot be read."""

    def __init__(self) -> None:
        self.batch_count = 0
        # As the headers have it, which may lie.
        self.offset_count = 0

    def add(self, header: BatchHeader) -> None:
        self.batch_count += 1
        self.offset_count += header.last_offset_delta + 1


def rows_of(fetched: Fetched, *, end: int = NO_END, skipped: SkippedBatches | None = None) -> Iterator[StoredRecord]:
    """Records from the fetched position on, below `end`; every checksum is looked at. With `skipped`, batches that
    cannot be read are passed over and counted there."""
    data, position = fetched.data, 0
    while position < len(data):
        header = check_batch(data, position)
        records = header if isinstance(header, BatchProblem) else read_records(data, position)
        if isinstance(header, BatchProblem) or isinstance(records, BatchProblem):
            problem = header if isinstance(header, BatchProblem) else records
            assert isinstance(problem, BatchProblem)
            known = read_header(data, position)
            if skipped is None or isinstance(known, BatchProblem):
                raise UnreadableBatchError(f"{_where(fetched, known)}: {problem.reason}")
            skipped.add(known)
            position += known.size_bytes
            continue
        position += header.size_bytes
        if header.is_control or header.base_offset in fetched.aborted:
            continue
        if header.base_offset >= fetched.position and header.last_offset < end:
            yield from records
        else:
            yield from (record for record in records if fetched.position <= record.offset < end)


def _where(fetched: Fetched, header: BatchHeader | BatchProblem) -> str:
    partition = f"partition {fetched.partition} of topic {fetched.topic!r}"
    if isinstance(header, BatchProblem):
        return f"{partition} after offset {fetched.position}"
    return f"{partition}, offsets {header.base_offset} to {header.last_offset}"
