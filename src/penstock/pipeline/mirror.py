"""A mirror: topics, their settings and the positions of groups, from one Kafka-compatible cluster to another.

    every `refresh_ms`   look for topics and partitions, make them, copy their settings
    always               one TopicMirror for each topic, on connections of its own, so that none waits for another
    every `groups_ms`    translate the positions of groups

One mirror of a name is at work at a time: a second one fences the first, topic by topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.patterns import compile_pattern
from penstock.base.tasks import TaskSupervisor
from penstock.client.address import parse_addresses
from penstock.client.cluster_client import ClusterClient, TopicInfo
from penstock.client.consumer import OffsetOutOfRangeError
from penstock.client.errors import ClientError
from penstock.client.offsets import EARLIEST, LATEST, list_offsets, offset_ranges
from penstock.client.transactional_producer import ProducerFencedError
from penstock.pipeline.mirror_copy import TopicMirror, TopicProgress
from penstock.pipeline.mirror_groups import mirror_groups
from penstock.pipeline.mirror_journal import Books, ensure_journal, read_journal
from penstock.pipeline.mirror_runs import RunBook
from penstock.pipeline.mirror_target import open_target
from penstock.pipeline.mirror_topics import TopicNames, ensure_copy, find_topics

log_events = get_logger("mirror")

RETRY_SECONDS: Final = 1.0
PATIENCE_MS: Final = 60_000


class MirrorPlan(msgspec.Struct, frozen=True):
    name: str
    source: str
    target: str
    # Regular expressions for whole names.
    topics: str = ".*"
    groups: str = ".*"
    prefix: str = ""
    from_latest: bool = False
    refresh_ms: int = 30_000
    groups_ms: int = 5_000


class MirrorError(ClientError):
    """Nothing that waiting would change."""


class Mirror:
    def __init__(self, plan: MirrorPlan, *, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._names = TopicNames(plan.prefix)
        self._matches_topic = _pattern(plan.topics, "topics")
        self._matches_group = _pattern(plan.groups, "groups")
        self._tasks = TaskSupervisor(log_events)
        self._stop = asyncio.Event()
        self._books: Books = defaultdict(RunBook)
        self._workers: dict[str, _Worker] = {}
        # By the source's name.
        self.progress: dict[str, TopicProgress] = {}
        # What no retry helps against.
        self._failure: ClientError | None = None

    def stop(self) -> None:
        """After the transactions that are under way."""
        self._stop.set()
        for worker in self._workers.values():
            worker.stop.set()

    async def run(self, *, once: bool) -> None:
        """Until `stop`; or, `once`, until everything that was there at the beginning is mirrored."""
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(_client(self._plan.source))
            target = await stack.enter_async_context(_client(self._plan.target))
            if source.cluster_id is not None and source.cluster_id == target.cluster_id and not self._plan.prefix:
                raise MirrorError("source and target are the same cluster: give the copies a prefix")
            await ensure_journal(target, self._plan.name)
            stack.push_async_callback(self._tasks.stop)
            if once:
                await self._run_once(source, target)
            else:
                await self._run_always(source, target)
        if self._failure is not None:
            raise self._failure

    async def _run_once(self, source: ClusterClient, target: ClusterClient) -> None:
        for topic in await self._refresh(source, target):
            ranges = await offset_ranges(source, topic.name, range(len(topic.partitions)), is_read_committed=True)
            ends = {partition: held.end for partition, held in ranges.items()}
            await self._mirror_topic(topic, ends=ends, stop=self._stop)
        if not self._stop.is_set():
            await self._mirror_groups(source, target)

    async def _run_always(self, source: ClusterClient, target: ClusterClient) -> None:
        loop = asyncio.get_running_loop()
        refresh_at = groups_at = loop.time()
        while not self._stop.is_set():
            try:
                if loop.time() >= refresh_at:
                    refresh_at = loop.time() + self._plan.refresh_ms / 1000
                    for topic in await self._refresh(source, target):
                        self._follow(topic)
                if loop.time() >= groups_at:
                    groups_at = loop.time() + self._plan.groups_ms / 1000
                    await self._mirror_groups(source, target)
            except ClientError as error:
                log_events.warning("mirror waits for its clusters", reason=str(error))
            await _wait(self._stop, max(min(refresh_at, groups_at) - loop.time(), RETRY_SECONDS))
        await asyncio.gather(*(worker.task for worker in self._workers.values()), return_exceptions=True)
        if self._failure is None:
            # What was mirrored last counts for those who move over now.
            await self._mirror_groups(source, target)

    async def _refresh(self, source: ClusterClient, target: ClusterClient) -> list[TopicInfo]:
        topics = await find_topics(source, self._matches_topic, self._names)
        for topic in topics:
            await ensure_copy(source, target, topic, self._names.target_of(topic.name))
        return topics

    async def _mirror_groups(self, source: ClusterClient, target: ClusterClient) -> None:
        copies = {topic: self._names.target_of(topic) for topic in self.progress}
        await mirror_groups(source, target, matches=self._matches_group, copies=copies, books=self._books)

    def _follow(self, topic: TopicInfo) -> None:
        """One worker for each topic; one that has grown gets a new one."""
        worker = self._workers.get(topic.name)
        if worker is not None:
            if worker.partition_count == len(topic.partitions) and not worker.task.done():
                return
            worker.stop.set()
        stop = asyncio.Event()
        before = None if worker is None else worker.task
        task = self._tasks.start(f"mirror {topic.name}", self._keep_mirroring(topic, stop, before))
        self._workers[topic.name] = _Worker(len(topic.partitions), stop, task)

    async def _keep_mirroring(self, topic: TopicInfo, stop: asyncio.Event, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while not stop.is_set():
            try:
                await self._mirror_topic(topic, ends=None, stop=stop)
            except (ProducerFencedError, OffsetOutOfRangeError) as error:
                # Another mirror of this name is at work, or the topic is not the one it was: a person has to look.
                self._failure = error
                self.stop()
            except ClientError as error:
                self.progress[topic.name].error = str(error)
                log_events.warning("topic is tried again", topic=topic.name, reason=str(error))
                await _wait(stop, RETRY_SECONDS)

    async def _mirror_topic(self, topic: TopicInfo, *, ends: Mapping[int, int] | None, stop: asyncio.Event) -> None:
        progress = self.progress.setdefault(topic.name, TopicProgress())
        plan = self._plan
        async with _client(plan.source) as source, _client(plan.target) as target_client:
            producer_name = f"penstock-mirror-{plan.name}-{topic.name}"
            target = await open_target(target_client, producer_name, patience_ms=PATIENCE_MS)
            # After the fence: nobody else writes runs of this topic from here on.
            written = await read_journal(target_client, plan.name)
            for partition in range(len(topic.partitions)):
                # Also where there is none: what a transaction was to write that failed is not true.
                self._books[topic.name, partition] = written[topic.name, partition]
            copy = TopicMirror(
                plan.name,
                topic.name,
                self._names.target_of(topic.name),
                source=source,
                target=target,
                books=self._books,
                clock=self._clock,
                progress=progress,
            )
            starts = await self._starts(source, topic)
            progress.error = None
            await copy.run(starts, ends=ends, stop=stop)

    async def _starts(self, source: ClusterClient, topic: TopicInfo) -> dict[int, int]:
        known = {
            partition: position
            for partition in range(len(topic.partitions))
            if (position := self._books[topic.name, partition].source_next) is not None
        }
        new = set(range(len(topic.partitions))) - set(known)
        if new:
            where = LATEST if self._plan.from_latest else EARLIEST
            known |= await list_offsets(source, topic.name, dict.fromkeys(new, where), is_read_committed=True)
        return known


class _Worker(NamedTuple):
    partition_count: int
    stop: asyncio.Event
    task: asyncio.Task[None]


def _client(bootstrap: str) -> ClusterClient:
    return ClusterClient(parse_addresses(bootstrap))


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _pattern(expression: str, what: str) -> Callable[[str], bool]:
    matches = compile_pattern(expression)
    if matches is None:
        raise MirrorError(f"{what}: {expression!r} is no regular expression")
    return matches
