"""Messages for members of share groups: acquired in the partition's queue, handed over as the batches of the log.

A batch goes out as it was written, however few of its messages are the member's: which ones are, it is told beside it
(`ShareTaken.acquired`). So nothing is cut, compressed or checked again. Nothing here may leave before the shell
`is_durable`: neither what was taken nor what was settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from penstock.broker.partition.read import ReadProblem
from penstock.broker.queue.batch import QueueBatch
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.queue.unreadable import rejections, without_unreadable
from penstock.domain.queue.commands import (
    Act,
    ConsumerGone,
    Delivery,
    Found,
    Outcome,
    Receive,
    Received,
    Settle,
    Settled,
    Settlement,
)
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.values import Limit, Range

# A look may find only messages that must wait for others; then it looks further, but lets go in between.
LOOKS_MAX: Final = 20


class ShareTaken(msgspec.Struct, frozen=True):
    batches: list[memoryview]
    # In order, none of them overlapping another.
    acquired: list[Delivery]
    size_bytes: int
    count: int


NOTHING: Final = ShareTaken([], [], 0, 0)


async def take(
    shell: QueueShell,
    definition: QueueDefinition,
    *,
    member_id: str,
    count_max: int,
    bytes_max: int,
    takes_whole_batches: bool,
) -> ShareTaken | QueueUnavailable:
    """From one partition. With whole batches, more than `count_max` if a batch is larger than what is left of it."""
    group, options = definition.name.group, definition.options
    for _ in range(LOOKS_MAX):
        queue = shell.queue(group)
        if queue is None or not shell.is_loaded:
            return shell.unavailable
        wanted = queue.wanted(member_id, count_max, shell.now_ms())
        if not wanted.count:
            return NOTHING
        found: tuple[Found, ...] = ()
        count, bytes_left = wanted.count, bytes_max
        if wanted.ready_count:
            again = queue.ready_ranges(wanted.ready_count)
            fitting, size_bytes = await _fitting(shell, again, bytes_max, is_committed_only=options.is_committed_only)
            count = count if fitting == wanted.ready_count else fitting
            bytes_left -= size_bytes
        if wanted.ready_count < count and bytes_left > 0:
            sight = await shell.reader.look(
                wanted.cursors,
                count - wanted.ready_count,
                ordering=options.ordering,
                is_committed_only=options.is_committed_only,
                bytes_max=bytes_left,
            )
            if isinstance(sight, ReadProblem):
                return QueueUnavailable(f"the partition's log is {sight.value}")
            if queue.has_gone_back(wanted.cursors):
                continue
            found = sight.found
        if not found and not wanted.ready_count:
            return NOTHING
        reply = shell.decide(group, Receive(member_id, count, found, takes_whole_ranges=takes_whole_batches))
        if not isinstance(reply, Received):
            return reply if isinstance(reply, QueueUnavailable) else NOTHING
        if reply.deliveries:
            readable = await _without_unreadable(shell, group, reply, is_committed_only=options.is_committed_only)
            if readable:
                return await _load(shell, readable, is_committed_only=options.is_committed_only)
            continue
        if reply.limit is not Limit.NONE or queue.wanted(member_id, count_max, 0).cursors == wanted.cursors:
            return NOTHING
    return NOTHING


async def _fitting(
    shell: QueueShell, ranges: Iterable[Range], bytes_max: int, *, is_committed_only: bool
) -> tuple[int, int]:
    """How many messages of these ranges one reply may hold, and how large their batches are. One batch always."""
    count = size_bytes = 0
    last_base = -1
    for first, last in ranges:
        offset = first
        while offset <= last:
            batch = await shell.reader.batch_at(offset, is_committed_only=is_committed_only)
            if not isinstance(batch, QueueBatch):
                count += last - offset + 1
                break
            if batch.base_offset != last_base:
                if size_bytes and size_bytes + len(batch.raw) > bytes_max:
                    return count, size_bytes
                size_bytes += len(batch.raw)
                last_base = batch.base_offset
            count += min(batch.next_offset, last + 1) - offset
            offset = batch.next_offset
    return count, size_bytes


async def _without_unreadable(
    shell: QueueShell, group: str, received: Received, *, is_committed_only: bool
) -> list[Delivery]:
    """What a member can read. The rest goes to the dead letters: a consumer that is given such a batch stops there."""
    readable: list[Delivery] = []
    for delivery in received.deliveries:
        unreadable = await shell.reader.unreadable(delivery.first, delivery.last, is_committed_only=is_committed_only)
        if not unreadable:
            readable.append(delivery)
            continue
        shell.decide(group, Settle(tuple(rejections(unreadable, received.number))))
        whole = Settlement(delivery.first, delivery.last, Act.GAP)
        pieces = without_unreadable(whole, unreadable)
        readable += [msgspec.structs.replace(delivery, first=piece.first, last=piece.last) for piece in pieces]
    return readable


async def _load(shell: QueueShell, deliveries: Iterable[Delivery], *, is_committed_only: bool) -> ShareTaken:
    """Holes in the batches the member answers itself, as gaps; what cannot be read now it is not told, and the lock
    runs out."""
    parts: list[memoryview] = []
    acquired: list[Delivery] = []
    last_base = -1
    for delivery in _merged(sorted(deliveries, key=attrgetter("first"))):
        batches = await _batches(shell, delivery, is_committed_only=is_committed_only)
        if batches is None:
            continue
        acquired.append(delivery)
        for batch in batches:
            if batch.base_offset != last_base:
                parts.append(batch.raw)
                last_base = batch.base_offset
    return ShareTaken(parts, acquired, sum(map(len, parts)), sum(each.last - each.first + 1 for each in acquired))


async def _batches(shell: QueueShell, delivery: Delivery, *, is_committed_only: bool) -> list[QueueBatch] | None:
    found: list[QueueBatch] = []
    offset = max(delivery.first, shell.partition.log_start)
    while offset <= delivery.last:
        batch = await shell.reader.batch_at(offset, is_committed_only=is_committed_only)
        if isinstance(batch, ReadProblem):
            return None
        if batch is None or batch.base_offset > delivery.last:
            break
        found.append(batch)
        offset = batch.next_offset
    return found


def _merged(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Neighbours of the same count as one."""
    merged: list[Delivery] = []
    for delivery in deliveries:
        before = merged[-1] if merged else None
        if before is not None and before.last + 1 == delivery.first and before.count == delivery.count:
            merged[-1] = Delivery(before.first, delivery.last, before.count, before.lane)
        else:
            merged.append(delivery)
    return merged


