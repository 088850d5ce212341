"""Consumer groups of this node: which partition of `__consumer_offsets` a group belongs to, and its shell there.

The internal topic is created when the first client asks for a group. Each of its partitions is replayed once, before
the first answer; one whose journal was lost is replayed again as soon as its log is back.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from functools import lru_cache
from typing import Final

from penstock.base.clock import Clock, SteadyClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.broker import Broker
from penstock.broker.group_shell import GroupShell
from penstock.broker.journal import JournalLostError
from penstock.cluster.topic_catalog import AlreadyExists, Created, TopicCatalog
from penstock.cluster.topic_image import Change, TopicRemoved
from penstock.domain.group_commands import ExpireOffsets, ForgetTopics, GroupCommand, GroupReply, Refused
from penstock.domain.group_description import NO_GROUP, GroupDescription
from penstock.domain.group_values import GroupConfig, GroupError, TopicFact
from penstock.domain.topic_rules import CONSUMER_OFFSETS, is_internal

log = get_logger("groups")

# Enough to spread groups over the nodes of a cluster; Kafka's 50 would be 50 files to sync on one node.
PARTITION_COUNT: Final = 8
EXPIRY_CHECK_MS: Final = 600_000
RELOAD_MS: Final = 2_000
# A group of thousands of members is one record, and one decision is one batch.
OVERRIDES: Final = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": str(16 * 1024 * 1024)}


class BrokerTopics:
    """What groups need to know of topics, as the broker knows it now."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._matching = lru_cache(maxsize=256)(self._match)

    @property
    def revision(self) -> int:
        return self._broker.generation

    def find(self, name: str) -> TopicFact | None:
        topic = self._broker.topic(name)
        return None if topic is None else TopicFact(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._broker.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, expression: str) -> tuple[str, ...] | None:
        return self._matching(expression, self._broker.generation)

    def _match(self, expression: str, _generation: int) -> tuple[str, ...] | None:
        try:
            pattern = re.compile(expression)
        except re.error:
            return None
        names = (topic.name for topic in self._broker.topics())
        return tuple(name for name in names if not is_internal(name) and pattern.fullmatch(name))


class GroupCoordinator:
    def __init__(
        self, broker: Broker, catalog: TopicCatalog, config: GroupConfig, *, clock: Clock, tasks: TaskSupervisor
    ) -> None:
        self._broker = broker
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._tasks = tasks
        self._topics = BrokerTopics(broker)
        self._shells: list[GroupShell] = []
        self._loading: asyncio.Task[None] | None = None
        self._last_ticket = 0
        catalog.on_change(self._on_change)

    # Life

    async def start(self) -> None:
        """Replays what there is; without the internal topic there is nothing."""
        if self._broker.topic(CONSUMER_OFFSETS) is not None:
            await self._load()
        self._tasks.every(EXPIRY_CHECK_MS, "offset expiry", self._expire)
        self._tasks.every(RELOAD_MS, "group reload", self._reload_lost)

    async def stop(self) -> None:
        for shell in self._shells:
            shell.close()

    async def ready(self) -> bool:
        """The internal topic exists and has been replayed; False if it could not be created."""
        if not self._shells:
            if self._loading is None or self._loading.done():
                self._loading = self._tasks.start("groups loading", self._create_and_load())
            await asyncio.shield(self._loading)
        return bool(self._shells)

    async def _create_and_load(self) -> None:
        if self._broker.topic(CONSUMER_OFFSETS) is None:
            outcome = await self._catalog.create_topic(CONSUMER_OFFSETS, PARTITION_COUNT, OVERRIDES)
            assert isinstance(outcome, Created | AlreadyExists), outcome
        await self._load()

    async def _load(self) -> None:
        topic = self._broker.topic(CONSUMER_OFFSETS)
        assert topic is not None
        shells = [
            GroupShell(partition, config=self._config, topics=self._topics, clock=self._clock, steady=self._steady)
            for partition in topic.partitions
        ]
        for shell in shells:
            await self._load_one(shell)
        self._shells = shells

    async def _load_one(self, shell: GroupShell) -> None:
        try:
            await shell.load()
        except JournalLostError as error:
            log.error("groups not available", error=str(error))

    async def _reload_lost(self) -> None:
        for shell in [] if self._broker.is_stopping else self._shells:
            if shell.is_lost:
                shell.close()
            if not shell.is_loaded:
                await self._load_one(shell)

    # Commands

    def next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    async def submit(self, group_id: str, command: GroupCommand) -> GroupReply:
        if not await self.ready() or self._broker.is_stopping:
            return Refused(GroupError.COORDINATOR_NOT_AVAILABLE)
        return await self._shell_of(group_id).submit(group_id, command)

    async def describe(self, group_id: str) -> GroupDescription:
        if not self._has_any() or not await self.ready():
            return NO_GROUP
        return await self._shell_of(group_id).describe(group_id)

    async def list_groups(self) -> list[tuple[str, GroupDescription]]:
        if not self._has_any() or not await self.ready():
            return []
        return [(group_id, await shell.describe(group_id)) for shell in self._shells for group_id in shell.group_ids()]

    def _has_any(self) -> bool:
        """False: no group was ever asked for. Looking must not create the internal topic."""
        return self._broker.topic(CONSUMER_OFFSETS) is not None

    def partition_of(self, group_id: str) -> int:
        # Not Python's hash, which differs from process to process.
        return zlib.crc32(group_id.encode()) % len(self._shells)

    def _shell_of(self, group_id: str) -> GroupShell:
        return self._shells[self.partition_of(group_id)]

    async def _expire(self) -> None:
        for shell in self._shells:
            shell.submit_to_all(ExpireOffsets())

    def _on_change(self, change: Change) -> None:
        if isinstance(change, TopicRemoved):
            for shell in self._shells:
                shell.submit_to_all(ForgetTopics((change.topic.name,)))
