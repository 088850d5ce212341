"""Messages of a key between two times: read from the log, slice by slice in a thread, up to a bound."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final

import msgspec

from penstock.broker.machine.portions import Batches, read_slices
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.header import BatchProblem
from penstock.codec.batch.records import read_records
from penstock.domain.partitioner import partition_for_key
from penstock.domain.trace.events import Place
from penstock.domain.trace.words import moment
from penstock.storage.log.time_lookup import TimestampOffset

# A second or two of reading; whoever wants more says a shorter time.
SEARCH_BYTES_MAX: Final = 256 * 1024 * 1024
FOUND_MAX: Final = 10


class Findings(msgspec.Struct, frozen=True):
    places: tuple[Place, ...]
    notes: tuple[str, ...] = ()


class KeySearch:
    def __init__(self, topic: ServedTopic, key: bytes, *, since_ms: int, until_ms: int, readers: Executor) -> None:
        self._topic = topic
        self._key = key
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._readers = readers
        self._left_bytes = SEARCH_BYTES_MAX
        self._found: list[Place] = []
        self._notes: list[str] = []

    async def run(self) -> Findings:
        """The partition that the key belongs to first: another one only if its producer thinks otherwise."""
        own = partition_for_key(self._key, self._topic.partition_count)
        for partition in sorted(self._topic.shells, key=lambda each: (each.index != own, each.index)):
            if not await self._search(partition):
                break
        self._found.sort(key=lambda place: (place.partition, place.offset))
        return Findings(tuple(self._found), tuple(self._notes))

    async def _search(self, partition: PartitionShell) -> bool:
        """False: enough."""
        offset = await self._offset_at(partition, self._since_ms)
        end = await self._offset_at(partition, self._until_ms + 1)
        end = partition.readable_end if end is None else end
        while offset is not None and offset < end:
            if self._left_bytes <= 0:
                self._notes.append(
                    f"{SEARCH_BYTES_MAX >> 20} MiB were searched, up to offset {offset} of partition "
                    f"{partition.index}: ask for a shorter time to see the rest"
                )
                return False
            damage_end = partition.damage_end(offset)
            if damage_end is not None:
                name = f"{partition.topic}-{partition.index}"
                self._notes.append(f"offsets {offset} to {damage_end - 1} of {name} are damaged, and were not searched")
                offset = damage_end
                continue
            begun, look = offset, partial(self._look, offset)
            async for part in read_slices(
                partition, offset, look, readers=self._readers, bytes_max=self._left_bytes, end=end
            ):
                self._left_bytes -= part.size_bytes
                offset = part.next_offset
                if not self._take(partition, part.seen):
                    return False
            if offset == begun:
                return True
        return True

    def _take(self, partition: PartitionShell, offsets: list[int]) -> bool:
        """False: enough."""
        for found in offsets:
            if len(self._found) == FOUND_MAX:
                self._notes.append(f"the first {FOUND_MAX} are shown; there are more from {self._when()} on")
                return False
            self._found.append(Place(partition.topic, partition.index, found))
        return True

    def _when(self) -> str:
        return moment(self._since_ms)

    async def _offset_at(self, partition: PartitionShell, at_ms: int) -> int | None:
        found = await asyncio.to_thread(partition.offset_for_timestamp, at_ms)
        return found.offset if isinstance(found, TimestampOffset) else None

    def _look(self, begin: int, loaded: memoryview, batches: Batches) -> list[int]:
        """In a thread: offsets of messages of the key, from `begin` on."""
        found: list[int] = []
        plain = bytes(loaded)
        for position, header in batches:
            is_plain = not header.codec and self._key not in plain[position : position + header.size_bytes]
            if header.is_control or is_plain or header.max_timestamp < self._since_ms:
                continue
            records = read_records(loaded, position)
            if not isinstance(records, BatchProblem):
                found += [
                    record.offset
                    for record in records
                    if record.key == self._key
                    and record.offset >= begin
                    and self._since_ms <= record.timestamp_ms <= self._until_ms
                ]
        return found
