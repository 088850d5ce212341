"""A leader that does not know whether it leads still tells nobody what it knows; what it writes goes its way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.broker.partition.role import Following, Leading
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.delivery import QueueTotals, ReceiptSettlement, ReceivedMessages
from penstock.broker.queue.shell import QueueUnavailable
from penstock.broker.schedule.values import DelayedMessage, NotScheduled, PendingPage, Scheduled
from penstock.broker.topic.companion import CompanionKind
from penstock.codec.batch.header import patch
from penstock.codec.batch.rewrite import header_of
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import describe_producers as dp
from penstock.codec.kafka.messages import list_groups as lg
from penstock.codec.kafka.messages import list_offsets as lo
from penstock.codec.kafka.messages import list_transactions as lt
from penstock.codec.kafka.messages import offset_for_leader_epoch as ofle
from penstock.codec.kafka.messages import produce as p
from penstock.domain.group.commands import (
    CommitOffsets,
    FetchOffsets,
    OffsetsFetched,
    OffsetToCommit,
    PartitionName,
    Refused,
)
from penstock.domain.group.values import GroupError
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions, Start
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from penstock.domain.transaction.commands import InitProducer, ProducerReady, TransactionProblem
from penstock.domain.transaction.commands import Refused as TransactionRefused
from penstock.domain.transaction.state import TransactionMetadata
from penstock.gateways.http.server import HttpServerConfig
from support.cluster.doubts import Doubt
from support.door.conversation import ANY_PORT, TalkingNode, running_node
from support.door.kafka_phrases import batch, list_offsets, only_offset, outcome, produce

GROUP, ID = "workers", "payments"
WANTED = FetchOffsets((PartitionName("orders", 0),))
NOT_COORDINATOR = Refused(GroupError.NOT_COORDINATOR)
QUEUE = QueueName("orders", GROUP)
# The last version of Produce that names topics.
BY_NAME = 12
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as running:
        await running.create_topic("orders")
        yield running


async def with_companions(node: TalkingNode) -> list[PartitionShell]:
    shell = node.shell("orders")
    return [shell, *[await node.broker.companion(shell, kind) for kind in CompanionKind]]


async def test_positions_of_a_group_are_not_told_and_a_commit_is_taken(node: TalkingNode) -> None:
    groups = node.parts.groups
    assert not isinstance(await groups.submit(GROUP, CommitOffsets((OffsetToCommit("orders", 0, 41),))), Refused)
    doubt = Doubt(node.shell(CONSUMER_OFFSETS, groups.partition_of(GROUP)))
    assert isinstance(await groups.submit(GROUP, WANTED), OffsetsFetched)
    doubt.is_heard = False
    assert await groups.submit(GROUP, WANTED) == NOT_COORDINATOR
    assert await groups.describe(GROUP) == NOT_COORDINATOR
    talk = await node.connect()
    listed = await talk.ask(lg.ListGroupsRequest(), lg.ListGroupsResponse)
    assert listed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "who lists looks for no coordinator"
    # What is written is committed by the others, or not at all: it needs no look.
    assert not isinstance(await groups.submit(GROUP, CommitOffsets((OffsetToCommit("orders", 0, 42),))), Refused)
    doubt.is_heard = True
    fetched = await groups.submit(GROUP, WANTED)
    assert isinstance(fetched, OffsetsFetched)
    assert fetched.partitions[0].offset == 42


async def test_members_of_share_groups_are_not_told(node: TalkingNode) -> None:
    shares, groups = node.shares, node.parts.groups
    assert await shares.create(GROUP) is None
    doubt = Doubt(node.shell(CONSUMER_OFFSETS, groups.partition_of(GROUP)))
    doubt.is_heard = False
    found = await shares.get(GROUP)
    assert getattr(found, "error", None) is GroupError.NOT_COORDINATOR
    assert getattr(shares.all(), "error", None) is GroupError.NOT_COORDINATOR
    doubt.is_heard = True
    assert [group_id for group_id, _ in shares.all()] == [GROUP]  # type: ignore[union-attr]


async def test_transactions_are_not_told_and_a_new_producer_is(node: TalkingNode) -> None:
    transactions = node.transactions
    assert isinstance(await transactions.submit(InitProducer(ID, 60_000)), ProducerReady)
    doubt = Doubt(node.shell(TRANSACTION_STATE, transactions.partition_of(ID)))
    doubt.is_heard = False
    assert await transactions.describe(ID) == TransactionRefused(TransactionProblem.NOT_COORDINATOR)
    talk = await node.connect()
    listed = await talk.ask(lt.ListTransactionsRequest(), lt.ListTransactionsResponse)
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert isinstance(await transactions.submit(InitProducer(ID, 60_000)), ProducerReady)
    doubt.is_heard = True
    assert isinstance(await transactions.describe(ID), TransactionMetadata)


async def test_places_in_a_log_are_not_told(node: TalkingNode) -> None:
    talk = await node.connect()
    await talk.ask(produce("orders", batch(b"a")), p.ProduceResponse, BY_NAME)
    doubt = Doubt(node.shell("orders"))
    doubt.is_heard = False
    for timestamp in (-1, -2, -3, 0):
        answer = only_offset(await talk.ask(list_offsets("orders", timestamp), lo.ListOffsetsResponse))
        assert answer.error_code == NOT_LEADER, timestamp
    asked = ofle.OffsetForLeaderTopic("orders", [ofle.OffsetForLeaderPartition(0, leader_epoch=0)])
    request = ofle.OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked])
    reply = await talk.ask(request, ofle.OffsetForLeaderEpochResponse)
    assert reply.topics[0].partitions[0].error_code == NOT_LEADER
    producers = dp.DescribeProducersRequest([dp.TopicRequest("orders", [0])])
    described = await talk.ask(producers, dp.DescribeProducersResponse)
    assert described.topics[0].partitions[0].error_code == NOT_LEADER
    assert outcome(await talk.ask(produce("orders", batch(b"b")), p.ProduceResponse, BY_NAME)) == (ErrorCode.NONE, 1)
    doubt.is_heard = True
    answer = only_offset(await talk.ask(list_offsets("orders", -1), lo.ListOffsetsResponse))
    assert (answer.error_code, answer.offset) == (0, 2)


@pytest.mark.parametrize(
    ("version", "code"), [(11, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
async def test_end_is_told_when_the_watermark_has_reached_where_the_epoch_began(
    node: TalkingNode, version: int, code: ErrorCode
) -> None:
    talk = await node.connect()
    await talk.ask(produce("orders", batch(b"a")), p.ProduceResponse, BY_NAME)
    shell = node.shell("orders")
    shell.take_role(Following(1, 2))
    # Another leader has written it, and how much of it was committed this node does not know.
    theirs = bytearray(batch(b"b"))
    patch(theirs, 0, header_of(theirs), base_offset=1, leader_epoch=1)
    assert shell.log.append_replicated(memoryview(theirs), leader_epoch=1) is None
    shell.take_role(Leading(2, is_replicated=True))
    early = only_offset(await talk.ask(list_offsets("orders", -1), lo.ListOffsetsResponse, version))
    assert early.error_code == code
    Doubt(shell)
    assert shell.replicated is not None
    shell.replicated.advance(shell.log.log_end)
    told = only_offset(await talk.ask(list_offsets("orders", -1), lo.ListOffsetsResponse, version))
    assert (told.error_code, told.offset) == (0, 2)


async def test_how_a_queue_is_is_not_told_and_messages_are_given(node: TalkingNode) -> None:
    await node.parts.queues.define(QUEUE, QueueOptions(start=Start.EARLIEST))
    delivery = node.parts.delivery
    talk = await node.connect()
    await talk.ask(produce("orders", batch(b"a")), p.ProduceResponse, BY_NAME)
    doubt = Doubt(*await with_companions(node))
    doubt.is_heard = False
    assert isinstance(await delivery.totals(QUEUE), QueueUnavailable)
    assert isinstance(await delivery.peek(QUEUE, 1), QueueUnavailable)
    received = await delivery.receive(QUEUE, consumer="me", count_max=1)
    assert isinstance(received, ReceivedMessages)
    (message,) = received.messages
    assert isinstance(await delivery.receive(QUEUE, consumer="me", count_max=1), QueueUnavailable), "nothing is a look"
    done = await delivery.settle(QUEUE, [ReceiptSettlement(message.receipt, Act.ACCEPT)])
    assert done == [Outcome.DONE]
    (again,) = await delivery.settle(QUEUE, [ReceiptSettlement(message.receipt, Act.ACCEPT)])  # type: ignore[misc]
    assert isinstance(again, QueueUnavailable), "who was given it since another node leads would be told a lie"
    doubt.is_heard = True
    assert isinstance(await delivery.totals(QUEUE), QueueTotals)
    assert await delivery.peek(QUEUE, 1) == []
    assert await delivery.settle(QUEUE, [ReceiptSettlement(message.receipt, Act.ACCEPT)]) == [Outcome.FINISHED]


async def test_what_waits_for_its_time_is_not_told_and_a_delay_is_taken(node: TalkingNode) -> None:
    schedules, topic = node.parts.schedules, node.broker.topic("orders")
    assert topic is not None
    shell = await schedules.shell_of(node.shell("orders"))
    assert not isinstance(shell, NotScheduled)
    due_ms = node.broker.clock.now_ms() + 3_600_000
    first = await shell.schedule([DelayedMessage(due_ms, None, b"later", ())])
    assert isinstance(first, Scheduled)
    doubt = Doubt(*await with_companions(node))
    doubt.is_heard = False
    assert isinstance(await schedules.list_due(topic, None, 10), NotScheduled)
    assert isinstance(await schedules.show(first.message_ids[0]), NotScheduled)
    assert isinstance(await schedules.crons(topic), NotScheduled)
    second = await shell.schedule([DelayedMessage(due_ms, None, b"later too", ())])
    assert isinstance(second, Scheduled)
    cancelled = await schedules.cancel(second.message_ids[0])
    assert not isinstance(cancelled, NotScheduled), "it is written"
    assert isinstance(await schedules.cancel(second.message_ids[0]), NotScheduled), "that it is not there is a look"
    doubt.is_heard = True
    page = await schedules.list_due(topic, None, 10)
    assert isinstance(page, PendingPage)
    assert [message.message_id for message in page.messages] == first.message_ids


async def test_http_answers_a_look_with_503_and_says_why(node: TalkingNode) -> None:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as http:
        sent = await http.post("/v1/topics/orders/messages", json={"messages": [{"value": "a"}]})
        message: dict[str, Any] = sent.json()["messages"][0]
        await http.post("/v1/queues/orders/workers/receive", json={"count": 1})
        doubt = Doubt(*await with_companions(node))
        looks = [f"/v1/queues/orders/{GROUP}/stats", f"/v1/queues/orders/{GROUP}/peek", f"/v1/why/{message['id']}"]
        looks.append(f"/v1/trace/{message['id']}")
        for is_heard, status in ((True, 200), (False, 503)):
            doubt.is_heard = is_heard
            for path in looks:
                reply = await http.get(path)
                assert reply.status_code == status, (path, reply.text)
                assert is_heard or "by now" in reply.json()["detail"]
