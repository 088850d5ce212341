"""A message where it lies: the record, its batch, its transaction. Little is read: one batch, and on the way to a
transaction's end the batches behind it, up to a bound."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final

import msgspec

from penstock.broker.machine.portions import Batches, UnreadableRecordsError, read_slices, rows_of
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.check import check_records
from penstock.codec.batch.control import read_marker
from penstock.codec.batch.header import BatchBytes, BatchHeader, BatchProblem, walk_headers
from penstock.codec.batch.records import StoredRecord, read_payload, read_records
from penstock.codec.batch.walk import record_at
from penstock.domain.trace.events import PlaceState, TransactionState
from penstock.storage.errors import Damage, OutOfRange
from penstock.storage.log.read_plan import ReadPlan

# One batch is read whatever its size.
_ONE_BATCH: Final = 1
# How far behind the message a commit's marker is looked for: a second of a busy log. That of an abort is known.
MARKER_BYTES_MAX: Final = 64 * 1024 * 1024
# No producer puts more messages into one batch.
HOLES_MAX: Final = 1_000_000


class Found(msgspec.Struct, frozen=True):
    """What is at an offset of a topic's log."""

    state: PlaceState
    header: BatchHeader | None = None
    record: StoredRecord | None = None


class Transaction(msgspec.Struct, frozen=True):
    state: TransactionState
    # By its marker; None: not under way to its end, or too far behind.
    end_ms: int | None = None


async def read_place(partition: PartitionShell, offset: int, readers: Executor) -> Found:
    log = partition.log
    if offset < log.log_start:
        return Found(PlaceState.DELETED)
    plan = log.plan_read(offset, bytes_max=_ONE_BATCH)
    if plan is None or (isinstance(plan, OutOfRange) and offset >= log.log_end):
        return Found(PlaceState.AHEAD)
    if not isinstance(plan, ReadPlan):
        return Found(PlaceState.UNREADABLE)
    return await asyncio.get_running_loop().run_in_executor(readers, partial(_read, plan, offset))


def _read(plan: ReadPlan, offset: int) -> Found:
    loaded = plan.load()
    if isinstance(loaded, Damage):
        return Found(PlaceState.UNREADABLE)
    for position, header in walk_headers(loaded):
        if not header.base_offset <= offset < header.next_offset:
            continue
        if header.is_control:
            return Found(PlaceState.CONTROL, header)
        batch = loaded[position : position + header.size_bytes]
        if not is_readable(batch, header):
            return Found(PlaceState.UNREADABLE, header)
        record = record_at(batch, header, offset)
        if isinstance(record, BatchProblem):
            return Found(PlaceState.UNREADABLE, header)
        return Found(PlaceState.HOLE if record is None else PlaceState.STORED, header, record)
    return Found(PlaceState.HOLE)


def is_readable(batch: BatchBytes, header: BatchHeader) -> bool:
    """All of it: readers take a batch as a whole, so a record that is well is of no use among others that are not."""
    if header.record_count <= header.last_offset_delta:
        return not isinstance(read_records(batch), BatchProblem)
    payload = read_payload(batch, 0, header)
    return not isinstance(payload, BatchProblem) and check_records(header, bytes(payload), len(payload)) is None


async def transaction_of(partition: PartitionShell, header: BatchHeader, readers: Executor) -> Transaction:
    """Of a batch in the log: whether the transaction it came in has ended, how and when."""
    if not header.is_transactional:
        return Transaction(TransactionState.NONE)
    log = partition.log
    first_offset = log.transactions.ongoing.get(header.producer_id)
    if first_offset is not None and first_offset <= header.base_offset:
        return Transaction(TransactionState.OPEN)
    aborted = [
        each
        for each in log.transactions.aborted.between(header.base_offset, header.next_offset)
        if each.producer_id == header.producer_id
    ]
    if aborted:
        marker = await _find_marker(partition, header, aborted[0].last_offset, readers)
        return Transaction(TransactionState.ABORTED, marker)
    return Transaction(TransactionState.COMMITTED, await _find_marker(partition, header, header.next_offset, readers))


async def _find_marker(partition: PartitionShell, wanted: BatchHeader, offset: int, readers: Executor) -> int | None:
    """When the next marker of the producer was written, from that offset on."""
    look = partial(_marker_in, wanted)
    async for found in read_slices(partition, offset, look, readers=readers, bytes_max=MARKER_BYTES_MAX):
        if found.seen is not None:
            return found.seen
    return None


def _marker_in(wanted: BatchHeader, loaded: memoryview, batches: Batches) -> int | None:
    for position, header in batches:
        if header.is_control and header.producer_id == wanted.producer_id:
            marker = read_marker(loaded, position)
            if marker is not None and not isinstance(marker, BatchProblem):
                return header.max_timestamp
    return None


async def find_sequence(
    partition: PartitionShell, offset: int, producer_id: int, sequence: int, readers: Executor
) -> int | None:
    """Where a producer's record of that sequence number is, from an offset on and not far behind it."""
    look = partial(_sequence_in, producer_id, sequence)
    async for found in read_slices(partition, offset, look, readers=readers, bytes_max=MARKER_BYTES_MAX):
        if found.seen is not None:
            return found.seen
    return None


def _sequence_in(producer_id: int, sequence: int, _loaded: memoryview, batches: Batches) -> int | None:
    for _position, header in batches:
        if header.producer_id == producer_id and not header.is_control:
            index = (sequence - header.base_sequence) % (1 << 31)
            if index <= header.last_offset_delta:
                return header.base_offset + index
    return None


async def count_holes(partition: PartitionShell, start: int, end: int, readers: Executor) -> int | None:
    """Offsets from `start` up to, without, `end` that hold no record: of one batch of a producer, not more. None: they
    cannot be read."""
    holes, upto = end - start, start
    if holes > HOLES_MAX:
        return None
    look = partial(_records_between, start, end)
    async for found in read_slices(partition, start, look, readers=readers, bytes_max=MARKER_BYTES_MAX, end=end):
        if found.seen is None:
            return None
        holes, upto = holes - found.seen, found.next_offset
    return holes if upto >= end else None


def _records_between(start: int, end: int, loaded: memoryview, batches: Batches) -> int | None:
    try:
        return sum(start <= offset < end for offset, _key, _value in rows_of(loaded, batches))
    except UnreadableRecordsError:
        return None
