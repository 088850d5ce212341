"""What lies in a partition's log for a queue to deliver: from its cursors on, and the messages of its deliveries.

Reads whole batches through the partition's shell, as every reader does, and keeps them in the node's `BatchCache`.
What is not in memory, and what is large to decode, is done in a thread; the machine is asked afterwards, and whatever
became stale meanwhile it does not use.

Every batch is checked before it is cut apart: no client of a queue sees a checksum. Damaged batches are stepped over,
as holes are. Nobody who receives from a queue could ask for what comes after them, and the log, the metrics and `topic
describe` tell of the damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

import msgspec

from penstock.broker.partition.read import PartitionRead, ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.batch import BatchCache, Place, QueueBatch, is_aborted
from penstock.broker.queue.lane_look import LaneLook
from penstock.broker.queue.lanes import LaneIndex
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.commands import Found
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.values import NO_KEY, Ordering, Range
from penstock.storage.segment.damage_search import are_whole

READ_BYTES: Final = 1024 * 1024
# Messages of other lanes lie scattered: what is read beside them is opened for nothing.
LANE_READ_BYTES: Final = 256 * 1024
# Decompressing and cutting apart more than this would hold the loop for a millisecond.
LOOP_BYTES_MAX: Final = 64 * 1024
# With ordering by key one receive looks at no more messages: their hashes become part of the journal.
KEYED_LOOK_MAX: Final = 1_000
# One look sees no more, so that it neither holds the loop nor fills the memory: thousands of small batches, or large
# ones. A receive gets fewer messages then than it asked for.
LOOK_BATCHES_MAX: Final = 2_000
LOOK_BYTES_MAX: Final = 16 * 1024 * 1024
# Damaged places one after the other: after so many the next look goes on.
DAMAGES_MAX: Final = 100
# A read that finds only emptied batches leads to another one, each in its segment.
COLD_READS_MAX: Final = 100

Result = TypeVar("Result")


class Sight(msgspec.Struct, frozen=True):
    """What a look from the cursors saw."""

    found: tuple[Found, ...]
    batches: tuple[QueueBatch, ...]

    @property
    def is_empty(self) -> bool:
        return not self.batches


class _Reading:
    """A read that is under way, and who waits for what it brings."""

    __slots__ = ("_waiting", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def end(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


class QueueReader:
    def __init__(
        self,
        partition: PartitionShell,
        topic_id: bytes,
        cache: BatchCache,
        readers: Executor,
        *,
        lanes: LaneIndex | None = None,
    ) -> None:
        """Without an index, lanes are seen only where the default one looks."""
        self.lanes = lanes
        self._partition = partition
        # By flavour.
        self._places = {flavour: Place(topic_id, partition.index, flavour) for flavour in (False, True)}
        self._cache = cache
        self._readers = readers
        self._generation = partition.log.generation
        # By flavour, what is being read.
        self._readings: dict[bool, _Reading] = {}

    def glance(self, cursors: Sequence[tuple[int, int]], count: int, *, is_committed_only: bool) -> Sight | None:
        """What `look` comes to nearly always, where keys have no order: one lane, a batch at hand that has enough of
        it, and nothing else behind it. None: it takes a look."""
        lane, cursor = cursors[0]
        if len(cursors) > 1 or lane != DEFAULT_LANE or cursor < self._partition.log_start:
            return None
        batch = self._find(self._places[is_committed_only], cursor)
        if batch is None or not batch.is_plain or batch.next_offset - cursor < count:
            return None
        upto, lanes = batch.next_offset, self.lanes
        if lanes is not None:
            end = self._partition.last_stable_offset if is_committed_only else self._partition.readable_end
            if (upto < end and not lanes.knows(cursor)) or lanes.lanes_from(upto):
                return None
        return Sight((Found(DEFAULT_LANE, cursor, upto, ((cursor, upto - 1),)),), (batch,))

    async def look(
        self,
        cursors: Sequence[tuple[int, int]],
        count: int,
        *,
        ordering: Ordering,
        is_committed_only: bool,
        bytes_max: int = LOOK_BYTES_MAX,
    ) -> Sight | ReadProblem:
        """About `count` messages from each lane's cursor on, and whatever unknown lanes have where the default one
        looks: a message that its cursor passes unnoticed would be lost."""
        known = dict(cursors)
        cursor = known.setdefault(DEFAULT_LANE, 0)
        elsewhere = () if ordering is Ordering.KEY else [lane for lane in known if lane != DEFAULT_LANE]
        batches = await self._scan(cursor, count, is_committed_only, bytes_max, elsewhere)
        if isinstance(batches, ReadProblem):
            return batches
        if ordering is Ordering.KEY:
            found = await self._by_key(batches, cursor) if batches else ()
            return Sight(found, tuple(batches))
        look = LaneLook(
            self.lanes,
            batches,
            known,
            log_start=self._partition.log_start,
            end=self._partition.last_stable_offset if is_committed_only else self._partition.readable_end,
            bytes_max=bytes_max,
            batch_at=partial(self.batch_at, is_committed_only=is_committed_only, bytes_max=LANE_READ_BYTES),
        )
        if self.lanes is not None and look.needs_index:
            await self.lanes.want(look.since)
        return Sight(await look.find(count), (*batches, *look.opened))

    async def _scan(
        self, offset: int, count: int, is_committed_only: bool, bytes_max: int, elsewhere: Sequence[int]
    ) -> list[QueueBatch] | ReadProblem:
        """Batches from `offset` on with `count` messages of all lanes but those `elsewhere`."""
        offset = max(offset, self._partition.log_start)
        batches: list[QueueBatch] = []
        seen = size_bytes = 0
        while seen < count and len(batches) < LOOK_BATCHES_MAX and size_bytes < bytes_max:
            batch = await self.batch_at(offset, is_committed_only=is_committed_only)
            if isinstance(batch, ReadProblem):
                return batch
            if batch is None or (batches and size_bytes + len(batch.raw) > bytes_max):
                break
            batches.append(batch)
            size_bytes += len(batch.raw)
            for lane, ranges in batch.lanes.items():
                if lane not in elsewhere:
                    seen += sum(last - max(first, offset) + 1 for first, last in ranges if last >= offset)
            offset = batch.next_offset
        return batches

    async def _by_key(self, batches: list[QueueBatch], cursor: int) -> tuple[Found, ...]:
        ranges: list[Range] = []
        keys: list[int] = []
        expiries: list[tuple[int, int]] = []
        upto = cursor
        for batch in batches:
            await self._decode(batch)
            expiries += [entry for entry in batch.expiries if entry[0] >= cursor]
            if batch.problem is not None and batch.base_offset >= cursor and len(keys) < KEYED_LOOK_MAX:
                ranges.append((batch.base_offset, batch.base_offset))
                keys.append(NO_KEY)
            for record, key in zip(batch.records, batch.keys, strict=True):
                if record.offset >= cursor and len(keys) < KEYED_LOOK_MAX:
                    ranges.append((record.offset, record.offset))
                    keys.append(key)
                    upto = record.offset + 1
            if len(keys) >= KEYED_LOOK_MAX:
                break
            upto = batch.next_offset
        known = tuple(entry for entry in expiries if entry[0] < upto)
        return (Found(DEFAULT_LANE, cursor, upto, tuple(ranges), tuple(keys), known),)

    async def messages(self, first: int, last: int, *, is_committed_only: bool) -> list[StoredRecord] | ReadProblem:
        """Those of a range that are still there."""
        offset = max(first, self._partition.log_start)
        place = self._places[is_committed_only]
        found: list[StoredRecord] = []
        while offset <= last:
            batch = self._find(place, offset) or await self.batch_at(offset, is_committed_only=is_committed_only)
            if isinstance(batch, ReadProblem):
                return batch
            if batch is None:
                break
            if batch.size_opened > LOOP_BYTES_MAX and not batch.is_prepared(offset, last):
                await self._in_thread(partial(batch.prepare, offset, last))
            found += batch.between(offset, last)
            offset = batch.next_offset
        return found

    async def unreadable(self, first: int, last: int, *, is_committed_only: bool) -> list[tuple[int, str]]:
        """The batches of a range that nobody can read: the offset that stands for each, and why."""
        offset = max(first, self._partition.log_start)
        found: list[tuple[int, str]] = []
        while offset <= last:
            batch = await self.batch_at(offset, is_committed_only=is_committed_only)
            if not isinstance(batch, QueueBatch):
                break
            if batch.problem is not None and first <= batch.base_offset <= last:
                found.append((batch.base_offset, batch.problem))
            offset = batch.next_offset
        return found

    async def batch_at(
        self, offset: int, *, is_committed_only: bool, bytes_max: int = READ_BYTES
    ) -> QueueBatch | ReadProblem | None:
        """The batch that holds `offset`, or the next one after it; None: there is no more yet."""
        place = self._places[is_committed_only]
        known = self._find(place, offset)
        if known is not None:
            return known
        # Whoever else wants what is being read waits for it: the same batches need not be cut apart twice.
        while (reading := self._readings.get(is_committed_only)) is not None and reading.offset <= offset:
            await reading.wait()
            known = self._cache.find(place, offset)
            if known is not None:
                return known
            if reading.offset == offset:
                break
        reading = self._readings[is_committed_only] = _Reading(offset)
        try:
            return await self._read_batches(place, offset, bytes_max)
        finally:
            reading.end()
            if self._readings.get(is_committed_only) is reading:
                del self._readings[is_committed_only]

    def _find(self, place: Place, offset: int) -> QueueBatch | None:
        """The batch that holds it, if it is at hand."""
        if self._generation != self._partition.log.generation:
            self._generation = self._partition.log.generation
            self.forget()
        return self._cache.find(place, offset)

    async def _read_batches(self, place: Place, offset: int, bytes_max: int) -> QueueBatch | ReadProblem | None:
        read = await self._read_whole(offset, place.is_committed_only, bytes_max)
        for _ in range(DAMAGES_MAX):
            end = self._partition.damage_end(offset) if read.problem is ReadProblem.DAMAGED else None
            if end is None:
                break
            offset = end
            read = await self._read_whole(offset, place.is_committed_only, bytes_max)
        if read.problem is not None:
            return read.problem
        if not read.size_bytes:
            return None
        batches = await self._in_thread(lambda: list(_cut(read))) if _is_long(read) else list(_cut(read))
        for batch in batches:
            self._cache.put(place, batch)
        return next((batch for batch in batches if batch.next_offset > offset), None)

    def forget(self) -> None:
        """The log was cut or read again, or is gone: what was there may be there no longer."""
        for place in self._places.values():
            self._cache.forget(place)

    async def _read_whole(self, offset: int, is_committed_only: bool, bytes_max: int) -> PartitionRead:
        partition = self._partition
        read = partition.read(offset, bytes_max=bytes_max, is_committed_only=is_committed_only)
        # What comes from the disk was checked by the thread that read it.
        was_cold = read.cold is not None
        read = await self._load(read, bytes_max)
        if was_cold or await self._is_whole(read):
            return read
        read = partition.read_from_disk(offset, bytes_max=bytes_max, is_committed_only=is_committed_only)
        return await self._load(read, bytes_max)

    async def _is_whole(self, read: PartitionRead) -> bool:
        if read.size_bytes <= LOOP_BYTES_MAX:
            return are_whole(read.records)
        return await self._in_thread(partial(are_whole, read.records))

    async def _load(self, read: PartitionRead, bytes_max: int) -> PartitionRead:
        for _ in range(COLD_READS_MAX):
            if read.cold is None:
                return read
            loaded = await self._in_thread(read.cold.load)
            read = self._partition.take_loaded(read, loaded, bytes_max=bytes_max)
        return PartitionRead()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def _decode(self, batch: QueueBatch) -> None:
        if not batch.is_decoded and batch.size_opened > LOOP_BYTES_MAX:
            await self._in_thread(lambda: batch.records)


def _is_long(read: PartitionRead) -> bool:
    """More than the loop should do at once. How much is in a compressed batch is known once it is open, and a small
    one may hold very much."""
    return read.size_bytes > LOOP_BYTES_MAX or any(header.codec for _, header in walk_headers(memoryview(read.records)))


def _cut(read: PartitionRead) -> Iterator[QueueBatch]:
    data = memoryview(read.records)
    for position, header in walk_headers(data):
        raw = data[position : position + header.size_bytes]
        yield QueueBatch(header, raw, is_left_out=is_aborted(header, read.aborted))
