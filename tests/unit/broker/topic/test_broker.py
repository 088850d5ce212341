"""The broker between its catalog and its disk: what survives a restart, a failed disk, a full one, and old age."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.partition.comeback import come_back
from penstock.cluster.store.keys import KeySpace
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.storage.config import StorageConfig
from penstock.storage.files.memory import MemoryFiles
from support.door.conversation import Conversation, running_node
from support.door.kafka_phrases import DAY_MS, batch, fetch, only_partition, outcome, produce, values_in
from support.storage.gated_disk import GatedDisk

FAILED = (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def stored(talk: Conversation, offset: int = 0) -> list[bytes | None]:
    data = only_partition(await talk.ask(fetch("orders", offset), FetchResponse, 12))
    assert data.error_code == ErrorCode.NONE
    return values_in(data.records)


async def test_topics_and_what_is_in_them_survive_a_restart(tmp_path: Path) -> None:
    once = produce("orders", batch(b"once", producer_id=7, sequence=4))
    async with running_node(data_dir=str(tmp_path)) as node:
        topic_id = await node.create_topic("orders", 3, retention_ms="5000000000000")
        talk = await node.connect()
        assert outcome(await talk.ask(once, ProduceResponse, 9)) == (ErrorCode.NONE, 0)
    async with running_node(data_dir=str(tmp_path)) as node:
        (topic,) = node.broker.topics()
        assert (topic.topic_id, topic.partition_count, topic.config.retention_ms) == (topic_id, 3, 5_000_000_000_000)
        talk = await node.connect()
        # The producer is known too: what it sends again is no second batch.
        assert outcome(await talk.ask(once, ProduceResponse, 9)) == (ErrorCode.NONE, 0)
        assert await stored(talk) == [b"once"]


class BrokenDirectories(MemoryFiles):
    """Directories cannot be looked at or renamed while it is broken."""

    is_broken = False

    def list_directory(self, path: str) -> list[str]:
        self._fail_if_broken(path)
        return super().list_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._fail_if_broken(source)
        super().rename(source, target)

    def _fail_if_broken(self, path: str) -> None:
        if self.is_broken:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


async def test_disk_that_refuses_one_topic_does_not_keep_the_next() -> None:
    """The catalog's watch brings one change after another: it must outlive one that cannot be followed."""
    disk = BrokenDirectories()
    async with running_node(files=lambda: disk) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)
        disk.is_broken = True
        await node.catalog.delete_topic("orders")
        await node.create_topic("unlucky")
        await node.create_topic("unluckier")
        disk.is_broken = False
        reply = await talk.ask(produce("unlucky", batch(b"a")), ProduceResponse, 9)
        assert outcome(reply)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Any change brings it in, and what was never served can be deleted.
        await node.catalog.create_partitions("unlucky", 2)
        await node.catalog.delete_topic("unluckier")
        await node.create_topic("orders")
        for topic in ("unlucky", "orders"):
            assert outcome(await talk.ask(produce(topic, batch(b"a")), ProduceResponse, 9)) == (ErrorCode.NONE, 0)


async def test_full_disk_refuses_writes_serves_reads_and_resumes() -> None:
    disk = MemoryFiles(bytes_max=3_000_000)
    async with running_node(files=lambda: disk, storage=StorageConfig(free_bytes_min=1_000_000)) as node:
        await node.create_topic("orders")
        await node.create_topic("ballast", max_message_bytes="2500000", durability="interval")
        talk = await node.connect()
        assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)) == (ErrorCode.NONE, 0)
        await talk.ask(produce("ballast", batch(bytes(2_100_000))), ProduceResponse, 9)
        node.broker._store.free_space_check()
        for _ in range(3):
            assert outcome(await talk.ask(produce("orders", batch(b"b")), ProduceResponse, 9)) == FAILED
        assert await stored(talk) == [b"a"]
        assert not node.broker.is_healthy
        await node.catalog.delete_topic("ballast")
        while disk.bytes_used > 1_000_000:
            await talk.expect_open()
        node.broker._store.free_space_check()
        assert outcome(await talk.ask(produce("orders", batch(b"b")), ProduceResponse, 9)) == (ErrorCode.NONE, 1)


async def test_a_deletion_is_remembered_until_the_files_are_gone() -> None:
    disk = MemoryFiles()
    async with running_node(files=lambda: disk) as node:
        topic_id = await node.create_topic("orders")
        talk = await node.connect()
        await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)
        await node.catalog.delete_topic("orders")
        key = KeySpace().removed_topic(topic_id)
        # Until then it is there: a start in between knows by it that the files may go.
        async with asyncio.timeout(10):
            while await node.catalog._store.get(key) is not None:
                await talk.expect_open()
        assert not [path for path in disk.list_directory(node.broker._store.logs_directory) if topic_id.hex() in path]


async def test_topic_deleted_while_it_is_read_again_stays_gone() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        topic_id = await node.create_topic("orders")
        disk.fail(topic_id, 0)
        talk = await node.connect()
        assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)) == FAILED
        disk.heal()
        shell = node.shell("orders")
        recovered = node.broker._store.recover_log(shell.log)
        await node.catalog.delete_topic("orders")
        come_back(shell, recovered)
        assert shell.is_offline
        assert shell.log.failure == "the log is closed"


@pytest.mark.parametrize("setting", ["retention_ms", "retention_bytes"])
async def test_old_segments_are_retired_and_their_offsets_out_of_range(setting: str) -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders", segment_bytes="1024", durability="interval", **{setting: "2000"})
        talk = await node.connect()
        for number in range(5):
            clock.advance_ms(1000)
            sent = batch(b"x" * 900, timestamp_ms=clock.now_ms())
            assert outcome(await talk.ask(produce("orders", sent), ProduceResponse, 9)) == (ErrorCode.NONE, number)
        # What is to go waits for a checkpoint that knows of what stays.
        await node.broker._upkeep.apply_retention()
        await node.broker._store.checkpoint()
        await node.broker._upkeep.apply_retention()
        data = only_partition(await talk.ask(fetch("orders"), FetchResponse, 12))
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        log_start = node.shell("orders").log_start
        assert 0 < log_start < 5
        assert len(await stored(talk, log_start)) == 1
