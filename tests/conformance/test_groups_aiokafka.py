"""Groups of aiokafka: the classic protocol in its older versions, written in Python alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalGenerationError, UnknownMemberIdError

from support.group.node import HEARTBEAT_MS, LONG_SESSION_MS, SESSION_MS, node_for_groups
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0
PARTITIONS = 4
Enter = Callable[..., Awaitable[AIOKafkaConsumer]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("groups-aiokafka")) as running:
        yield running


@pytest.fixture
async def orders(node: NodeProcess, topic: str) -> str:
    await create(node, topic)
    return topic


async def create(node: NodeProcess, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=node.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    await admin.close()


async def start_member(node: NodeProcess, topic: str, group: str, **settings: Any) -> AIOKafkaConsumer:
    listener = settings.pop("listener", None)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=node.kafka,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=settings.pop("enable_auto_commit", False),
        session_timeout_ms=settings.pop("session_timeout_ms", SESSION_MS),
        heartbeat_interval_ms=HEARTBEAT_MS,
        metadata_max_age_ms=1_000,
        **settings,
    )
    consumer.subscribe([topic], listener=listener)
    await consumer.start()
    return consumer


@pytest.fixture
async def enter(node: NodeProcess) -> AsyncIterator[Enter]:
    members: list[AIOKafkaConsumer] = []

    async def make(topic: str, group: str, **settings: Any) -> AIOKafkaConsumer:
        members.append(await start_member(node, topic, group, **settings))
        return members[-1]

    yield make
    for member in members:
        await member.stop()


async def send(node: NodeProcess, topic: str, count: int) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    async with AIOKafkaProducer(bootstrap_servers=node.kafka) as producer:
        for number, value in enumerate(values):
            await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
    return values


async def receive(count: int, *members: AIOKafkaConsumer) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while len(values) < count:
            for member in members:
                polled = await member.getmany(timeout_ms=50)
                values += [message.value for messages in polled.values() for message in messages]
    return values


async def settle(topic: str, *members: AIOKafkaConsumer) -> None:
    """Every partition has one owner, and the members share them evenly."""
    everything = [(topic, number) for number in range(PARTITIONS)]
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            held = [sorted((place.topic, place.partition) for place in member.assignment()) for member in members]
            counts = sorted(map(len, held))
            if sorted(sum(held, [])) == everything and counts[-1] - counts[0] <= 1:  # noqa: RUF017
                return
            await asyncio.sleep(0.05)


async def test_member_reads_commits_and_is_taken_up_by_the_next(node: NodeProcess, orders: str, enter: Enter) -> None:
    sent = await send(node, orders, 20)
    first = await enter(orders, orders)
    assert sorted(await receive(20, first)) == sorted(sent)
    await first.commit()
    await first.stop()
    await send(node, orders, 8)
    second = await enter(orders, orders)
    assert len(await receive(8, second)) == 8
    places = [TopicPartition(orders, number) for number in range(PARTITIONS)]
    assert [await second.committed(place) for place in places] == [5, 5, 5, 5]
    await second.commit({places[0]: (3, "rewound")})
    assert await second.committed(places[0]) == 3


async def test_nothing_is_committed_in_a_new_group(orders: str, enter: Enter) -> None:
    member = await enter(orders, orders)
    assert await member.committed(TopicPartition(orders, 0)) is None


@pytest.mark.parametrize("assignor", [None, RoundRobinPartitionAssignor, StickyPartitionAssignor])
async def test_partitions_are_shared_as_members_come_and_go(
    node: NodeProcess, orders: str, enter: Enter, assignor: Any
) -> None:
    how = {} if assignor is None else {"partition_assignment_strategy": (assignor,)}
    first = await enter(orders, orders, **how)
    await settle(orders, first)
    second = await enter(orders, orders, **how)
    await settle(orders, first, second)
    sent = await send(node, orders, 20)
    assert sorted(await receive(20, first, second)) == sorted(sent)
    await second.stop()
    await settle(orders, first)


class Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.has_two = asyncio.Event()

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.heard.append(("revoked", len(revoked)))

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.heard.append(("assigned", len(assigned)))
        if len(assigned) == 2:
            self.has_two.set()


async def test_static_member_that_restarts_disturbs_nobody(orders: str, enter: Enter) -> None:
    listener = Listener()
    first = await enter(orders, orders, group_instance_id="one", listener=listener)
    second = await enter(orders, orders, group_instance_id="two")
    await settle(orders, first, second)
    # Told a moment after the assignment is there.
    await asyncio.wait_for(listener.has_two.wait(), WAIT_SECONDS_MAX)
    held, heard = second.assignment(), list(listener.heard)
    # It leaves no word, as static members do, and is back before its session ends.
    await second.stop()
    again = await enter(orders, orders, group_instance_id="two")
    await settle(orders, first, again)
    assert again.assignment() == held
    assert listener.heard == heard


async def test_commit_of_who_is_no_member_any_more_is_refused(node: NodeProcess, orders: str, enter: Enter) -> None:
    member = await enter(orders, orders)
    await settle(orders, member)
    stranger = AIOKafkaConsumer(bootstrap_servers=node.kafka, group_id=orders, enable_auto_commit=False)
    await stranger.start()
    stranger.assign([TopicPartition(orders, 0)])
    with pytest.raises((CommitFailedError, UnknownMemberIdError, IllegalGenerationError)):
        await stranger.commit({TopicPartition(orders, 0): 5})
    await stranger.stop()


async def test_commits_and_members_outlive_a_killed_node(tmp_path: Path, topic: str) -> None:
    with node_for_groups(tmp_path / "own-node") as node:
        await create(node, topic)
        await send(node, topic, 20)
        member = await start_member(node, topic, topic, session_timeout_ms=LONG_SESSION_MS)
        await receive(20, member)
        await member.commit()
        node.kill()
        await asyncio.to_thread(node.start)
        await send(node, topic, 8)
        # From where it was: nothing comes twice.
        assert len(await receive(8, member)) == 8
        await member.commit()
        assert [await member.committed(TopicPartition(topic, number)) for number in range(PARTITIONS)] == [7] * 4
        await member.stop()


async def test_groups_are_listed_and_described(node: NodeProcess, orders: str, enter: Enter) -> None:
    member = await enter(orders, orders, client_id="reader")
    await settle(orders, member)
    await send(node, orders, 8)
    await receive(8, member)
    await member.commit()
    admin = AIOKafkaAdminClient(bootstrap_servers=node.kafka)
    await admin.start()
    try:
        assert (orders, "consumer") in [tuple(group) for group in await admin.list_consumer_groups()]
        (reply,) = await admin.describe_consumer_groups([orders])
        assert (reply.groups[0][1], reply.groups[0][2]) == (orders, "Stable")
        offsets = await admin.list_consumer_group_offsets(orders)
        lag = {
            place.partition: end - offsets[place].offset for place, end in (await member.end_offsets(offsets)).items()
        }
        assert lag == {0: 0, 1: 0, 2: 0, 3: 0}
    finally:
        await admin.close()
