"""Messages from doors that speak of single messages: put into batches, placed by key, acknowledged when durable.

`place` writes at once and `settle` waits for the disk, so that a caller can do something between looking and writing
that nobody comes in between of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.broker.append_outcome import Appended, AppendRefused, Refusal
from penstock.broker.partition_shell import PartitionShell
from penstock.broker.served_topic import ServedTopic
from penstock.codec.records import Record, build_batch
from penstock.domain.partitioner import partition_for_key
from penstock.storage.group_commit import Turn

# What a batch and a record of it need beside keys, values and headers, generously.
_BATCH_BYTES: Final = 100
_RECORD_BYTES: Final = 32
_HEADER_BYTES: Final = 8


class Published(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class NotPublished(msgspec.Struct, frozen=True):
    refusal: Refusal
    reason: str


PublishOutcome = Published | NotPublished


class Placed(msgspec.Struct, frozen=True):
    """Written, and not yet durable unless there is no turn to wait for."""

    outcome: PublishOutcome
    shell: PartitionShell | None = None
    turn: Turn | None = None


class Publisher:
    def __init__(self) -> None:
        # Messages without a key go round, a request at a time.
        self._turn = 0

    async def publish(
        self, topic: ServedTopic, records: Sequence[Record], partitions: Sequence[int | None]
    ) -> list[PublishOutcome]:
        """One outcome for each, durable. `partitions`: where a message must go; None leaves it to its key."""
        return await self.settle(self.place(topic, records, partitions))

    def place(self, topic: ServedTopic, records: Sequence[Record], partitions: Sequence[int | None]) -> list[Placed]:
        self._turn += 1
        by_partition: dict[int, list[int]] = {}
        for place, (record, wanted) in enumerate(zip(records, partitions, strict=True)):
            by_partition.setdefault(self.partition_of(topic, record, wanted), []).append(place)
        placed: list[Placed | None] = [None] * len(records)
        for partition, places in by_partition.items():
            shell = topic.partitions[partition]
            for chunk in _batches(records, places, topic.config.max_message_bytes):
                outcome = shell.append(memoryview(build_batch([records[place] for place in chunk])))
                for number, place in enumerate(chunk):
                    placed[place] = _placed(shell, outcome, number)
        return [each for each in placed if each is not None]

    def partition_of(self, topic: ServedTopic, record: Record, wanted: int | None) -> int:
        if wanted is not None:
            return wanted
        if record.key is not None:
            return partition_for_key(record.key, len(topic.partitions))
        return self._turn % len(topic.partitions)

    async def settle(self, placed: Sequence[Placed]) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        for each in placed:
            is_failed = each.turn is not None and each.shell is not None and each.shell.log in await each.turn.wait()
            failed = NotPublished(Refusal.OFFLINE, "the disk did not take the batch")
            outcomes.append(failed if is_failed else each.outcome)
        return outcomes


def _placed(shell: PartitionShell, outcome: object, number: int) -> Placed:
    if isinstance(outcome, Appended):
        return Placed(Published(shell.index, outcome.base_offset + number), shell, outcome.turn)
    assert isinstance(outcome, AppendRefused), "no batch of ours is part of a transaction"
    return Placed(NotPublished(outcome.refusal, outcome.reason))


def _batches(records: Sequence[Record], places: Sequence[int], bytes_max: int) -> Iterator[list[int]]:
    """As few as fit; one record that is too large alone goes alone, and only that one is refused."""
    chunk: list[int] = []
    size_bytes = _BATCH_BYTES
    for place in places:
        record_bytes = _size_of(records[place])
        if chunk and size_bytes + record_bytes > bytes_max:
            yield chunk
            chunk, size_bytes = [], _BATCH_BYTES
        chunk.append(place)
        size_bytes += record_bytes
    if chunk:
        yield chunk


def _size_of(record: Record) -> int:
    headers = sum(len(name) * 4 + len(value or b"") + _HEADER_BYTES for name, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers
