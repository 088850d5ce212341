"""Delayed records in transactions: they wait for its end first, and for their time after that."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from penstock.broker.partition.shell import PartitionShell
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.messages.write_txn_markers import WriteTxnMarkersResponse
from penstock.domain.transaction.end import TransactionEnd
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import outcome, produce
from support.schedule.delay_phrases import DelayingProducer, Later, mixed_batch, pending
from support.transaction.phrases import NONE, fetched, marker, until_committed

SOON = Later(b"soon", delay_ms=20)


@pytest.fixture(params=[1, 2])
def protocol(request: pytest.FixtureRequest) -> Literal[1, 2]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def producer(node: TalkingNode, protocol: Literal[1, 2]) -> DelayingProducer:
    await node.create_topic("orders")
    producer = DelayingProducer(await node.connect(), protocol)
    assert await producer.init() is NONE
    return producer


def held(node: TalkingNode) -> int:
    schedule = node.parts.schedules.open_shell(node.shell("orders"))
    return 0 if schedule is None else schedule.machine.held_count


async def test_delayed_record_waits_for_the_commit(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    assert await producer.delay(b"now", SOON, Later(b"later")) is NONE
    assert (pending(node), held(node)) == (0, 2)
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"now", b"soon")
    assert (pending(node), held(node)) == (1, 0)


async def test_delayed_record_of_an_aborted_transaction_never_comes(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    assert await producer.delay(b"now", SOON, Later(b"later")) is NONE
    assert await producer.abort() is NONE
    assert await producer.delay(b"next", Later(b"other")) is NONE
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"next")
    assert (pending(node), held(node)) == (1, 0)


async def test_batch_of_delayed_records_alone_begins_its_transaction(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    assert await producer.delay(SOON) is NONE
    assert (await fetched(talk, "orders")).last_stable_offset == 0
    assert await producer.delay(Later(b"soon too", delay_ms=20)) is NONE
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"soon", b"soon too")
    data = await fetched(talk, "orders")
    assert data.last_stable_offset == data.high_watermark


async def test_aborted_transaction_that_began_with_a_hole_is_left_out(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    assert await producer.delay(Later(b"later")) is NONE
    assert await producer.delay(b"lost", Later(b"later")) is NONE
    assert await producer.abort() is NONE
    assert await producer.delay(b"kept") is NONE
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"kept")
    data = await fetched(talk, "orders")
    assert [aborted.first_offset for aborted in data.aborted_transactions or ()] == [0]
    assert (pending(node), held(node)) == (0, 0)


async def test_marker_of_an_operator_ends_it_in_the_schedule_too(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer, protocol: int
) -> None:
    assert await producer.delay(SOON, b"now") is NONE
    request = marker(producer, "orders", 0, is_commit=False)
    reply = await talk.ask(request, WriteTxnMarkersResponse)
    assert reply.markers[0].topics[0].partitions[0].error_code == NONE
    assert (pending(node), held(node)) == (0, 0)


async def test_successor_drops_what_its_predecessor_delayed(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer, protocol: Literal[1, 2]
) -> None:
    assert await producer.delay(SOON, b"lost") is NONE
    successor = DelayingProducer(talk, protocol)
    assert await successor.init() is NONE
    assert await successor.delay(Later(b"soon", delay_ms=20), b"kept") is NONE
    assert await successor.commit() is NONE
    await until_committed(talk, "orders", b"kept", b"soon")
    assert (pending(node), held(node)) == (0, 0)
    assert await producer.delay_once(Later(b"zombie")) is not NONE
    assert (pending(node), held(node)) == (0, 0)


async def test_bad_header_in_a_transaction_writes_nothing_and_the_transaction_goes_on(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    assert await producer.delay(b"now") is NONE
    assert await producer.delay(Later(b"bad", delay_ms=b"soon")) is ErrorCode.INVALID_RECORD
    assert await producer.delay(Later(b"soon", delay_ms=20)) is NONE
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"now", b"soon")


class Gate:
    """Schedules that take messages when they are told to."""

    def __init__(self, node: TalkingNode) -> None:
        self._node = node
        self.is_asked = asyncio.Event()
        self.is_open = asyncio.Event()
        node.parts.delays._schedules = self

    async def shell_of(self, partition: PartitionShell) -> Any:
        self._shell = await self._node.parts.schedules.shell_of(partition)
        return self

    async def schedule(self, *messages: Any, **facts: Any) -> Any:
        outcome = await self._shell.schedule(*messages, **facts)  # type: ignore[union-attr]
        self.is_asked.set()
        await self.is_open.wait()
        return outcome

    async def end_transaction(self, partition: PartitionShell, end: TransactionEnd) -> bool:
        return await self._node.parts.schedules.end_transaction(partition, end)


async def test_end_of_a_transaction_waits_for_its_batches_on_their_way(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    """Or a batch could come into the schedule behind the end of its transaction, and the next one would decide."""
    assert await producer.delay(b"first") is NONE
    gate = Gate(node)
    on_its_way = asyncio.ensure_future(producer.delay(SOON, b"second"))
    await gate.is_asked.wait()
    epoch = producer.producer_epoch + (1 if producer.protocol == 2 else 0)
    shell = node.shell("orders")
    ending = asyncio.ensure_future(
        node.markers.write(
            "orders",
            0,
            TransactionEnd(
                producer_id=producer.producer_id,
                producer_epoch=epoch,
                coordinator_epoch=0,
                is_commit=True,
                version=producer.protocol,
            ),
        )
    )
    await talk.expect_open()
    assert not ending.done()
    late = mixed_batch(
        Later(b"late"), producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, sequence=1,
        is_transactional=True,
    )  # fmt: skip
    request = produce("orders", late, transactional_id=producer.transactional_id)
    code, _ = outcome(await talk.ask(request, ProduceResponse, producer.versions.produce))
    # To be tried again, in the words that each version of clients knows.
    assert code is (ErrorCode.CONCURRENT_TRANSACTIONS if producer.protocol == 2 else ErrorCode.NOT_ENOUGH_REPLICAS)
    gate.is_open.set()
    assert await on_its_way is NONE
    await ending
    assert held(node) == 0
    await until_committed(talk, "orders", b"first", b"second", b"soon")
    assert shell.last_stable_offset == shell.readable_end


async def test_other_connection_of_the_producer_is_out_of_order_meanwhile(
    node: TalkingNode, talk: Conversation, producer: DelayingProducer
) -> None:
    gate = Gate(node)
    elsewhere = await node.connect()
    await elsewhere.send(produce("orders", mixed_batch(b"0", producer_id=7, sequence=0)), 11)
    await elsewhere.hear(ProduceResponse)
    first = mixed_batch(Later(b"a"), producer_id=7, sequence=1)
    await elsewhere.send(produce("orders", first), 11)
    await gate.is_asked.wait()
    second = produce("orders", mixed_batch(b"b", producer_id=7, sequence=2))
    assert outcome(await talk.ask(second, ProduceResponse, 11))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The same batch once more, as after a lost connection: both are answered, and there is one.
    await talk.send(produce("orders", first), 11)
    gate.is_open.set()
    assert outcome(await elsewhere.hear(ProduceResponse)) == (NONE, 1)
    assert outcome(await talk.hear(ProduceResponse)) == (NONE, 1)
    assert outcome(await talk.ask(second, ProduceResponse, 11)) == (NONE, 2)
    assert pending(node) == 1
