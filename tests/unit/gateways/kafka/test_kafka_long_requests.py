"""Requests that name very much: refused beyond their bound, and below it worked through in slices, in order, while
others are served."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import BOUNDS, ErrorCode
from penstock.codec.kafka.messages import delete_records as dr
from penstock.codec.kafka.messages import describe_acls as da
from penstock.codec.kafka.messages import fetch as f
from penstock.codec.kafka.messages import find_coordinator as fc
from penstock.codec.kafka.messages import join_group as jg
from penstock.codec.kafka.messages import list_offsets as lo
from penstock.codec.kafka.messages import metadata as m
from penstock.codec.kafka.messages import offset_commit as oc
from penstock.codec.kafka.messages import offset_fetch as of
from penstock.codec.kafka.messages import produce as p
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.schema import Request
from penstock.domain.group.commands import CommitOffsets, OffsetToCommit
from penstock.domain.security.access import Operation, ResourceType
from penstock.domain.security.acl import AclBinding, PatternType, Permission
from penstock.gateways.kafka.server import LONG_REQUESTS_MAX
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import UNLIMITED, batch, fetch, values_in
from support.group.phrases import positions
from support.loop_turns import LoopTurns

PARTITIONS = 1_200
# As much as took tens of milliseconds in one step.
MANY_RULES = 8_000
MANY_POSITIONS = 20_000
# A slice of 2 ms, and what the transport and the test itself do in the same turn.
TURN_SECONDS_MAX = 0.012


@pytest.fixture
async def wide(node: TalkingNode) -> TalkingNode:
    """A topic of many partitions, and work that rests after each step."""
    await node.create_topic("wide", PARTITIONS)
    node.server.work.slice_seconds = 0
    return node


def produce_to(*partitions: int, value: bytes = b"value of %d") -> p.ProduceRequest:
    data = tuple(p.PartitionProduceData(number, batch(value.replace(b"%d", b"%d" % number))) for number in partitions)
    return p.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=(p.TopicProduceData("wide", partition_data=data),))


def fetch_from(*partitions: int) -> f.FetchRequest:
    named = tuple(
        f.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=UNLIMITED) for number in partitions
    )
    return f.FetchRequest(max_wait_ms=0, min_bytes=1, topics=(f.FetchTopic("wide", partitions=named),))


def codes_of(reply: ProduceResponse) -> set[int]:
    return {answer.error_code for topic in reply.responses for answer in topic.partition_responses}


# Beyond the bound


async def test_a_request_beyond_its_bound_is_told_so_and_its_connection_lives(talk: Conversation) -> None:
    named = (f.FetchPartition(),) * (BOUNDS[f.FetchRequest.api_key].elements_max + 1)
    request = f.FetchRequest(topics=(f.FetchTopic("orders", partitions=named),))
    assert (await talk.ask(request, FetchResponse, 12)).error_code == ErrorCode.INVALID_REQUEST
    await talk.expect_open()


async def test_a_request_beyond_its_bound_that_cannot_be_told_ends_its_connection(talk: Conversation) -> None:
    topics = (CreatableTopic("orders"),) * (BOUNDS[CreateTopicsRequest.api_key].elements_max + 1)
    await talk.send(CreateTopicsRequest(topics=topics), 5)
    await talk.expect_closed()


async def test_a_request_of_more_bytes_than_any_of_its_api_is_not_even_read(
    node: TalkingNode, talk: Conversation
) -> None:
    size = (BOUNDS[jg.JoinGroupRequest.api_key].bytes_max or 0) + 1
    talk.send_bytes(struct.pack(">ihh", size, jg.JoinGroupRequest.api_key, 5))
    await talk.expect_closed()
    assert node.server.memory.bytes_held == 0


async def test_a_length_that_comes_byte_by_byte_is_not_taken_for_a_large_request(talk: Conversation) -> None:
    frame = talk.frame(ApiVersionsRequest(), 0)
    for byte in frame:
        talk.send_bytes(bytes([byte]))
    await talk.hear(ApiVersionsResponse)


# In slices


async def test_a_long_fetch_lets_others_in_between(wide: TalkingNode, talk: Conversation) -> None:
    other = await wide.connect()
    await talk.send(fetch_from(*range(PARTITIONS)), 12)
    await other.expect_open()
    assert not talk.has_heard
    reply = await talk.hear(FetchResponse)
    assert [data.partition_index for data in reply.responses[0].partitions] == list(range(PARTITIONS))


async def test_a_long_produce_writes_every_batch_as_it_came(wide: TalkingNode, talk: Conversation) -> None:
    """Its frame stays where it is, though more comes behind it."""
    first, second = produce_to(*range(PARTITIONS)), produce_to(*range(PARTITIONS), value=b"again %d")
    talk.send_bytes(talk.frame(first, 9) + talk.frame(second, 9) + talk.frame(ApiVersionsRequest(), 0))
    assert codes_of(await talk.hear(ProduceResponse)) == {ErrorCode.NONE}
    assert codes_of(await talk.hear(ProduceResponse)) == {ErrorCode.NONE}
    await talk.hear(ApiVersionsResponse)
    wide.server.work.slice_seconds = 1
    for number in range(0, PARTITIONS, 97):
        reply = await talk.ask(fetch("wide", partition=number), FetchResponse, 12)
        (data,) = reply.responses[0].partitions
        assert values_in(data.records) == [b"value of %d" % number, b"again %d" % number]


async def test_others_write_between_the_batches_of_a_long_produce(wide: TalkingNode, talk: Conversation) -> None:
    other = await wide.connect()
    await talk.send(produce_to(*range(PARTITIONS)), 9)
    assert codes_of(await other.ask(produce_to(0, value=b"other"), ProduceResponse, 9)) == {ErrorCode.NONE}
    assert not talk.has_heard
    assert codes_of(await talk.hear(ProduceResponse)) == {ErrorCode.NONE}


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110  the door tells nobody
            await asyncio.sleep(0)


@asynccontextmanager
async def all_places_taken(node: TalkingNode, api_key: int) -> AsyncIterator[None]:
    """By large requests that take for ever."""
    async with AsyncExitStack() as taken:
        for _ in range(LONG_REQUESTS_MAX):
            await taken.enter_async_context(node.server.places_of(api_key))
        yield


async def test_messages_do_not_wait_for_large_changes_of_topics(wide: TalkingNode, talk: Conversation) -> None:
    async with all_places_taken(wide, CreateTopicsRequest.api_key):
        reply = await talk.ask(produce_to(*range(PARTITIONS)), ProduceResponse, 9)
    assert codes_of(reply) == {ErrorCode.NONE}


async def test_a_long_request_counts_until_it_is_done_though_its_client_has_left(
    wide: TalkingNode, talk: Conversation
) -> None:
    """Or what waits has no bound: whoever sends, leaves and comes again."""
    server, request = wide.server, produce_to(*range(PARTITIONS))
    async with all_places_taken(wide, p.ProduceRequest.api_key):
        await talk.send(request, 9)
        await until(lambda: server.request_counts[p.ProduceRequest.api_key] == 1)
        talk.close()
        other = await wide.connect()
        await other.expect_open()
        assert server.connection_count == 2
        assert server.memory.bytes_held > len(talk.frame(request, 9))
    await until(lambda: server.connection_count == 1)
    assert server.memory.bytes_held == 0
    assert wide.shell("wide", PARTITIONS - 1).log.log_end == 1


async def test_a_long_fetch_that_waits_for_its_turn_ends_with_its_client(wide: TalkingNode, talk: Conversation) -> None:
    server = wide.server
    async with all_places_taken(wide, f.FetchRequest.api_key):
        await talk.send(fetch_from(*range(PARTITIONS)), 12)
        await until(lambda: server.request_counts[f.FetchRequest.api_key] == 1)
        talk.close()
        await until(lambda: server.connection_count == 0)
        assert server.memory.bytes_held == 0


async def test_a_long_fetch_is_woken_by_what_comes_while_it_reads(wide: TalkingNode, talk: Conversation) -> None:
    request = fetch_from(*range(PARTITIONS))
    await talk.send(f.FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=request.topics), 12)
    other = await wide.connect()
    await other.ask(produce_to(0), ProduceResponse, 9)
    reply = await talk.hear(FetchResponse)
    assert values_in(reply.responses[0].partitions[0].records) == [b"value of 0"]


async def test_a_long_commit_is_taken_whole(wide: TalkingNode, talk: Conversation) -> None:
    partitions = tuple(oc.OffsetCommitRequestPartition(number, number) for number in range(PARTITIONS))
    topics = (oc.OffsetCommitRequestTopic("wide", partitions=partitions),)
    reply = await talk.ask(oc.OffsetCommitRequest(group_id="workers", topics=topics), oc.OffsetCommitResponse, 8)
    answers = reply.topics[0].partitions
    assert [answer.partition_index for answer in answers] == list(range(PARTITIONS))
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    assert wide.parts.groups.committed_offset("workers", "wide", PARTITIONS - 1) == PARTITIONS - 1


async def test_a_topic_of_very_many_partitions_is_told_as_one_with_the_offsets_of_a_group(
    wide: TalkingNode, talk: Conversation
) -> None:
    """Clients that find a topic twice keep the second of both."""
    assert wide.server.work.slice_seconds == 0
    reply = await talk.ask(positions(range(PARTITIONS), topic="wide"), of.OffsetFetchResponse, 8)
    (topic,) = reply.groups[0].topics
    assert [found.partition_index for found in topic.partitions] == list(range(PARTITIONS))


async def test_a_long_reply_keeps_its_place_among_others(wide: TalkingNode, talk: Conversation) -> None:
    everything = m.MetadataRequest(topics=None)
    talk.send_bytes(talk.frame(everything, 9) + talk.frame(ApiVersionsRequest(), 0) + talk.frame(everything, 9))
    assert len((await talk.hear(m.MetadataResponse)).topics[0].partitions) == PARTITIONS
    await talk.hear(ApiVersionsResponse)
    assert len((await talk.hear(m.MetadataResponse)).topics[0].partitions) == PARTITIONS


async def test_offsets_of_very_many_partitions_are_listed(wide: TalkingNode, talk: Conversation) -> None:
    assert wide.server.work.slice_seconds == 0
    named = tuple(lo.ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(PARTITIONS))
    request = lo.ListOffsetsRequest(replica_id=-1, topics=(lo.ListOffsetsTopic("wide", named),))
    reply = await talk.ask(request, lo.ListOffsetsResponse, 5)
    assert {data.error_code for data in reply.topics[0].partitions} == {ErrorCode.NONE}
    assert len(reply.topics[0].partitions) == PARTITIONS


async def test_a_large_topic_is_there_when_its_creation_is_answered(node: TalkingNode, talk: Conversation) -> None:
    topics = (CreatableTopic("wide", num_partitions=3_000, replication_factor=1),)
    await talk.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), wire.CreateTopicsResponse, 5)
    served = node.broker.topic("wide")
    assert served is not None
    assert served.partition_count == 3_000


# One turn of the loop


async def longest_turn_s(talk: Conversation, request: Request, version: int) -> float:
    """Of those up to the first byte of the reply: what the client does with it is not the node's."""
    async with LoopTurns() as turns:
        await talk.send(request, version)
        await until(lambda: talk.has_heard)
    return turns.longest_s


