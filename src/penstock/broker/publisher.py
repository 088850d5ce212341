"""Messages from doors that speak of single messages: put into batches, placed by key, acknowledged when durable.

`place` writes at once and `settle` waits for the disk, so that a caller can do something between looking and writing
that nobody comes in between of. Very many messages are written batch by batch, and others have their turn in between.
Messages that are due later go into their partition's schedule instead of its log.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.long_work import LongWork, Steps, all_at_once
from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal
from penstock.broker.relay.asking import Relay
from penstock.broker.schedule.node import Delayed as Waiting
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import DelayedMessage, NotScheduled
from penstock.broker.sending import (
    Delayed,
    NotPublished,
    Outgoing,
    Published,
    PublishOutcome,
    send_everywhere,
    size_of,
)
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.partitioner import partition_for_key
from penstock.domain.security.caller import Caller

__all__ = ["Delayed", "NotPublished", "Outgoing", "Placed", "PublishOutcome", "Published", "Publisher"]

# What a batch needs beside its records, generously.
_BATCH_BYTES: Final = 100
# A batch of so many bytes is built in a few milliseconds, whatever its records are made of.
_STEP_BYTES: Final = 128 * 1024
# What its sender is told of a batch that was written and is lost: the same as of one that was not.
_REFUSALS: Final = {
    Loss.DISK: Refusal.OFFLINE,
    Loss.LEADERSHIP: Refusal.NOT_LEADER,
    Loss.TIMEOUT: Refusal.TIMED_OUT,
    Loss.REPLICAS: Refusal.NOT_ENOUGH_REPLICAS,
}
# As long as Kafka's producers wait by default: then the sender is told that nobody knows.
_ACKS: Final = Acks(timeout_ms=30_000)


class Placed(msgspec.Struct, frozen=True):
    """Written; kept, unless there is a commitment to wait for."""

    outcome: PublishOutcome
    commitment: Commitment | None = None


class Publisher:
    def __init__(self, schedules: NodeSchedules, clock: Clock) -> None:
        self._schedules = schedules
        # Messages without a key go round, a request at a time.
        self._turn = 0
        self._work = LongWork(clock.monotonic_seconds)
        # By which partitions that other nodes lead are reached; None: this node talks to no other.
        self.relay: Relay | None = None

    def publish(
        self, topic: ServedTopic, messages: Sequence[Outgoing], *, by: Caller | None = None
    ) -> Coroutine[object, object, list[PublishOutcome]]:
        """One outcome for each, durable, whoever leads their partitions."""
        if self.relay is None or topic.is_whole:
            return self.publish_here(topic, messages)
        return self._publish_everywhere(self.relay, topic, messages, by)

    async def _publish_everywhere(
        self, relay: Relay, topic: ServedTopic, messages: Sequence[Outgoing], by: Caller | None
    ) -> list[PublishOutcome]:
        self._turn += 1
        turn = self._turn
        placed = [
            msgspec.structs.replace(each, partition=self._partition_of(topic, each.record, each.partition, turn))
            for each in messages
        ]
        return await send_everywhere(relay, topic, placed, partial(self.publish_here, topic), by=by)

    async def publish_here(self, topic: ServedTopic, messages: Sequence[Outgoing]) -> list[PublishOutcome]:
        """The same, to partitions that this node leads."""
        delayed = [place for place, message in enumerate(messages) if message.due_ms is not None]
        if not delayed:
            return await self.settle(await self._work.run(self._place_in_steps(topic, messages)))
        prompt = [place for place, message in enumerate(messages) if message.due_ms is None]
        placed = await self._work.run(self._place_in_steps(topic, [messages[place] for place in prompt]))
        later = await self.schedule(topic, [messages[place] for place in delayed])
        by_place = dict(zip(prompt, await self.settle(placed), strict=True))
        by_place.update(zip(delayed, later, strict=True))
        return [by_place[place] for place in range(len(messages))]

    def place(self, topic: ServedTopic, messages: Sequence[Outgoing]) -> list[Placed]:
        """Of messages that are due now, all of them at this moment."""
        return all_at_once(self._place_in_steps(topic, messages))

    def _place_in_steps(self, topic: ServedTopic, messages: Sequence[Outgoing]) -> Steps[list[Placed]]:
        self._turn += 1
        turn = self._turn
        by_partition: dict[int, list[int]] = {}
        for place, message in enumerate(messages):
            partition = self._partition_of(topic, message.record, message.partition, turn)
            by_partition.setdefault(partition, []).append(place)
        records = [message.record for message in messages]
        placed: list[Placed | None] = [None] * len(records)
        for partition, places in by_partition.items():
            shell = topic.find(partition)
            if isinstance(shell, NotHere):
                for place in places:
                    placed[place] = _placed(partition, shell.refusal(), 0)
                continue
            for chunk in _batches(records, places, min(topic.config.max_message_bytes, _STEP_BYTES)):
                outcome = shell.append(memoryview(build_batch([records[place] for place in chunk])), acks=_ACKS)
                for number, place in enumerate(chunk):
                    placed[place] = _placed(partition, outcome, number)
                yield
        return [each for each in placed if each is not None]

    async def schedule(self, topic: ServedTopic, messages: Sequence[Outgoing]) -> list[PublishOutcome]:
        """Of messages that are due later."""
        self._turn += 1
        partitions = [self.partition_of(topic, message.record, message.partition) for message in messages]
        outcomes = await self._schedules.schedule(topic, [_delayed(message) for message in messages], partitions)
        return [_outcome(outcome, message) for outcome, message in zip(outcomes, messages, strict=True)]

    def partition_of(self, topic: ServedTopic, record: Record, wanted: int | None) -> int:
        return self._partition_of(topic, record, wanted, self._turn)

    def _partition_of(self, topic: ServedTopic, record: Record, wanted: int | None, turn: int) -> int:
        if wanted is not None:
            return wanted
        if record.key is not None:
            return partition_for_key(record.key, topic.partition_count)
        return _next_led(topic, turn)

    async def settle(self, placed: Sequence[Placed]) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        pace = self._work.pace()
        for each in placed:
            await pace.rest_if_due()
            commitment = each.commitment
            if commitment is not None and not await commitment.kept():
                outcomes.append(_lost(commitment))
            else:
                outcomes.append(each.outcome)
        return outcomes


def _next_led(topic: ServedTopic, turn: int) -> int:
    """Of those that this node leads, if it leads any: nobody asked for a certain one."""
    wanted = turn % topic.partition_count
    if not isinstance(topic.find(wanted), NotHere):
        return wanted
    led = topic.led()
    return led[turn % len(led)].index if led else wanted


def _placed(partition: int, outcome: object, number: int) -> Placed:
    if isinstance(outcome, Appended):
        return Placed(Published(partition, outcome.base_offset + number), outcome.commitment)
    assert isinstance(outcome, AppendRefused), "no batch of ours is part of a transaction"
    return Placed(NotPublished(outcome.refusal, outcome.reason))


def _lost(commitment: Commitment) -> NotPublished:
    assert commitment.loss is not None
    return NotPublished(_REFUSALS[commitment.loss], commitment.loss.value)


def _delayed(message: Outgoing) -> DelayedMessage:
    assert message.due_ms is not None
    record = message.record
    return DelayedMessage(message.due_ms, record.key, record.value, record.headers, record.timestamp_ms)


def _outcome(outcome: Waiting | NotScheduled, message: Outgoing) -> PublishOutcome:
    if isinstance(outcome, NotScheduled):
        return NotPublished(outcome.refusal, outcome.reason)
    assert message.due_ms is not None
    return Delayed(outcome.partition, outcome.origin, outcome.message_id, message.due_ms)


def _batches(records: Sequence[Record], places: Sequence[int], bytes_max: int) -> Iterator[list[int]]:
    """As few as fit; one record that is too large alone goes alone, and only that one is refused."""
    chunk: list[int] = []
    size_bytes = _BATCH_BYTES
    for place in places:
        record_bytes = size_of(records[place])
        if chunk and size_bytes + record_bytes > bytes_max:
            yield chunk
            chunk, size_bytes = [], _BATCH_BYTES
        chunk.append(place)
        size_bytes += record_bytes
    if chunk:
        yield chunk
