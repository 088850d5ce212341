"""A group's shell between the pure table and a real log: what is acknowledged is kept, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.group_shell import GroupShell
from penstock.broker.partition_shell import PartitionShell, log_config
from penstock.domain.group_commands import (
    CommitOffsets,
    DeleteGroup,
    Done,
    FetchOffsets,
    Join,
    Joined,
    OffsetsFetched,
    OffsetsWritten,
    OffsetToCommit,
    PartitionName,
    Refused,
    Sync,
    Synced,
)
from penstock.domain.group_values import GroupConfig, GroupError, TopicFact
from penstock.domain.topic_config import make_topic_config
from penstock.storage.files import MemoryFiles
from penstock.storage.log_store import LogStore
from penstock.storage.storage_config import StorageConfig

TOPIC_ID = bytes(range(16))


class OneTopic:
    revision = 1

    def find(self, name: str) -> TopicFact | None:
        return TopicFact(TOPIC_ID, 4) if name == "orders" else None

    def name_of(self, topic_id: bytes) -> str | None:
        return "orders" if topic_id == TOPIC_ID else None

    def matching(self, expression: str) -> tuple[str, ...] | None:
        return ("orders",)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = LogStore.open(MemoryFiles(), "data", StorageConfig(free_bytes_min=0), self.clock)
        config = make_topic_config({})
        log = self.store.open_log("__consumer_offsets", bytes(15) + b"1", 0, log_config(config))
        self.partition = PartitionShell("__consumer_offsets", 0, log, store=self.store, clock=self.clock, config=config)
        self.shell = self.new_shell()

    def new_shell(self) -> GroupShell:
        config = GroupConfig(initial_rebalance_delay_ms=0)
        return GroupShell(self.partition, config=config, topics=OneTopic(), clock=self.clock, steady=self.clock)

    async def restart(self) -> None:
        self.shell.close()
        self.shell = self.new_shell()
        await self.shell.load()

    async def commit(self, group: str, partition: int, offset: int) -> object:
        return await self.shell.submit(group, CommitOffsets((OffsetToCommit("orders", partition, offset),)))

    async def fetch(self, group: str, partition: int) -> int:
        reply = await self.shell.submit(group, FetchOffsets((PartitionName("orders", partition),)))
        assert isinstance(reply, OffsetsFetched)
        return reply.partitions[0].offset


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.shell.load()
    yield made
    made.shell.close()


async def test_a_commit_is_found_again_after_a_restart(world: World) -> None:
    assert isinstance(await world.commit("billing", 2, 40), OffsetsWritten)
    assert isinstance(await world.commit("billing", 2, 41), OffsetsWritten)
    await world.restart()
    assert await world.fetch("billing", 2) == 41
    assert await world.fetch("billing", 3) == -1


async def test_commits_of_one_turn_share_one_batch(world: World) -> None:
    await asyncio.gather(*(world.commit(f"group-{number}", 0, number) for number in range(500)))
    log = world.partition.log
    assert log.record_count == 500
    assert log.unsaved_batches == 1
    await world.restart()
    assert world.shell.replayed_records == 500
    assert [await world.fetch(f"group-{number}", 0) for number in (0, 1, 499)] == [0, 1, 499]


async def test_a_deleted_group_stays_deleted(world: World) -> None:
    await world.commit("billing", 0, 7)
    assert isinstance(await world.shell.submit("billing", DeleteGroup()), Done)
    await world.restart()
    assert await world.fetch("billing", 0) == -1
    assert world.shell.group_ids() == []


async def test_a_member_and_its_generation_survive_a_restart(world: World) -> None:
    join = Join(1, "", "m-1", "consumer", (("range", b"meta"),), 10_000, 10_000, requires_known_id=False)
    joined = await asyncio.wait_for(world.shell.submit("billing", join), 5)
    assert isinstance(joined, Joined)
    sync = Sync(2, "m-1", joined.generation, assignments=(("m-1", b"all"),))
    synced = await asyncio.wait_for(world.shell.submit("billing", sync), 5)
    assert isinstance(synced, Synced)
    assert synced.assignment == b"all"
    await world.restart()
    description = await world.shell.describe("billing")
    assert [member.member_id for member in description.members] == ["m-1"]
    assert description.epoch == joined.generation


async def test_a_full_disk_refuses_the_commit_and_forgets_it(world: World) -> None:
    await world.commit("billing", 0, 1)
    world.store.context.is_full = True
    refused = await world.commit("billing", 0, 2)
    assert refused == Refused(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert world.shell.is_lost
    world.store.context.is_full = False
    await world.restart()
    assert await world.fetch("billing", 0) == 1