async def test_no_turn_of_the_loop_is_long_while_thousands_of_rules_are_described(
    node: TalkingNode, talk: Conversation
) -> None:
    rules = [
        AclBinding(
            ResourceType.TOPIC, f"t{number}", PatternType.LITERAL, "User:a", "*", Operation.READ, Permission.ALLOW
        )
        for number in range(MANY_RULES)
    ]
    await node.parts.access.create_acls(rules)
    any_of = {"pattern_type_filter": PatternType.ANY, "operation": Operation.ANY, "permission_type": Permission.ANY}
    request = da.DescribeAclsRequest(resource_type_filter=ResourceType.ANY, **any_of)
    assert await longest_turn_s(talk, request, 3) < TURN_SECONDS_MAX
    reply = await talk.hear(da.DescribeAclsResponse)
    assert [found.resource_name for found in reply.resources] == sorted(rule.resource_name for rule in rules)


async def test_no_turn_of_the_loop_is_long_while_everything_of_a_group_is_fetched(
    node: TalkingNode, talk: Conversation
) -> None:
    for first in range(0, MANY_POSITIONS, 500):
        offsets = tuple(OffsetToCommit("gone", number, number) for number in range(first, first + 500))
        await node.parts.groups.submit("workers", CommitOffsets(offsets))
    everything = of.OffsetFetchRequest(groups=(of.OffsetFetchRequestGroup(group_id="workers", topics=None),))
    assert await longest_turn_s(talk, everything, 8) < TURN_SECONDS_MAX
    (topic,) = (await talk.hear(of.OffsetFetchResponse)).groups[0].topics
    assert [found.partition_index for found in topic.partitions] == list(range(MANY_POSITIONS))
    assert [found.committed_offset for found in topic.partitions] == list(range(MANY_POSITIONS))


