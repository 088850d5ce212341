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
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import OffsetOutOfRangeError
from penstock.client.kafka.offsets import EARLIEST, LATEST, list_offsets, offset_ranges
from penstock.client.kafka.transactional_producer import ProducerFencedError
from penstock.client.patience import UNREACHED
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError
from penstock.pipeline.mirror.copy import Route, TopicMirror, TopicProgress
from penstock.pipeline.mirror.groups import mirror_groups
from penstock.pipeline.mirror.journal import Books, ensure_journal, read_journal
from penstock.pipeline.mirror.origins import id_of
from penstock.pipeline.mirror.refresh import Pair, TopicFinder
from penstock.pipeline.mirror.runs import Lineage, RunBook
from penstock.pipeline.mirror.target import ExactlyOnce, open_target
from penstock.pipeline.mirror.topics import TopicNames

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
    def __init__(self, plan: MirrorPlan, *, clock: Clock, exactly_once: type[ExactlyOnce] = ExactlyOnce) -> None:
        self._plan = plan
        self._exactly_once = exactly_once
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

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

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
            finder = TopicFinder(
                source,
                target,
                matches=self._matches_topic,
                names=self._names,
                clock=self._clock,
                end_worker=self._end_worker,
            )
            stack.push_async_callback(self._tasks.stop)
            if once:
                await self._run_once(source, target, finder)
            else:
                await self._run_always(source, target, finder)
        if self._failure is not None:
            raise self._failure

    async def _run_once(self, source: ClusterClient, target: ClusterClient, finder: TopicFinder) -> None:
        found = await finder.find()
        self._note(found.failures)
        failures = list(found.failures.values())
        for pair in found.pairs:
            try:
                await self._mirror_what_is_there(source, pair)
            except (ProducerFencedError, *UNREACHED):
                raise
            except ClientError as error:
                self._note({pair.topic.name: error})
                failures.append(error)
        if not self._stop.is_set():
            await self._mirror_groups(source, target)
        if failures:
            raise failures[0]

    async def _mirror_what_is_there(self, source: ClusterClient, pair: Pair) -> None:
        partitions = range(len(pair.topic.partitions))
        ranges = await offset_ranges(source, pair.topic.name, partitions, is_read_committed=True)
        ends = {partition: held.end for partition, held in ranges.items()}
        await self._mirror_topic(pair, ends=ends, stop=self._stop)

    async def _run_always(self, source: ClusterClient, target: ClusterClient, finder: TopicFinder) -> None:
        loop = asyncio.get_running_loop()
        refresh_at = groups_at = loop.time()
        while not self._stop.is_set():
            try:
                if loop.time() >= refresh_at:
                    refresh_at = loop.time() + self._plan.refresh_ms / 1000
                    await self._refresh(finder)
                if loop.time() >= groups_at:
                    groups_at = loop.time() + self._plan.groups_ms / 1000
                    await self._mirror_groups(source, target)
            except ClientError as error:
                log_events.warning("mirror waits for its clusters", reason=str(error))
            await _wait(self._stop, max(min(refresh_at, groups_at) - loop.time(), RETRY_SECONDS))
        await asyncio.gather(*(worker.task for worker in self._workers.values()), return_exceptions=True)
        if self._failure is None:
            # What was mirrored last counts for those who move over now.
            try:
                await self._mirror_groups(source, target)
            except ClientError as error:
                log_events.warning("positions of groups were not mirrored at the end", reason=str(error))

    async def _refresh(self, finder: TopicFinder) -> None:
        found = await finder.find()
        self._note(found.failures)
        for pair in found.pairs:
            self._follow(pair)
        for topic in self._workers.keys() - {pair.topic.name for pair in found.pairs} - found.failures.keys():
            log_events.warning("topic is no longer there to be mirrored", topic=topic)
            await self._end_worker(topic)

    def _note(self, failures: Mapping[str, ClientError]) -> None:
        for topic, error in failures.items():
            self.progress.setdefault(topic, TopicProgress()).error = str(error)

    async def _mirror_groups(self, source: ClusterClient, target: ClusterClient) -> None:
        copies = {topic: self._names.target_of(topic) for topic in self.progress}
        await mirror_groups(source, target, matches=self._matches_group, copies=copies, books=self._books)

    def _follow(self, pair: Pair) -> None:
        """One worker for each topic; one that has grown, or was made anew, gets a new one."""
        worker = self._workers.get(pair.topic.name)
        if worker is not None:
            if worker.pair.identity == pair.identity and not worker.task.done():
                return
            worker.stop.set()
        stop = asyncio.Event()
        before = None if worker is None else worker.task
        task = self._tasks.start(f"mirror {pair.topic.name}", self._keep_mirroring(pair, stop, before))
        self._workers[pair.topic.name] = _Worker(pair, stop, task)

    async def _end_worker(self, topic: str) -> None:
        """At once: what is under way is undone."""
        worker = self._workers.pop(topic, None)
        if worker is not None:
            worker.task.cancel()
            await asyncio.wait([worker.task])

    async def _keep_mirroring(self, pair: Pair, stop: asyncio.Event, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while not stop.is_set():
            try:
                await self._mirror_topic(pair, ends=None, stop=stop)
            except (ProducerFencedError, MirrorError) as error:
                # Another mirror of this name is at work, or the topic is not the one it was: a person has to look.
                self._failure = error
                self.stop()
            except ClientError as error:
                self._note({pair.topic.name: error})
                log_events.warning("topic is tried again", topic=pair.topic.name, reason=str(error))
                await _wait(stop, RETRY_SECONDS)

    async def _mirror_topic(self, pair: Pair, *, ends: Mapping[int, int] | None, stop: asyncio.Event) -> None:
        topic, copy_name = pair.topic.name, self._names.target_of(pair.topic.name)
        progress = self.progress.setdefault(topic, TopicProgress())
        plan = self._plan
        async with _client(plan.source) as source, _client(plan.target) as target_client:
            transactional_id = f"penstock-mirror-{plan.name}-{topic}"
            target = await open_target(
                target_client, transactional_id, patience_ms=PATIENCE_MS, exactly_once=self._exactly_once
            )
            lineage = Lineage(id_of(await source.topic(topic)), id_of(await target_client.topic(copy_name)))
            await self._take_up_books(target_client, pair, lineage)
            copy = TopicMirror(
                Route(plan.name, topic, copy_name),
                source=source,
                target=target,
                books=self._books,
                clock=self._clock,
                progress=progress,
            )
            starts = await self._starts(source, pair)
            progress.error = None
            try:
                await copy.run(starts, ends=ends, stop=stop)
            except OffsetOutOfRangeError as error:
                raise _made_anew(topic, copy_name, str(error)) from error

    async def _take_up_books(self, target: ClusterClient, pair: Pair, lineage: Lineage) -> None:
        """After the fence: nobody else writes runs of this topic from here on."""
        written = await read_journal(target, self._plan.name)
        topic = pair.topic.name
        for partition in range(len(pair.topic.partitions)):
            # Also where there is none: what a transaction was to write that failed is not true.
            book = written[topic, partition].taken_up(lineage)
            if book is None:
                raise _made_anew(topic, self._names.target_of(topic), "it has another id than the one mirrored before")
            self._books[topic, partition] = book

    async def _starts(self, source: ClusterClient, pair: Pair) -> dict[int, int]:
        topic, partitions = pair.topic.name, range(len(pair.topic.partitions))
        known = {
            partition: position
            for partition in partitions
            if (position := self._books[topic, partition].source_next) is not None
        }
        new = set(partitions) - set(known)
        if new:
            where = LATEST if self._plan.from_latest else EARLIEST
            known |= await list_offsets(source, topic, dict.fromkeys(new, where), is_read_committed=True)
        return known


def _made_anew(topic: str, copy: str, reason: str) -> MirrorError:
    return MirrorError(
        f"topic {topic!r} of the source was deleted and made anew, or is another cluster's ({reason}): "
        f"delete its copy {copy!r} to have it mirrored from its beginning, or take another --name"
    )


class _Worker(NamedTuple):
    pair: Pair
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
        raise MirrorError(f"{what}: {expression!r} is not a regular expression")
    return matches
