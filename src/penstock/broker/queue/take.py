"""Messages out of the queue of one partition: what `QueueShell.take` does.

    look from the cursors ─► machine ─► journal ─► read what was delivered

Between looking and deciding others may decide: what is found is told to the machine with the cursors it was found from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.hidden import visible
from penstock.broker.queue.messages import Message, QueueUnavailable, ReceivedMessages, Source
from penstock.broker.queue.reader import QueueReader, Sight
from penstock.broker.queue.unreadable import rejections, without_unreadable
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.commands import (
    Act,
    Delivery,
    Found,
    QueueCommand,
    QueueReply,
    Receive,
    Received,
    Settle,
    Settlement,
)
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.values import Limit, Ordering

# A look may find only messages that are too old, or must wait for others. Then it looks further, each time at twice as
# many; a receive that may wait goes on for as long as that brings it forward.
LOOKS_MAX: Final = 20
LOOK_COUNT_MAX: Final = 10_000
# Of one receive, about: ten thousand messages of a megabyte each would be more than a node has.
RECEIVE_BYTES_MAX: Final = 64 * 1024 * 1024


class Taken(Protocol):
    """What is needed of `QueueShell`."""

    partition: PartitionShell
    reader: QueueReader
    is_loaded: bool
    now_ms: Callable[[], int]

    @property
    def unavailable(self) -> QueueUnavailable: ...

    def queue(self, group: str) -> Queue | None: ...

    def decide(self, group: str, command: QueueCommand) -> QueueReply | QueueUnavailable: ...


async def take(
    shell: Taken, definition: QueueDefinition, consumer: str, count_max: int, lease_ms: int
) -> ReceivedMessages | QueueUnavailable:
    group, options = definition.name.group, definition.options
    # One always fits.
    count_max = min(count_max, _count_that_fits(shell)) if count_max > 1 else count_max
    for look in range(LOOKS_MAX):
        queue = shell.queue(group)
        if queue is None or not shell.is_loaded:
            return shell.unavailable
        wanted = queue.wanted(consumer, count_max, shell.now_ms())
        if not wanted.count:
            reply = shell.decide(group, Receive(consumer, count_max, ()))
            return ReceivedMessages(limit=reply.limit) if isinstance(reply, Received) else ReceivedMessages()
        found: tuple[Found, ...] = ()
        # Also when enough come back: something more urgent may be among those that nobody has seen.
        if wanted.ready_count < wanted.count or options.ordering is Ordering.NONE:
            missing = max(wanted.count - wanted.ready_count, 1)
            count = min(missing << look, max(wanted.count, LOOK_COUNT_MAX))
            sight = await _look(shell, definition, wanted.cursors, count)
            if queue.has_gone_back(wanted.cursors):
                continue
            if not isinstance(sight, QueueUnavailable):
                found = sight
            elif not wanted.ready_count:
                return sight
        if not found and not wanted.ready_count:
            return ReceivedMessages()
        reply = shell.decide(group, Receive(consumer, count_max, found, lease_ms))
        if not isinstance(reply, Received):
            return reply if isinstance(reply, QueueUnavailable) else ReceivedMessages()
        if reply.deliveries:
            messages = await _load(shell, definition, reply)
            if messages:
                return ReceivedMessages(tuple(messages), reply.limit)
        elif reply.limit is not Limit.NONE or queue.wanted(consumer, count_max, 0).cursors == wanted.cursors:
            return ReceivedMessages(limit=reply.limit)
    return ReceivedMessages(has_more=True)


async def _look(
    shell: Taken, definition: QueueDefinition, cursors: Sequence[tuple[int, int]], count: int
) -> tuple[Found, ...] | QueueUnavailable:
    ordering, is_committed_only = definition.options.ordering, definition.options.is_committed_only
    sight: Sight | ReadProblem | None = None
    if ordering is not Ordering.KEY:
        sight = shell.reader.glance(cursors, count, is_committed_only=is_committed_only)
    if sight is None:
        sight = await shell.reader.look(cursors, count, ordering=ordering, is_committed_only=is_committed_only)
    if isinstance(sight, ReadProblem):
        return QueueUnavailable(f"the partition's log is {sight.value}")
    # A topic may promise less than the journal does. But a cursor must not come to lie behind the end of a log that
    # has lost its last messages with the power: whatever is written there later would count as delivered.
    commitment = shell.partition.commit_if_unsynced() if sight.found else None
    if commitment is not None and not await commitment.kept():
        return QueueUnavailable("the disk did not take the messages")
    return sight.found


async def _load(shell: Taken, definition: QueueDefinition, received: Received) -> list[Message]:
    """What was delivered. What is no longer there, or hidden, is settled at once, and never comes back; what nobody
    can read goes to the dead letters."""
    group, is_committed_only = definition.name.group, definition.options.is_committed_only
    topic_id, partition = shell.partition.log.home.topic_id, shell.partition.index
    source = Source(group, topic_id, partition, received.number, received.until_ms)
    messages: list[Message] = []
    gaps: list[Settlement] = []
    now_ms = shell.now_ms()
    try:
        for delivery in received.deliveries:
            first, last, count, lane = delivery.first, delivery.last, delivery.count, delivery.lane
            found = await shell.reader.messages(first, last, is_committed_only=is_committed_only)
            if isinstance(found, ReadProblem):
                # Not settled: the lease runs out, and whoever comes then may find the log well again.
                continue
            found = visible(found, definition, partition)
            if len(found) <= last - first:
                unreadable = await shell.reader.unreadable(first, last, is_committed_only=is_committed_only)
                gaps += _gaps(delivery, found, received.number)
                gaps = [piece for gap in gaps for piece in without_unreadable(gap, unreadable)]
                gaps += rejections(unreadable, received.number)
            if count == 1:
                messages += [Message(source, record, 1, lane, now_ms) for record in found]
                continue
            for record in found:
                first_ms = _first_delivery_ms(shell, group, record.offset, now_ms)
                messages.append(Message(source, record, count, lane, first_ms))
    except asyncio.CancelledError:
        ranges = [(delivery.first, delivery.last) for delivery in received.deliveries]
        shell.decide(group, Settle(tuple(release(first, last, received.number) for first, last in ranges)))
        raise
    if gaps:
        shell.decide(group, Settle(tuple(gaps)))
    return messages


def _count_that_fits(shell: Taken) -> int:
    """Judged by what a message of the partition takes on average: which ones it will be is not known yet."""
    partition = shell.partition
    message_bytes = partition.size_bytes // max(partition.readable_end - partition.log_start, 1)
    return max(RECEIVE_BYTES_MAX // max(message_bytes, 1), 1)


def _first_delivery_ms(shell: Taken, group: str, offset: int, now_ms: int) -> int:
    queue = shell.queue(group)
    view = queue.look_up(offset) if queue is not None else None
    return now_ms if view is None or view.failure is None else view.failure.first_ms


def release(first: int, last: int, number: int) -> Settlement:
    """Given back, and free at once."""
    return Settlement(first, last, Act.RELEASE, number, 0)


def _gaps(delivery: Delivery, found: Sequence[StoredRecord], number: int) -> list[Settlement]:
    """The offsets of a delivery where there is no message."""
    gaps: list[Settlement] = []
    expected = delivery.first
    for record in found:
        if record.offset > expected:
            gaps.append(Settlement(expected, record.offset - 1, Act.GAP, number))
        expected = record.offset + 1
    if expected <= delivery.last:
        gaps.append(Settlement(expected, delivery.last, Act.GAP, number))
    return gaps
