"""One redrive while it runs: takes messages as a consumer of the queue does, and settles them with a place to go to.

    take (leased by the task) ─► fits, and its author may write there? ─► Settle(MOVE, place) ─► the mover
                                  └─ no: stays leased until the task ends, so that it is not taken twice; then it goes
                                     back as if nobody had seen it

Where a message came from is told by headers that anybody can write, so rights are asked for each one when it goes.

Everything is in the queue's journal: what was told to move goes on by itself after a crash, and the leases are given
back by the task that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.broker.partition.waiting import Waiter
from penstock.broker.queue.messages import Message
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.domain.partitioner import partition_for_key
from penstock.domain.queue.commands import Act, ConsumerGone, Outcome, Settle, Settled, Settlement
from penstock.domain.queue.dead_letter import MOVE_COUNT_MAX
from penstock.domain.queue.definition import LEASE_MS_MAX, QueueDefinition
from penstock.domain.queue.redrive import Chosen, Place, RedriveState, RedriveTask, origin_of, write_place
from penstock.domain.queue.values import Cause, Limit
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX, is_internal

# Of every task: there is one at a time, and it gives back what one before it could not.
CONSUMER: Final = "penstock-redrive"
# One batch of the mover.
TAKE_COUNT_MAX: Final = MOVE_COUNT_MAX
# Told to move and not there yet: enough that the mover never waits for us, and little to remember.
DYING_COUNT_MAX: Final = 4 * MOVE_COUNT_MAX
SAVE_MS: Final = 1_000
# A limited rate is kept in steps of a tenth of a second.
STEPS_PER_SECOND: Final = 10
PATIENCE_MS: Final = 500
# A queue whose journal is lost is loaded again in a few seconds; a minute of that is a failure.
UNAVAILABLE_MAX: Final = 120

Save = Callable[[RedriveTask], Awaitable[None]]


class RedriveFailure(Exception):  # noqa: N818  ends the task; the sentence is what its owner reads
    """The task cannot go on."""


class _Stays(msgspec.Struct, frozen=True):
    """A message that goes nowhere."""

    why: str
    is_denied: bool = False


class RedriveRun:
    def __init__(
        self,
        task: RedriveTask,
        queues: NodeQueues,
        *,
        chosen: Chosen | None,
        may_write: Callable[[str], bool],
        clock: Clock,
        save: Save,
    ) -> None:
        self.task = task
        self._chosen = chosen
        # Of the task's author, by topic; asked for each message, because rules change.
        self._may_write = may_write
        self._queues = queues
        self._clock = clock
        self._save = save
        self._waiter = Waiter()
        self._saved_ms = clock.monotonic_ms()
        self._next_ms = clock.monotonic_ms()
        self._returned_before = queues.returned_count(task.source)
        # Why messages stay behind, the first reason.
        self._why_lost = ""

    def cancel(self) -> None:
        self._count(state=RedriveState.CANCELLING)
        self._waiter.wake()

    async def run(self) -> None:
        """Ends with the task over, whatever became of it; a node that stops leaves it as it is, to go on later."""
        try:
            await self._free()
            for shell in await self._shells():
                await self._drain(shell)
            await self._wait_moved()
            await self._free()
            self._count_returned()
            outcome, reason = self._outcome()
        except RedriveFailure as failure:
            await self._free()
            outcome, reason = RedriveState.FAILED, str(failure)
        await self.end(outcome, reason)

    async def end(self, outcome: RedriveState, reason: str) -> None:
        self._count(state=outcome, reason=reason, ended_ms=self._clock.now_ms())
        await self._save(self.task)

    def _count_returned(self) -> None:
        """Of those on their way, some were not taken in."""
        count = self._queues.returned_count(self.task.source) - self._returned_before
        if count:
            self._why_lost = self._why_lost or "the target did not take them"
            moved, lost = max(0, self.task.moved_count - count), self.task.lost_count + count
            self._count(moved_count=moved, lost_count=lost)

    def _outcome(self) -> tuple[RedriveState, str]:
        if self._is_cancelled:
            return RedriveState.CANCELLED, ""
        count = self.task.lost_count + self.task.denied_count
        if count:
            return RedriveState.FAILED, f"{count} message{'s' * (count != 1)} stayed: {self._why_lost}"
        return RedriveState.COMPLETED, ""

    @property
    def _is_cancelled(self) -> bool:
        return self.task.state is RedriveState.CANCELLING

    def _count(self, **changes: object) -> None:
        self.task = msgspec.structs.replace(self.task, **changes)

    # Taking

    async def _drain(self, shell: QueueShell) -> None:
        index, failures = shell.partition.index, 0
        end = self.task.ends[index] if index < len(self.task.ends) else 0
        while not self._is_cancelled and end:
            taken = await shell.take(self._definition(), CONSUMER, self._take_count(), lease_ms=LEASE_MS_MAX)
            if isinstance(taken, QueueUnavailable):
                failures += 1
                if failures >= UNAVAILABLE_MAX:
                    raise RedriveFailure(taken.reason)
                await self._pause(shell, PATIENCE_MS)
                continue
            if not taken.messages and taken.has_more:
                await self._save_now_and_then()
                continue
            if not taken.messages:
                _check_limit(taken.limit)
                return
            mine = [message for message in taken.messages if message.record.offset < end]
            if not mine and self._is_past(shell, end):
                return
            await self._redrive(shell, mine)
            await self._save_now_and_then()

    def _take_count(self) -> int:
        """Without a filter no more than soon go: what we hold, others cannot receive."""
        is_slow = self.task.rate and self.task.only.is_empty and self._chosen is None
        return min(TAKE_COUNT_MAX, self.task.rate) if is_slow else TAKE_COUNT_MAX

    def _is_past(self, shell: QueueShell, end: int) -> bool:
        queue = shell.queue(self.task.source.group)
        return queue is None or queue.cursor() >= end

    async def _redrive(self, shell: QueueShell, messages: Sequence[Message]) -> None:
        picked = [message for message in messages if self._is_picked(message)]
        task = self.task
        self._count(
            looked_count=task.looked_count + len(messages),
            skipped_count=task.skipped_count + len(messages) - len(picked),
        )
        step = max(1, task.rate // STEPS_PER_SECOND) if task.rate else len(picked)
        for start in range(0, len(picked), step or 1):
            await self._keep_pace(shell)
            if self._is_cancelled:
                return
            # Not earlier: at a slow rate rules may have changed since the message was taken.
            placed = self._place(picked[start : start + step])
            if placed:
                await self._settle(shell, placed)

    def _is_picked(self, message: Message) -> bool:
        record = message.record
        is_chosen = self._chosen is None or self._chosen.holds(message.source.partition, record.offset)
        return is_chosen and self.task.only.fits(record.headers, key=record.key, timestamp_ms=record.timestamp_ms)

    def _place(self, messages: Sequence[Message]) -> list[tuple[Message, str]]:
        """Those that go somewhere, and where; the others are counted."""
        placed: list[tuple[Message, str]] = []
        lost = denied = 0
        for message in messages:
            place = self._place_of(message)
            if isinstance(place, Place):
                placed.append((message, write_place(place)))
                continue
            self._why_lost = self._why_lost or place.why
            lost, denied = lost + (not place.is_denied), denied + place.is_denied
        if lost or denied:
            self._count(lost_count=self.task.lost_count + lost, denied_count=self.task.denied_count + denied)
        return placed

    def _place_of(self, message: Message) -> Place | _Stays:
        """Back to its partition, if it has one; else by its key, as if it were new."""
        origin, origin_partition = origin_of(message.record.headers)
        name = self.task.target or origin
        if name is None:
            return _Stays("no topic of origin is told, give a target")
        # First of all: who may not write somewhere does not learn what there is.
        if not self._may_write(name):
            return _Stays(f"{self.task.author} may not write to {name[:NAME_CHARACTERS_MAX]!r}", is_denied=True)
        topic = None if is_internal(name) else self._queues.broker.topic(name)
        if topic is None:
            return _Stays(f"there is no topic {name[:NAME_CHARACTERS_MAX]!r}")
        count = topic.partition_count
        if self.task.target is None and origin_partition is not None and origin_partition < count:
            return Place(name, origin_partition)
        key = message.record.key
        return Place(name, message.source.partition % count if key is None else partition_for_key(key, count))

    async def _settle(self, shell: QueueShell, placed: Sequence[tuple[Message, str]]) -> None:
        items = tuple(_runs(placed))
        reply = await shell.submit(self.task.source.group, Settle(items))
        if not isinstance(reply, Settled):
            # Not durable: they come back, and are taken again.
            return
        done = [item for item, outcome in zip(items, reply.outcomes, strict=True) if outcome is Outcome.DONE]
        count = sum(item.last - item.first + 1 for item in done)
        self._count(moved_count=self.task.moved_count + count)
        if self.task.rate:
            now_ms = self._clock.monotonic_ms()
            self._next_ms = max(self._next_ms, now_ms) + count * 1000 // self.task.rate

    # Waiting

    async def _keep_pace(self, shell: QueueShell) -> None:
        while not self._is_cancelled:
            left_ms = self._next_ms - self._clock.monotonic_ms() if self.task.rate else 0
            queue = shell.queue(self.task.source.group)
            is_full = queue is not None and queue.stats().dying_count >= DYING_COUNT_MAX
            if left_ms <= 0 and not is_full:
                return
            await self._pause(shell, PATIENCE_MS if is_full else left_ms)
            await self._save_now_and_then()

    async def _wait_moved(self) -> None:
        """Not done before the last one is in its target."""
        for shell in await self._shells():
            while not self._is_cancelled and self._is_moving(shell):
                await self._pause(shell, PATIENCE_MS)

    def _is_moving(self, shell: QueueShell) -> bool:
        queue = shell.queue(self.task.source.group)
        if queue is None:
            return False
        told = any(letter.failure.cause is Cause.MOVED for letter in queue.dying(MOVE_COUNT_MAX))
        return told or queue.pending_move() is not None

    async def _pause(self, shell: QueueShell, wait_ms: int) -> None:
        """The mover says in the queue's waiting room that it has finished a batch."""
        self._definition()
        self._waiter.watch((shell.room(self.task.source.group),))
        try:
            if not self._is_cancelled:
                await self._waiter.wait(wait_ms)
        finally:
            self._waiter.leave()

    async def _save_now_and_then(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._saved_ms >= SAVE_MS:
            self._saved_ms = now_ms
            await self._save(self.task)
        # Taking and settling may never wait for anything when a disk is fast.
        await asyncio.sleep(0)

    # The queue

    def _definition(self) -> QueueDefinition:
        definition = self._queues.get(self.task.source)
        if definition is None or definition.topic_id != self.task.topic_id:
            raise RedriveFailure(f"the queue {self.task.source} is gone")
        return definition

    async def _shells(self) -> list[QueueShell]:
        """Of every partition, or the task fails: one that moved only what is led here would call itself completed."""
        why: str | None = None
        for _ in range(UNAVAILABLE_MAX):
            topic = self._queues.broker.topic_by_id(self._definition().topic_id)
            why = None if topic is None else topic.why_not_whole()
            if why is None:
                return await self._queues.shells(self.task.source)
            # Whoever lost the lead a moment ago may get it back.
            await asyncio.sleep(PATIENCE_MS / 1000)
        raise RedriveFailure(str(why))

    async def _free(self) -> None:
        """What we hold goes back, as if we had never had it."""
        definition = self._queues.get(self.task.source)
        if definition is None or definition.topic_id != self.task.topic_id:
            return
        for shell in await self._queues.shells(self.task.source):
            await shell.submit(self.task.source.group, ConsumerGone(CONSUMER))


def _check_limit(limit: Limit) -> None:
    if limit is not Limit.NONE:
        raise RedriveFailure(f"the queue gives no more messages: {limit.value}")


def _runs(placed: Sequence[tuple[Message, str]]) -> Iterator[Settlement]:
    """Neighbours with the same place as one item."""
    run: Settlement | None = None
    for message, place in sorted(placed, key=lambda each: each[0].record.offset):
        offset, number = message.record.offset, message.source.number
        if run is not None and (run.last + 1, run.number, run.text) == (offset, number, place):
            run = msgspec.structs.replace(run, last=offset)
            continue
        if run is not None:
            yield run
        run = Settlement(offset, offset, Act.MOVE, number, None, place)
    if run is not None:
        yield run
