"""The records of fetched batches, one by one, trimmed to what was asked for.

A batch may begin before the position that was fetched and end after the last wanted offset. Control batches
(the markers of transactions) are nobody's messages and are left out, as are those that the consumer found aborted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.client.consumer import Fetched
from penstock.client.errors import ClientError
from penstock.codec.record_batch import BatchProblem, check_batch
from penstock.codec.records import StoredRecord, read_records

NO_END: Final = 0x7FFF_FFFF_FFFF_FFFF


class UnreadableBatchError(ClientError):
    """A batch came that is damaged, or that this client cannot open."""


def rows_of(fetched: Fetched, *, end: int = NO_END) -> Iterator[StoredRecord]:
    """Records from the fetched position on, below `end`; every checksum is looked at."""
    data, position = fetched.data, 0
    while position < len(data):
        header = check_batch(data, position)
        records = header if isinstance(header, BatchProblem) else read_records(data, position)
        if isinstance(header, BatchProblem) or isinstance(records, BatchProblem):
            problem = header if isinstance(header, BatchProblem) else records
            assert isinstance(problem, BatchProblem)
            where = f"partition {fetched.partition} of topic {fetched.topic!r} after offset {fetched.position}"
            raise UnreadableBatchError(f"{where}: {problem.reason}")
        position += header.size_bytes
        if header.is_control or header.base_offset in fetched.aborted:
            continue
        if header.base_offset >= fetched.position and header.last_offset < end:
            yield from records
        else:
            yield from (record for record in records if fetched.position <= record.offset < end)
