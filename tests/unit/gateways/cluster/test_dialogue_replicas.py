"""What nodes ask each other, asked over a real socket of replicas that say what the test has told them to say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from penstock.codec.kafka import ErrorCode, ProduceResponse
from penstock.codec.kafka.internal.barrier import BarrierRequest, BarrierResponse
from penstock.codec.kafka.internal.describe_replica import DescribeReplicaRequest, DescribeReplicaResponse
from penstock.codec.kafka.internal.forward import ForwardRequest, ForwardResponse
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.domain.replication.exchange import CHECKSUMS_MAX
from penstock.gateways.cluster.replicas import WAIT_MS_MAX
from penstock.gateways.kafka.server import ASIDES_MAX
from penstock.net.replica import fetch as fetch_wire
from penstock.net.replica import questions as wire
from support.cluster import exchanges as said
from support.cluster.replicas import (
    FAULTY_KIND,
    HELD_KIND,
    THERE,
    ScriptedReplicas,
    come_in,
    node_with_internal_door,
    say_hello,
    until,
)
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import batch, list_offsets, outcome, produce


@pytest.fixture
async def replicas() -> ScriptedReplicas:
    return ScriptedReplicas()


@pytest.fixture
async def node(replicas: ScriptedReplicas) -> AsyncIterator[TalkingNode]:
    async with node_with_internal_door(replicas) as running:
        yield running


@pytest.fixture
async def talk(node: TalkingNode) -> Conversation:
    talk = await come_in(node)
    await say_hello(talk)
    return talk


async def test_fetch_reaches_the_replicas_and_comes_back(talk: Conversation, replicas: ScriptedReplicas) -> None:
    answer = await talk.ask(fetch_wire.write_request(said.FETCH), FetchResponse)
    assert fetch_wire.read_response(answer) == said.FETCHED
    assert replicas.fetches == [(said.FETCH, THERE)]


@pytest.mark.parametrize(
    ("change", "version", "code"),
    [
        ({"node_id": 4}, 18, ErrorCode.INVALID_REQUEST),
        ({"node_id": -1}, 18, ErrorCode.INVALID_REQUEST),
        ({"life": 76}, 18, ErrorCode.STALE_BROKER_EPOCH),
        ({}, 16, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_node_fetches_for_itself_and_in_its_own_life(
    talk: Conversation, replicas: ScriptedReplicas, change: dict[str, Any], version: int, code: ErrorCode
) -> None:
    request = fetch_wire.write_request(msgspec.structs.replace(said.FETCH, **change))
    assert (await talk.ask(request, FetchResponse, version)).error_code == code
    assert not replicas.fetches


async def test_parked_fetch_ends_with_its_follower(
    node: TalkingNode, talk: Conversation, replicas: ScriptedReplicas
) -> None:
    replicas.is_fetch_parked = True
    await talk.send(fetch_wire.write_request(said.FETCH))
    await until(lambda: len(replicas.fetches) == 1)
    talk.close()
    await until(lambda: replicas.cancelled_count == 1)


async def test_describe_reaches_the_replicas_and_comes_back(talk: Conversation, replicas: ScriptedReplicas) -> None:
    answer = await talk.ask(wire.write_describe(said.DESCRIBE), DescribeReplicaResponse)
    assert wire.read_description(answer) == said.DESCRIPTION
    assert replicas.described == [said.DESCRIBE]


async def test_too_many_checksums_are_refused(talk: Conversation, replicas: ScriptedReplicas) -> None:
    def asked(count: int) -> DescribeReplicaRequest:
        return DescribeReplicaRequest(said.DATA.topic_id, 0, 0, count * 10, 10)

    refused = await talk.ask(asked(CHECKSUMS_MAX + 1), DescribeReplicaResponse)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "1001 checksums" in (refused.error_message or "")
    assert (await talk.ask(asked(CHECKSUMS_MAX), DescribeReplicaResponse)).error_code == ErrorCode.NONE
    assert len(replicas.described) == 1


async def test_nothing_waits_behind_a_barrier(talk: Conversation, replicas: ScriptedReplicas) -> None:
    replicas.held.clear()
    barrier = talk.frame(wire.write_barrier(said.BARRIER))
    waiting = talk._asked.pop()
    talk.send_bytes(barrier)
    quick = await talk.ask(ForwardRequest(kind=1, body=b"abc"), ForwardResponse)
    assert quick.body == b"cba"
    replicas.held.set()
    talk._asked.append(waiting)
    assert wire.read_passed(await talk.hear(BarrierResponse)) == said.PASSED


async def test_nobody_waits_for_ever(talk: Conversation, replicas: ScriptedReplicas) -> None:
    for wanted_ms, given_ms in ((2**31 - 1, WAIT_MS_MAX), (-5, 0), (7, 7)):
        await talk.ask(BarrierRequest(timeout_ms=wanted_ms), BarrierResponse)
        await talk.ask(ForwardRequest(kind=1, timeout_ms=wanted_ms), ForwardResponse)
        assert (replicas.barriers[-1].timeout_ms, replicas.forwards[-1].timeout_ms) == (given_ms, given_ms)


async def test_work_that_was_begun_ends_though_its_node_is_gone(talk: Conversation, replicas: ScriptedReplicas) -> None:
    replicas.held.clear()
    await talk.send(ForwardRequest(kind=HELD_KIND, body=b"work"))
    await until(lambda: len(replicas.forwards) == 1)
    talk.close()
    await until(lambda: replicas.gone == [HELD_KIND])


async def test_work_aside_is_bounded(talk: Conversation, replicas: ScriptedReplicas) -> None:
    # The second time as the first: who was answered makes room.
    for _ in range(2):
        replicas.held.clear()
        replicas.forwards.clear()
        # One more is taken and holds up the connection, so the last is not looked at.
        frames = [talk.frame(ForwardRequest(kind=HELD_KIND)) for _ in range(ASIDES_MAX + 2)]
        talk.send_bytes(b"".join(frames))
        await until(lambda: len(replicas.forwards) >= ASIDES_MAX + 1)
        assert len(replicas.forwards) == ASIDES_MAX + 1
        replicas.held.set()
        answers = [await talk.hear_frame() for _ in frames]
        assert len({answer[:4] for answer in answers}) == len(frames)


async def test_fault_of_the_replicas_costs_the_connection_and_no_other(node: TalkingNode, talk: Conversation) -> None:
    other = await come_in(node)
    await talk.send(ForwardRequest(kind=FAULTY_KIND))
    await talk.expect_closed()
    await say_hello(other)


async def test_door_that_drains_answers_what_was_begun(
    node: TalkingNode, talk: Conversation, replicas: ScriptedReplicas
) -> None:
    replicas.held.clear()
    await talk.send(ForwardRequest(kind=HELD_KIND, body=b"ab"))
    await until(lambda: len(replicas.forwards) == 1)
    door = node.doors["cluster"]
    await door.stop_listening()
    drained = node.parts.site.tasks.start("drain", door.drain())
    replicas.held.set()
    assert (await talk.hear(ForwardResponse)).body == b"ba"
    await talk.expect_closed()
    await drained


async def test_what_clients_ask_nodes_may_ask_too(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    for number in range(3):
        assert outcome(await talk.ask(produce("orders", batch(b"x")), ProduceResponse, 9)) == (ErrorCode.NONE, number)
    ends = await talk.ask(list_offsets("orders", -1), ListOffsetsResponse, 5)
    assert ends.topics[0].partitions[0].offset == 3
