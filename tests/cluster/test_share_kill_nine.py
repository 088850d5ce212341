"""kill -9 in the middle of a share group's deliveries: nothing accepted comes back, nothing is lost, and what fails too
often is buried once.

Two members on raw connections, so that the test knows of each acceptance whether it was confirmed. Some messages are
never accepted: they end in the dead letters. Three cycles in `make test`; `make chaos` sets PENSTOCK_QUEUE_KILL_CYCLES
to 100.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.share_fetch import PartitionData
from support.door.conversation import Conversation
from support.door.kafka_phrases import records_in
from support.node_process import NodeProcess
from support.share.phrases import GROUP, Ack, ShareMember, accept, acquired_in, partitions_in, release

CYCLES: Final = int(os.environ.get("PENSTOCK_QUEUE_KILL_CYCLES", "3"))
MESSAGES_PER_CYCLE: Final = 400
POISON_EVERY: Final = 37
DELIVERIES_MAX: Final = 3
QUIET_FETCHES: Final = 8
SEED: Final = 932
TOPIC, GRAVEYARD = "jobs", "jobs-dead"


class Story:
    """What the members know of every message, by its offset."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        # Told, and the node was killed before it answered.
        self.open_ended: set[int] = set()
        self.delivered: Counter[int] = Counter()
        self.is_over = False


class Worker:
    def __init__(self, node: NodeProcess, name: str, story: Story) -> None:
        self._node = node
        self._name = name
        self._story = story

    async def run(self) -> None:
        quiet = 0
        while not self._story.is_over or quiet < QUIET_FETCHES:
            try:
                member = await self._begin()
                while not self._story.is_over or quiet < QUIET_FETCHES:
                    quiet = 0 if await self._step(member) else quiet + 1
                member.talk.close()
            except (OSError, asyncio.IncompleteReadError):
                quiet = 0
                await asyncio.sleep(0.05)

    async def _begin(self) -> ShareMember:
        host, _, port = self._node.kafka.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        member = ShareMember(Conversation(reader, writer, self._name), self._name)
        self._acks: list[Ack] = []
        await member.join(TOPIC)
        return member

    async def _step(self, member: ShareMember) -> bool:
        """Settles what it holds and takes more. Whether there was anything."""
        acks, self._acks = self._acks, []
        told = {offset for first, last, types in acks if types == (1,) for offset in range(first, last + 1)}
        self._story.open_ended |= told
        reply = await member.ask_fetch(*acks, count=20, wait_ms=100)
        assert reply.error_code == ErrorCode.NONE, reply
        for data in partitions_in(reply):
            assert data.error_code == ErrorCode.NONE, data
            if acks:
                assert data.acknowledge_error_code == ErrorCode.NONE, (data, acks)
            self._take(data)
        self._story.open_ended -= told
        self._story.confirmed |= told
        return bool(acks or self._acks)

    def _take(self, data: PartitionData) -> None:
        values = {record.offset: record.value for record in records_in(data.records)} if data.records else {}
        for offset, count in acquired_in(data):
            assert offset not in self._story.confirmed, f"{offset} was accepted and comes back"
            assert count <= DELIVERIES_MAX, f"{offset} is delivered for the {count}th time"
            self._story.delivered[offset] += 1
            is_poison = (values[offset] or b"").startswith(b"poison")
            self._acks.append(release(offset) if is_poison else accept(offset))


@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_kill_nine_brings_nothing_back_loses_nothing_and_buries_once(own_node: NodeProcess) -> None:
    make_group(own_node)
    chance = random.Random(SEED)
    story = Story()
    total = 0
    async with asyncio.TaskGroup() as members:
        for name in ("ann", "bob"):
            members.create_task(Worker(own_node, name, story).run())
        for _ in range(CYCLES):
            total = await asyncio.to_thread(publish, own_node, total)
            await asyncio.sleep(chance.uniform(0.02, 0.4))
            await asyncio.to_thread(own_node.kill)
            await asyncio.to_thread(own_node.start)
        total = await asyncio.to_thread(publish, own_node, total)
        story.is_over = True
    poison = {offset for offset in range(total) if offset % POISON_EVERY == 0}
    dead = await asyncio.to_thread(buried, own_node, len(poison))
    assert dead == Counter(f"poison {offset}".encode() for offset in poison)
    settled = story.confirmed | story.open_ended
    assert settled == set(range(total)) - poison
    assert "Traceback" not in own_node.log_text(), own_node.log_tail()


def make_group(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(20)
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": str(DELIVERIES_MAX),
        "errors.deadletterqueue.topic.name": GRAVEYARD,
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)


def publish(node: NodeProcess, total: int) -> int:
    """Offsets are numbers: the topic has one partition and one producer at a time."""
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True, "batch.num.messages": 10})
    for offset in range(total, total + MESSAGES_PER_CYCLE):
        word = "poison" if offset % POISON_EVERY == 0 else "job"
        producer.produce(TOPIC, f"{word} {offset}".encode(), partition=0)
    assert producer.flush(30) == 0
    return total + MESSAGES_PER_CYCLE


def buried(node: NodeProcess, count: int) -> Counter[bytes]:
    """The dead letters: so many, and a moment more to see whether others follow."""
    reader = Consumer({"bootstrap.servers": node.kafka, "group.id": "undertaker", "enable.auto.commit": False})
    reader.assign([TopicPartition(GRAVEYARD, 0, OFFSET_BEGINNING)])
    found: Counter[bytes] = Counter()
    quiet = 0
    while quiet < (5 if found.total() >= count else 50):
        messages = [each for each in reader.consume(1_000, 0.2) if each.error() is None]
        found.update(each.value() or b"" for each in messages)
        quiet = 0 if messages else quiet + 1
    reader.close()
    return found
