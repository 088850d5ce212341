"""Checksums of a replica's log, for whoever compares it with the others.

    log              over the batches that begin in a range, byte for byte: replicas hold the same ones
    compacted log    over the last record of each key, if it lies in the range: replicas compact by themselves, and what
                     that leaves of a key is the same whoever has done it. Without tombstones, which go some time after,
                     and without what was aborted

Read and summed up in threads, a portion at a time, so that others who wait for a thread get their turn.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from penstock.base.checksum import crc32c
from penstock.codec.batch.header import BatchHeader, BatchProblem, walk_headers
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.domain.replication.exchange import DescribeReplica, RangeChecksum
from penstock.storage.errors import Damage
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.read_plan import ReadPlan

# Of one read.
PORTION_BYTES: Final = 1024 * 1024
# Of a compacted log, remembered while it is read: about 200 bytes each.
KEYS_MAX: Final = 1_000_000

_KEY_AND_OFFSET: Final = struct.Struct(">qqq")
_MASK: Final = 0xFFFF_FFFF


class NotSummedError(Exception):
    """Why there are no checksums."""


async def checksums_of(log: PartitionLog, asked: DescribeReplica, readers: Executor) -> list[RangeChecksum]:
    """Below the watermark. NotSummedError where it cannot be read."""
    start, end = max(asked.from_offset, log.log_start), min(asked.to_offset, log.readable_end)
    sums = _LastOfKeys(log, end) if log.config.compaction is not None else _Bytes(start, asked.step_offsets)
    offset = start
    while offset < end:
        plan = log.plan_read(offset, bytes_max=PORTION_BYTES, up_to=log.readable_end)
        if plan is None:
            break
        if not isinstance(plan, ReadPlan):
            raise NotSummedError(f"offset {offset} cannot be read")
        next_offset = await asyncio.get_running_loop().run_in_executor(readers, _read, plan, sums.add, start, end)
        if isinstance(next_offset, Damage):
            raise NotSummedError(next_offset.describe())
        offset = next_offset
    step = asked.step_offsets
    bounds = [(each, min(each + step, end)) for each in range(start, end, step)]
    found = await asyncio.get_running_loop().run_in_executor(readers, sums.by_range, start, step)
    return [RangeChecksum(*each, found.get(number, 0)) for number, each in enumerate(bounds)]


Add = Callable[[memoryview, int, BatchHeader], None]


def _read(plan: ReadPlan, add: Add, start: int, end: int) -> int | Damage:
    """Blocking. Where the next portion begins."""
    loaded = plan.load()
    if isinstance(loaded, Damage):
        return loaded
    next_offset = end
    for place, header in walk_headers(loaded):
        if start <= header.base_offset < end:
            add(loaded, place, header)
        next_offset = header.next_offset
    return next_offset


class _Bytes:
    def __init__(self, start: int, step: int) -> None:
        self._start = start
        self._step = step
        self._sums: dict[int, int] = {}

    def add(self, loaded: memoryview, place: int, header: BatchHeader) -> None:
        number = (header.base_offset - self._start) // self._step
        batch = loaded[place : place + header.size_bytes]
        self._sums[number] = crc32c(batch, self._sums.get(number, 0))

    def by_range(self, _start: int, _step: int) -> dict[int, int]:
        return self._sums


class _LastOfKeys:
    def __init__(self, log: PartitionLog, end: int) -> None:
        self._aborted = log.transactions.aborted
        self._end = end
        # By the hash of the key: where its last record lies, and what that is; None: it is a tombstone.
        self._last: dict[int, tuple[int, int] | None] = {}

    def add(self, loaded: memoryview, place: int, header: BatchHeader) -> None:
        if header.is_control or not header.record_count or self._is_aborted(header):
            return
        records = read_records(loaded, place)
        if isinstance(records, BatchProblem):
            raise NotSummedError(f"the batch at offset {header.base_offset} cannot be read: {records.reason}")
        for record in records:
            self._last[_hash(record.key)] = None if record.value is None else (record.offset, _sum_of(record))
        if len(self._last) > KEYS_MAX:
            raise NotSummedError(f"it has more than {KEYS_MAX:,} keys: so many are not compared")

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        found = self._aborted.between(header.base_offset, header.next_offset)
        return any(self._covers(each, header) for each in found)

    def _covers(self, aborted: AbortedTransaction, header: BatchHeader) -> bool:
        # A marker that others may not know of yet does not count.
        is_known = aborted.last_offset < self._end
        return is_known and aborted.producer_id == header.producer_id and aborted.first_offset <= header.base_offset

    def by_range(self, start: int, step: int) -> dict[int, int]:
        sums: dict[int, int] = {}
        for key, last in self._last.items():
            if last is not None:
                offset, content = last
                number = (offset - start) // step
                # A sum, not a chain: the order of keys is nobody's.
                sums[number] = (sums.get(number, 0) + crc32c(_KEY_AND_OFFSET.pack(key, offset, content))) & _MASK
        return sums


def _hash(key: bytes | None) -> int:
    return int.from_bytes(hashlib.blake2b(key or b"", digest_size=8).digest(), "big", signed=True)


def _sum_of(record: StoredRecord) -> int:
    return crc32c(record.value or b"", crc32c(b"%d" % record.timestamp_ms))
