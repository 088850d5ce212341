"""Transactions of aiokafka: the oldest versions of their requests, written in Python alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, ProducerFenced

from support.group.node import LONG_SESSION_MS, node_for_groups
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0
COMMITTED, EVERYTHING = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("transactions-aiokafka")) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path / "own-node", session_ms=LONG_SESSION_MS) as running:
        yield running


@pytest.fixture
async def orders(node: NodeProcess, topic: str) -> str:
    await create(node, topic)
    return topic


async def create(node: NodeProcess, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=node.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()


def producer_of(node: NodeProcess, transactional_id: str, **settings: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=node.kafka, transactional_id=transactional_id, **settings)


async def read(node: NodeProcess, topic: str, isolation: str = COMMITTED) -> list[bytes]:
    """From the beginning to where a reader of that kind gets."""
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=node.kafka, isolation_level=isolation) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        (end,) = (await consumer.end_offsets([place])).values()
        values: list[bytes] = []
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while await consumer.position(place) < end:
                polled = await consumer.getmany(timeout_ms=50)
                values += [message.value for messages in polled.values() for message in messages]
        return values


async def until_read(node: NodeProcess, topic: str, expected: list[bytes]) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while await read(node, topic) != expected:
            pass


async def test_committed_records_are_seen_and_aborted_ones_are_not(node: NodeProcess, orders: str) -> None:
    async with producer_of(node, orders) as producer:
        for number in range(6):
            await producer.begin_transaction()
            await producer.send_and_wait(orders, b"%d" % number)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    await until_read(node, orders, [b"0", b"2", b"4"])
    assert await read(node, orders, EVERYTHING) == [b"%d" % number for number in range(6)]


async def test_open_transaction_is_seen_by_readers_of_everything_alone(node: NodeProcess, orders: str) -> None:
    async with producer_of(node, orders) as producer:
        async with producer.transaction():
            await producer.send_and_wait(orders, b"open")
            # Before its end nothing after it is stable, so nobody would get there.
            assert await read(node, orders, EVERYTHING) == [b"open"]
        await until_read(node, orders, [b"open"])


async def fail_in_transaction(producer: AIOKafkaProducer, topic: str) -> None:
    async with producer.transaction():
        await producer.send_and_wait(topic, b"lost")
        raise ZeroDivisionError


async def test_failure_inside_a_transaction_aborts_it(node: NodeProcess, orders: str) -> None:
    async with producer_of(node, orders) as producer:
        with pytest.raises(ZeroDivisionError):
            await fail_in_transaction(producer, orders)
        async with producer.transaction():
            await producer.send_and_wait(orders, b"kept")
    await until_read(node, orders, [b"kept"])


async def test_second_producer_with_the_same_id_shuts_out_the_first(node: NodeProcess, orders: str) -> None:
    zombie = producer_of(node, orders)
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait(orders, b"zombie")
    async with producer_of(node, orders) as successor, successor.transaction():
        await successor.send_and_wait(orders, b"successor")
    with pytest.raises(ProducerFenced):
        await zombie.commit_transaction()
    await zombie.stop()
    await until_read(node, orders, [b"successor"])


async def test_positions_are_committed_with_the_transaction(node: NodeProcess, orders: str) -> None:
    place = TopicPartition(orders, 0)
    async with producer_of(node, orders) as producer:
        for offset, is_kept in ((5, True), (9, False), (7, True)):
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({place: offset}, orders)
            await (producer.commit_transaction() if is_kept else producer.abort_transaction())
    async with AIOKafkaConsumer(bootstrap_servers=node.kafka, group_id=orders, enable_auto_commit=False) as consumer:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while await consumer.committed(place) != 7:
                pass


async def test_transaction_that_takes_too_long_is_aborted(node: NodeProcess, orders: str) -> None:
    producer = producer_of(node, orders, transaction_timeout_ms=300)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(orders, b"slow")
    place = TopicPartition(orders, 0)
    async with AIOKafkaConsumer(bootstrap_servers=node.kafka, isolation_level=COMMITTED) as consumer:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            # The record and the marker of the abort.
            while (await consumer.end_offsets([place]))[place] != 2:
                pass
    assert await read(node, orders) == []
    with pytest.raises(KafkaError):
        await producer.commit_transaction()
    await producer.stop()


async def test_transaction_goes_on_when_the_node_is_back(own_node: NodeProcess, topic: str) -> None:
    await create(own_node, topic)
    async with producer_of(own_node, topic, retry_backoff_ms=50) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"before")
        own_node.kill()
        own_node.start()
        await producer.send_and_wait(topic, b"after")
        await producer.commit_transaction()
    await until_read(own_node, topic, [b"before", b"after"])
