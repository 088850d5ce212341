"""The same promise as `test_kill_nine`, without the page cache's help: whatever was not synced is gone.

A whole node runs on the file seam. At moments under load a copy is made of what the disk would hold after a power
cut, and a store is opened on that copy: every acknowledged message must be there, at the offset that was told. Three
ways to lose what was not synced: all of it, all from some moment on, or any of it in pieces.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator
from random import Random
from typing import Final

import pytest

from penstock.base.clock import ManualClock
from penstock.codec import kafka as wire
from penstock.codec.kafka.messages.metadata import MetadataResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.store import LogStore
from support.door.conversation import Conversation, running_node
from support.door.kafka_phrases import batch, metadata, outcomes, produce_many, records_in
from support.storage.faulty_files import CrashMode, FaultyFiles, Inode

TOPIC: Final = "promised"
PARTITIONS: Final = 6
REQUESTS: Final = 150
IN_FLIGHT: Final = 8
# The node in memory calls its directory so; the fake disk finds names again from its own root.
ROOT: Final = "/memory"
# Name-based: topic ids would add nothing here.
VERSION: Final = 9
# The copy is made beside the node's own threads; one that moved a name meanwhile is copied again.
COPIES_MAX: Final = 100


class WatchedFiles(FaultyFiles):
    """A disk whose state can be copied while it is used, and whose syncs can be held back."""

    # Of the class: a lock can be neither copied nor shared with a copy.
    _syncing = threading.RLock()
    may_sync = threading.Event()

    def make_durable(self, inode: Inode) -> None:
        assert self.may_sync.wait(20), "the test never let the sync go on"
        with self._syncing:
            super().make_durable(inode)

    def after_power_cut(self, mode: CrashMode, seed: int) -> FaultyFiles:
        for _ in range(COPIES_MAX):
            try:
                with self._syncing:
                    remains = copy.deepcopy(self)
            except RuntimeError:
                continue
            remains.random = Random(seed)
            remains.crash(mode)
            return remains
        raise AssertionError(f"the disk did not stand still in {COPIES_MAX} attempts")


@pytest.fixture
def files() -> Iterator[WatchedFiles]:
    WatchedFiles.may_sync.set()
    yield WatchedFiles()
    WatchedFiles.may_sync.set()


def stored_values(files: FaultyFiles, topic_id: bytes) -> dict[int, list[bytes | None]]:
    """What a node would serve that starts on this disk."""
    store = LogStore.open(files, ROOT, StorageConfig(), ManualClock())
    values: dict[int, list[bytes | None]] = {}
    for partition in range(PARTITIONS):
        log = store.open_log(TOPIC, topic_id, partition, LogConfig())
        assert log.damage is None, log.damage
        assert log.failure is None, log.failure
        log.advance_readable(log.log_end)
        found = values.setdefault(partition, [])
        while len(found) < log.log_end:
            plan = log.plan_read(len(found), bytes_max=1 << 20)
            assert isinstance(plan, ReadPlan), plan
            records = records_in(plan.load())
            assert [record.offset for record in records] == list(range(len(found), len(found) + len(records)))
            found += [record.value for record in records]
    return values


async def hear_acknowledged(talk: Conversation, request: int, acknowledged: dict[tuple[int, int], bytes]) -> None:
    reply = await talk.hear(ProduceResponse)
    for partition, (error, offset) in zip(partitions_of(request), outcomes(reply), strict=True):
        assert error == wire.ErrorCode.NONE
        acknowledged[partition, offset] = value_of(request, partition)


def partitions_of(request: int) -> list[int]:
    """One dirty file in some turns, more than four in others: both ways to sync are taken."""
    return [request % PARTITIONS] if request % 3 else list(range(PARTITIONS))


def value_of(request: int, partition: int) -> bytes:
    return b"request %d for partition %d" % (request, partition)


@pytest.mark.parametrize("mode", [CrashMode.LOST, CrashMode.ORDERED, CrashMode.SCATTERED], ids=lambda mode: mode.value)
async def test_power_cut_loses_nothing_acknowledged(files: WatchedFiles, mode: CrashMode) -> None:
    acknowledged: dict[tuple[int, int], bytes] = {}
    async with running_node(files=lambda: files) as node:
        topic_id = await node.create_topic(TOPIC, PARTITIONS, durability="fsync", segment_bytes="2048")
        talk = await node.connect()
        for request in range(REQUESTS + IN_FLIGHT):
            if request < REQUESTS:
                entries = [(TOPIC, number, batch(value_of(request, number))) for number in partitions_of(request)]
                await talk.send(produce_many(entries), VERSION)
            if request >= IN_FLIGHT:
                await hear_acknowledged(talk, request - IN_FLIGHT, acknowledged)
                told = dict(acknowledged)
                values = stored_values(files.after_power_cut(mode, seed=request), topic_id)
                lost = [place for place, value in told.items() if values[place[0]][place[1] :][:1] != [value]]
                assert not lost, f"after request {request}: {len(lost)} acknowledged messages are gone: {lost[:3]}"
    assert len(acknowledged) == sum(len(partitions_of(request)) for request in range(REQUESTS))


async def test_interval_would_be_caught(files: WatchedFiles) -> None:
    """The proof's own proof: replies that do not wait for the sync are seen to be lost."""
    async with running_node(files=lambda: files) as node:
        topic_id = await node.create_topic(TOPIC, PARTITIONS, durability="interval")
        talk = await node.connect()
        files.may_sync.clear()
        await talk.send(produce_many([(TOPIC, 0, batch(b"too early"))]), VERSION)
        assert outcomes(await talk.hear(ProduceResponse)) == [(wire.ErrorCode.NONE, 0)]
        remains = files.after_power_cut(CrashMode.LOST, seed=1)
        # A start syncs what a killed process left, and syncs of all disks are held back together.
        files.may_sync.set()
        assert stored_values(remains, topic_id)[0] == []


@pytest.mark.parametrize("logs", [1, PARTITIONS])
async def test_no_reply_leaves_while_its_sync_is_held_back(files: WatchedFiles, logs: int) -> None:
    async with running_node(files=lambda: files) as node:
        await node.create_topic(TOPIC, PARTITIONS, durability="fsync")
        talk, other = await node.connect(), await node.connect()
        files.may_sync.clear()
        await talk.send(produce_many([(TOPIC, number, batch(b"held")) for number in range(logs)]), VERSION)
        heard = asyncio.create_task(talk.hear(ProduceResponse))
        for _ in range(100):
            # The node is not busy: it answers others, and what it has written waits for the disk alone.
            await other.ask(metadata(TOPIC), MetadataResponse, VERSION)
        assert node.shell(TOPIC).log.log_end == 1
        assert node.shell(TOPIC).readable_end == 0, "a consumer could read what a power cut would take back"
        assert not heard.done(), "the reply left before the sync"
        files.may_sync.set()
        assert outcomes(await heard) == [(wire.ErrorCode.NONE, 0)] * logs
        assert node.shell(TOPIC).readable_end == 1
