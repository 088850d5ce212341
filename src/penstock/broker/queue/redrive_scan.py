"""Looking through the queue of a dead-letter topic without taking anything: to show letters, and to count them.

On a dead-letter topic that nobody has redriven or purged yet there is no such queue: then everything is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.partition.read import ReadProblem
from penstock.broker.queue.delivery import NoSuchQueue, QueueDelivery
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.definition import DEAD_LETTER_SUFFIX, QueueName
from penstock.domain.queue.lanes import PRIORITY_HEADER, lane_of
from penstock.domain.queue.redrive import REDRIVE_GROUP, RedriveFilter
from penstock.domain.queue.values import HoldKind
from penstock.domain.topic_rules import is_internal


class PendingLetter(msgspec.Struct, frozen=True):
    partition: int
    record: StoredRecord
    # None: waits for somebody to take it.
    state: HoldKind | None


class DeadLetterTopic(msgspec.Struct, frozen=True):
    topic: str
    partition_count: int
    # Not redriven and not purged; holes of compaction and transactions count too where nobody has looked yet.
    pending_count: int
    # What is in the log, all told.
    stored_count: int
    # The queues whose dead letters come here.
    sources: tuple[QueueName, ...]


class UnreadableQueueError(Exception):
    """A partition of the queue cannot be read now."""


class DeadLetterScan:
    def __init__(self, queues: NodeQueues, delivery: QueueDelivery) -> None:
        self._queues = queues
        self._delivery = delivery

    async def topics(self) -> list[DeadLetterTopic]:
        """Those that a queue names for its dead letters, and those called like one."""
        sources = self._sources()
        names = [each.name for each in self._queues.broker.topics() if not is_internal(each.name)]
        wanted = [name for name in sorted(names) if name in sources or name.endswith(DEAD_LETTER_SUFFIX)]
        found = [await self.describe(name) for name in wanted]
        return [each for each in found if each is not None]

    def _sources(self) -> dict[str, list[QueueName]]:
        sources: dict[str, list[QueueName]] = {}
        for definition in self._queues.all():
            target = definition.options.dead_letters_of(definition.name.topic)
            if target is not None and definition.name.group != REDRIVE_GROUP:
                sources.setdefault(target, []).append(definition.name)
        return sources

    async def describe(self, topic: str, group: str = REDRIVE_GROUP) -> DeadLetterTopic | None:
        served = self._queues.broker.topic(topic)
        if served is None or is_internal(topic):
            return None
        stored = sum(partition.readable_end - partition.log_start for partition in served.shells)
        pending = await self.pending_count(QueueName(topic, group))
        return DeadLetterTopic(topic, served.partition_count, pending, stored, tuple(self._sources().get(topic, ())))

    async def pending_count(self, name: QueueName) -> int:
        totals = await self._delivery.totals(name)
        if isinstance(totals, NoSuchQueue):
            served = self._queues.broker.topic(name.topic)
            partitions = served.shells if served is not None else ()
            return sum(partition.readable_end - partition.log_start for partition in partitions)
        if isinstance(totals, QueueUnavailable):
            raise _unknown(totals)
        return totals.backlog_count + totals.waiting_count + totals.leased_count + totals.blocked_count

    async def letters(self, name: QueueName, only: RedriveFilter) -> AsyncIterator[PendingLetter]:
        """Those that are pending and fit, partition by partition in log order."""
        for shell in await self._queues.shells(name):
            async for letter in self._letters_of(shell, name, only):
                yield letter

    async def _letters_of(
        self, shell: QueueShell, name: QueueName, only: RedriveFilter
    ) -> AsyncIterator[PendingLetter]:
        definition = self._queues.get(name)
        queue = shell.queue(name.group) if definition is not None else None
        if definition is not None and not shell.is_loaded:
            raise _unknown(shell.unavailable)
        is_committed_only = definition is None or definition.options.is_committed_only
        offset = shell.partition.log_start if queue is None else max(queue.finished_below, shell.partition.log_start)
        end = shell.partition.readable_end
        while offset < end:
            batch = await shell.reader.batch_at(offset, is_committed_only=is_committed_only)
            if batch is None:
                return
            if isinstance(batch, ReadProblem):
                raise _unreadable(shell, batch)
            # Decoded in a thread where that takes long.
            found = await shell.reader.messages(offset, batch.next_offset - 1, is_committed_only=is_committed_only)
            if isinstance(found, ReadProblem):
                raise _unreadable(shell, found)
            for record in found:
                view = queue.look_up(record.offset) if queue is not None else None
                if queue is not None and view is None and record.offset < queue.cursor(_lane_of(record)):
                    continue
                if only.fits(record.headers, key=record.key, timestamp_ms=record.timestamp_ms):
                    state = None if view is None or view.kind is HoldKind.WAITING else view.kind
                    yield PendingLetter(shell.partition.index, record, state)
            offset = batch.next_offset
            # What is in memory is read without waiting: others must have their turn too.
            await asyncio.sleep(0)


def _unreadable(shell: QueueShell, problem: ReadProblem) -> UnreadableQueueError:
    return UnreadableQueueError(f"partition {shell.partition.index}: the log is {problem.value}")


def _unknown(unavailable: QueueUnavailable) -> Exception:
    return (JournalDamagedError if unavailable.is_damaged else UnreadableQueueError)(unavailable.reason)


def _lane_of(record: StoredRecord) -> int:
    return lane_of(dict(record.headers).get(PRIORITY_HEADER))
