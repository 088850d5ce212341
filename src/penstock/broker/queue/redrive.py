"""Redrives of dead letters: begun, watched, cancelled, and gone on with after a restart, by whoever leads the first
partition of their source.

A task stands in the metadata store before its first message moves. What it has told to move is moved exactly once by
the mover, from the queue's own journal; so a task that is begun again after a crash finds the rest, and nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.delivery import QueueDelivery
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.redrive_run import RedriveRun
from penstock.broker.queue.redrive_scan import DeadLetterScan
from penstock.broker.queue.shell import QueueUnavailable
from penstock.broker.site import Site
from penstock.broker.topic.not_here import NotHere, no_topic
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.redrives import RedriveStore
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions, Start
from penstock.domain.queue.redrive import (
    RATE_MAX,
    REDRIVE_GROUP,
    Choice,
    Chosen,
    RedriveFilter,
    RedriveState,
    RedriveTask,
)
from penstock.domain.queue.values import HoldKind, Ordering
from penstock.domain.security import access
from penstock.domain.security.access import ANONYMOUS, Authorizer, Operation, Principal
from penstock.domain.topic_rules import is_internal

log = get_logger("redrive")

# Of one queue, how many tasks that are over are remembered: as many as SQS shows.
KEPT_TASKS: Final = 10
# Not to limit: what a filter leaves behind is held while the task runs, and costs a range for each thousand.
_IN_FLIGHT_MAX: Final = 1 << 50
_OPTIONS: Final = QueueOptions(
    deliveries_max=0,
    dead_letter_topic="",
    start=Start.EARLIEST,
    in_flight_max=_IN_FLIGHT_MAX,
    in_flight_per_consumer_max=_IN_FLIGHT_MAX,
)


class NoSuchLetters(msgspec.Struct, frozen=True):
    """There is no such topic, or queue on it, or task."""

    reason: str


class CannotRedrive(msgspec.Struct, frozen=True):
    """The request makes no sense as it is."""

    reason: str


class TaskRunning(msgspec.Struct, frozen=True):
    """One at a time for each queue."""

    task: RedriveTask


class TaskOver(msgspec.Struct, frozen=True):
    task: RedriveTask


class RedriveCount(msgspec.Struct, frozen=True):
    pending_count: int
    fitting_count: int


class TaskTakenError(Exception):
    """Another node runs the task: this one has not led its source since."""


class Redrives:
    def __init__(
        self, site: Site, queues: NodeQueues, delivery: QueueDelivery, store: RedriveStore, *, authorizer: Authorizer
    ) -> None:
        self.scan = DeadLetterScan(queues, delivery)
        self._queues = queues
        self._delivery = delivery
        self._store = store
        self._authorizer = authorizer
        self._clock = site.clock
        self._chance = site.chance
        self._tasks = site.tasks
        self._known: dict[str, RedriveTask] = {}
        self._runs: dict[str, RedriveRun] = {}
        # Of each run, by the id of its task.
        self._following: dict[str, asyncio.Task[None]] = {}
        # Between the question whether one runs and its start nobody else may begin one.
        self._turn = asyncio.Lock()
        queues.broker.follow_roles(self, Part.REDRIVES)

    async def start(self) -> None:
        """Goes on with what an earlier life of the node left unfinished."""
        await self._go_on()

    async def _go_on(self, topic_id: bytes | None = None) -> None:
        """With the tasks of this source, or of all, that this node is to run."""
        async with self._turn:
            for task in await self._store.all():
                if task.id in self._runs or (topic_id is not None and task.topic_id != topic_id):
                    continue
                self._known[task.id] = task
                owner = self._owner(task.topic_id)
                is_elsewhere = isinstance(owner, NotHere) and not owner.is_unknown
                if task.state.is_over or is_elsewhere:
                    continue
                epoch = task.owner_epoch if isinstance(owner, NotHere) else owner.leadership.epoch
                taken = msgspec.structs.replace(task, owner_epoch=epoch)
                if await self._store.put(taken):
                    log.info("redrive goes on", task=task.id, topic=task.source.topic, moved=task.moved_count)
                    self._run(taken, await self._chosen(taken))

    def _owner(self, topic_id: bytes) -> PartitionShell | NotHere:
        """The partition whose leader runs the tasks of a source. Those of one that is gone end where they are found."""
        topic = self._queues.broker.topic_by_id(topic_id)
        return no_topic("") if topic is None else topic.find(0)

    def _why_not_whole(self, topic_id: bytes) -> str | None:
        topic = self._queues.broker.topic_by_id(topic_id)
        return None if topic is None else topic.why_not_whole()

    # Roles

    def lead(self, partition: PartitionShell) -> None:
        if partition.index == 0:
            self._tasks.start("redrives of a led topic", self._go_on(partition.log.home.topic_id))

    def resign(self, partition: PartitionShell) -> None:
        """Whoever leads next goes on, with what is written of them."""
        if partition.index == 0:
            topic_id = partition.log.home.topic_id
            for task_id in [task_id for task_id, run in self._runs.items() if run.task.topic_id == topic_id]:
                self._following[task_id].cancel()

    async def _chosen(self, task: RedriveTask) -> Chosen | None:
        return Chosen(await self._store.choices(task.id)) if task.is_chosen else None

    async def stop(self) -> None:
        """Before the queues do. Tasks are left as they are, for the node's next life."""
        following = list(self._following.values())
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    # Looking

    def get(self, task_id: str) -> RedriveTask | None:
        run = self._runs.get(task_id)
        return self._known.get(task_id) if run is None else run.task

    def tasks_of(self, source: QueueName) -> list[RedriveTask]:
        """The latest first."""
        known = [task for task_id in self._known if (task := self.get(task_id)) is not None and task.source == source]
        return sorted(known, key=lambda task: (task.started_ms, task.id), reverse=True)

    async def count(
        self, source: QueueName, only: RedriveFilter, choices: Sequence[Choice] | None = None
    ) -> RedriveCount | NoSuchLetters:
        """What a redrive would move, if every message told where it came from."""
        problem = self._problem_of(source, must_exist=source.group != REDRIVE_GROUP)
        if problem is not None:
            return problem
        pending = await self.scan.pending_count(source)
        if only.is_empty and choices is None:
            return RedriveCount(pending, pending)
        chosen = None if choices is None else Chosen(choices)
        fitting = 0
        async for letter in self.scan.letters(source, only):
            # Those on their way already are not counted as pending either.
            is_picked = chosen is None or chosen.holds(letter.partition, letter.record.offset)
            fitting += is_picked and letter.state is not HoldKind.DYING
        return RedriveCount(pending, fitting)

    # Doing

    async def begin(
        self,
        source: QueueName,
        *,
        author: Principal = ANONYMOUS,
        target: str | None = None,
        only: RedriveFilter | None = None,
        choices: Sequence[Choice] | None = None,
        rate: int = 0,
    ) -> RedriveTask | NoSuchLetters | CannotRedrive | TaskRunning | QueueUnavailable:
        """QueueUnavailable: this node does not lead all of the source. Half of it would be no redrive."""
        async with self._turn:
            definition = await self._source(source)
            if isinstance(definition, NoSuchLetters):
                return definition
            is_whole = choices is None and (only is None or only.is_empty)
            problem = self._check(definition, target, rate, is_whole=is_whole)
            if problem is not None:
                return problem
            owner = self._owner(definition.topic_id)
            why_not = self._why_not_whole(definition.topic_id)
            if isinstance(owner, NotHere) or why_not is not None:
                return QueueUnavailable(why_not or f"there is no topic {source.topic!r} any more")
            running = next((task for task in self.tasks_of(source) if not task.state.is_over), None)
            if running is not None:
                return TaskRunning(running)
            task = await self._describe(definition, target, only or RedriveFilter(), rate)
            epoch = owner.leadership.epoch
            task = msgspec.structs.replace(task, author=author, is_chosen=choices is not None, owner_epoch=epoch)
            if choices is not None:
                await self._store.put_choices(task.id, choices)
            await self._store.put(task)
            self._known[task.id] = task
            self._run(task, None if choices is None else Chosen(choices))
        await self._forget_old(source)
        return task

    def _check(
        self, definition: QueueDefinition, target: str | None, rate: int, *, is_whole: bool
    ) -> CannotRedrive | NoSuchLetters | None:
        if not 0 <= rate <= RATE_MAX:
            return CannotRedrive(f"a rate of {rate} messages in a second: 1 to {RATE_MAX} is meant, 0 for no limit")
        if target == definition.name.topic:
            return CannotRedrive(f"{target!r} is where the messages are: they cannot be moved there")
        if target is not None and (is_internal(target) or self._queues.broker.topic(target) is None):
            return NoSuchLetters(f"there is no topic {target!r} to move messages to")
        if not is_whole and definition.options.ordering is Ordering.KEY:
            # What does not fit would hold up everything behind it that has its key.
            return CannotRedrive(f"the queue {definition.name} is ordered by key: it is redriven as a whole")
        return None

    async def _describe(
        self, definition: QueueDefinition, target: str | None, only: RedriveFilter, rate: int
    ) -> RedriveTask:
        topic = self._queues.broker.topic_by_id(definition.topic_id)
        ends = () if topic is None else tuple(map(partial(_end_of, topic), range(topic.partition_count)))
        return RedriveTask(
            id=self._chance.uuid().hex,
            source=definition.name,
            topic_id=definition.topic_id,
            target=target,
            only=only,
            rate=rate,
            ends=ends,
            pending_count=await self.scan.pending_count(definition.name),
            started_ms=self._next_start_ms(definition.name),
        )

    def _next_start_ms(self, source: QueueName) -> int:
        """Later than that of every earlier one, so that they keep their order, also in a restarted node."""
        earlier = self.tasks_of(source)
        now_ms = self._clock.now_ms()
        return max(now_ms, earlier[0].started_ms + 1) if earlier else now_ms

    async def cancel(self, task_id: str) -> RedriveTask | NoSuchLetters | TaskOver:
        """What is on its way arrives; nothing more is sent."""
        task = self.get(task_id)
        if task is None:
            return NoSuchLetters(f"there is no redrive {task_id[:100]!r}")
        run = self._runs.get(task_id)
        if run is None or task.state.is_over:
            return TaskOver(task)
        run.cancel()
        await self._save(run.task)
        return run.task

    async def purge(self, source: QueueName) -> int | NoSuchLetters | QueueUnavailable:
        """Everything that is pending is dropped: how many. The log keeps it until its retention ends."""
        definition = await self._source(source)
        if isinstance(definition, NoSuchLetters):
            return definition
        pending = await self.scan.pending_count(source)
        outcome = await self._delivery.purge(source)
        return outcome if isinstance(outcome, QueueUnavailable) else pending

    # Inside

    def _problem_of(self, source: QueueName, *, must_exist: bool) -> NoSuchLetters | None:
        if self._queues.broker.topic(source.topic) is None or is_internal(source.topic):
            return NoSuchLetters(f"there is no topic {source.topic!r}")
        if must_exist and self._queues.get(source) is None:
            return NoSuchLetters(f"there is no queue {source.group!r} on topic {source.topic!r}")
        return None

    async def _source(self, source: QueueName) -> QueueDefinition | NoSuchLetters:
        """Only our own queue is made when it is needed first."""
        is_ours = source.group == REDRIVE_GROUP
        problem = self._problem_of(source, must_exist=not is_ours)
        if problem is not None:
            return problem
        definition = await self._queues.define(source, _OPTIONS) if is_ours else self._queues.get(source)
        return definition or NoSuchLetters(f"there is no queue {source.group!r} on topic {source.topic!r}")

    def _run(self, task: RedriveTask, chosen: Chosen | None) -> None:
        def may_write(topic: str) -> bool:
            return self._authorizer.authorize(task.author, Operation.WRITE, access.topic(topic))

        run = RedriveRun(
            task,
            self._queues,
            chosen=chosen,
            may_write=may_write,
            clock=self._clock,
            save=self._save,
        )
        self._runs[task.id] = run
        following = self._tasks.start(f"redrive of {task.source}", self._follow(run))
        self._following[task.id] = following
        following.add_done_callback(lambda _: self._following.pop(task.id))

    async def _follow(self, run: RedriveRun) -> None:
        try:
            await run.run()
            log.info("redrive over", task=run.task.id, state=run.task.state, moved=run.task.moved_count)
        except TaskTakenError:
            log.info("redrive goes on elsewhere", task=run.task.id)
        except Exception as error:  # edge of a supervised task: a task that failed can be begun again
            log.error("redrive failed", task=run.task.id, error=repr(error), exc_info=error)
            await run.end(RedriveState.FAILED, "something unforeseen, the node's log says more")
        finally:
            self._known[run.task.id] = run.task
            del self._runs[run.task.id]

    async def _save(self, task: RedriveTask) -> None:
        self._known[task.id] = task
        if not await self._store.put(task):
            raise TaskTakenError(task.id)

    async def _forget_old(self, source: QueueName) -> None:
        old = [task.id for task in self.tasks_of(source) if task.state.is_over][KEPT_TASKS:]
        for task_id in old:
            del self._known[task_id]
        await self._store.remove(old)


def _end_of(topic: ServedTopic, index: int) -> int:
    """Of a partition that is led elsewhere nothing is moved by this node."""
    partition = topic.find(index)
    return 0 if isinstance(partition, NotHere) else partition.readable_end
