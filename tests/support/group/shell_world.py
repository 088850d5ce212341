"""A group's shell on a log of its own, with a disk that the test chooses."""

from __future__ import annotations

from penstock.base.clock import ManualClock
from penstock.broker.group.shell import GroupContext, GroupShell
from penstock.broker.machine.journal_reader import SNAPSHOT_RECORDS_MIN
from penstock.broker.partition.log_config import log_config
from penstock.broker.partition.role import ALONE
from penstock.broker.partition.shell import PartitionShell
from penstock.domain.config.topic import make_topic_config
from penstock.domain.group.commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    FetchedOffset,
    FetchOffsets,
    GroupReply,
    OffsetsFetched,
    OffsetToCommit,
    PartitionName,
)
from penstock.domain.group.values import GroupConfig, TopicFact
from penstock.storage.config import StorageConfig
from penstock.storage.files import Files, MemoryFiles
from penstock.storage.store import LogStore

TOPIC_ID = bytes(range(16))


class OneTopic:
    revision = 1

    def find(self, name: str) -> TopicFact | None:
        return TopicFact(TOPIC_ID, 4) if name == "orders" else None

    def name_of(self, topic_id: bytes) -> str | None:
        return "orders" if topic_id == TOPIC_ID else None

    def matching(self, expression: str, principal: str) -> tuple[str, ...] | None:
        return ("orders",)


class ShellWorld:
    def __init__(
        self,
        files: Files | None = None,
        config: GroupConfig | None = None,
        *,
        topic_settings: dict[str, str] | None = None,
        snapshot_records_min: int = SNAPSHOT_RECORDS_MIN,
    ) -> None:
        self._snapshot_records_min = snapshot_records_min
        self.clock = ManualClock()
        self._topic_settings = {"cleanup.policy": "compact", **(topic_settings or {})}
        self.files = files or MemoryFiles()
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.open()

    def open(self) -> None:
        """As a node does that starts: whatever was in memory is gone."""
        self.store = LogStore.open(self.files, "/data", StorageConfig(free_bytes_min=0), self.clock)
        config = make_topic_config(self._topic_settings)
        log = self.store.open_log("__consumer_offsets", bytes(15) + b"1", 0, log_config(config))
        self.partition = PartitionShell(
            "__consumer_offsets", 0, log, store=self.store, clock=self.clock, config=config, role=ALONE
        )
        self.shell = self.new_shell()

    def new_shell(self) -> GroupShell:
        context = GroupContext(
            config=self.config,
            topics=OneTopic(),
            clock=self.clock,
            steady=self.clock,
            snapshot_records_min=self._snapshot_records_min,
        )
        return GroupShell(context, self.partition.leadership, self.partition)

    async def restart(self) -> None:
        """The machine is dropped and rebuilt; the log stays open."""
        self.shell.close()
        self.shell = self.new_shell()
        await self.shell.load()

    async def commit(self, group: str, partition: int, offset: int) -> GroupReply:
        return await self.shell.submit(group, CommitOffsets((OffsetToCommit("orders", partition, offset),)))

    async def commit_in_transaction(self, group: str, partition: int, offset: int, producer_id: int = 7) -> GroupReply:
        with self.shell.guard(producer_id) as guard:
            offsets = (OffsetToCommit("orders", partition, offset),)
            return await self.shell.submit(group, CommitTransactionOffsets(producer_id, 0, offsets, guard=guard))

    async def commit_with_guard(self, group: str, guard: int) -> GroupReply:
        offsets = (OffsetToCommit("orders", 0, 9),)
        return await self.shell.submit(group, CommitTransactionOffsets(7, 0, offsets, guard=guard))

    async def fetch(self, group: str, partition: int) -> int:
        return (await self.fetch_one(group, partition)).offset

    async def fetch_one(self, group: str, partition: int, *, requires_stable: bool = False) -> FetchedOffset:
        wanted = FetchOffsets((PartitionName("orders", partition),), requires_stable=requires_stable)
        reply = await self.shell.submit(group, wanted)
        assert isinstance(reply, OffsetsFetched), reply
        return reply.partitions[0]