def settle(
    shell: QueueShell, group: str, member_id: str, items: Sequence[Settlement]
) -> Outcome | QueueUnavailable | None:
    """All of it or nothing, as Kafka does it: the first outcome that is not DONE, or DONE. What lies below the
    group's start is done, whoever says so; None: something lies where nothing was delivered yet."""
    queue = shell.queue(group)
    if queue is None or not shell.is_loaded:
        return shell.unavailable
    start, end = queue.finished_below, queue.seen_below
    if any(item.first >= end for item in items):
        return None
    left = [_above(item, start) for item in items if item.last >= start]
    reply = shell.decide(group, Settle(tuple(left), consumer=member_id, is_whole=True))
    if isinstance(reply, QueueUnavailable):
        return reply
    if not isinstance(reply, Settled):
        return Outcome.NOT_HELD
    return next((outcome for outcome in reply.outcomes if outcome is not Outcome.DONE), Outcome.DONE)


def _above(item: Settlement, start: int) -> Settlement:
    return item if item.first >= start else msgspec.structs.replace(item, first=start)


def let_go(shell: QueueShell, group: str, member_id: str, *, is_counted: bool) -> None:
    """Whatever the member holds there is free again."""
    queue = shell.queue(group)
    if queue is not None and shell.is_loaded:
        shell.decide(group, ConsumerGone(member_id, is_counted=is_counted))