# Named twice


async def test_a_partition_that_is_produced_to_twice_is_refused(wide: TalkingNode, talk: Conversation) -> None:
    assert codes_of(await talk.ask(produce_to(1, 2, 1), ProduceResponse, 9)) == {ErrorCode.INVALID_REQUEST}
    assert wide.shell("wide", 2).readable_end == 0


async def test_records_of_a_partition_that_is_named_twice_are_not_deleted(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("orders")
    twice = (dr.DeleteRecordsPartition(0, 0), dr.DeleteRecordsPartition(0, -1))
    request = dr.DeleteRecordsRequest(topics=(dr.DeleteRecordsTopic("orders", twice),), timeout_ms=1_000)
    reply = await talk.ask(request, dr.DeleteRecordsResponse)
    assert [data.error_code for data in reply.topics[0].partitions] == [ErrorCode.INVALID_REQUEST]


async def test_what_is_named_twice_is_told_once(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("wide")
    reply = await talk.ask(fetch_from(0, 0, 0), FetchResponse, 12)
    assert len(reply.responses[0].partitions) == 1
    request = fc.FindCoordinatorRequest(coordinator_keys=("a", "b", "a"))
    found = await talk.ask(request, fc.FindCoordinatorResponse, 4)
    assert [one.key for one in found.coordinators] == ["a", "b"]


# Topics that come by being named


async def test_a_request_creates_no_more_topics_than_it_may(node: TalkingNode, talk: Conversation) -> None:
    names = [f"topic-{number:03}" for number in range(150)]
    request = m.MetadataRequest(topics=tuple(m.MetadataRequestTopic(name=name) for name in names))
    codes = [topic.error_code for topic in (await talk.ask(request, m.MetadataResponse, 9)).topics]
    assert codes == [ErrorCode.NONE] * 100 + [ErrorCode.LEADER_NOT_AVAILABLE] * 50
    assert len(node.broker.topics()) == 100
    again = (await talk.ask(request, m.MetadataResponse, 9)).topics
    assert {topic.error_code for topic in again} == {ErrorCode.NONE}
