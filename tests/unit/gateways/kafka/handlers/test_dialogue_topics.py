"""CreateTopics, DeleteTopics, CreatePartitions: topics come, grow and go, while others use them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.config import BrokerConfig
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.codec.kafka.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.codec.kafka.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, outcome, produce

OLDEST, NEWEST = 2, 7


def new_topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    assignments: dict[int, list[int]] | None = None,
    **settings: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[CreatableReplicaAssignment(index, nodes) for index, nodes in (assignments or {}).items()],
        configs=[CreatableTopicConfig(key.replace("_", "."), value) for key, value in settings.items()],
    )


async def create(
    talk: Conversation, *topics: CreatableTopic, version: int = NEWEST, validates_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validates_only)
    return list((await talk.ask(request, CreateTopicsResponse, version)).topics)


def errors(results: list[CreatableTopicResult]) -> dict[str, ErrorCode]:
    return {result.name: ErrorCode(result.error_code) for result in results}


@pytest.mark.parametrize("version", [OLDEST, 5, NEWEST])
async def test_topic_is_made_and_described(node: TalkingNode, talk: Conversation, version: int) -> None:
    (result,) = await create(talk, new_topic("orders", 3, retention_ms="1000"), version=version)
    assert (result.name, result.error_code, result.error_message) == ("orders", ErrorCode.NONE, None)
    served = node.broker.topic("orders")
    assert served is not None
    assert served.partition_count == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        settings = {config.name: (config.value, config.config_source) for config in result.configs or ()}
        assert settings["retention.ms"] == ("1000", 1)
        assert settings["durability"] == ("fsync", 5)
    if version >= 7:
        assert result.topic_id == served.topic_id != NO_UUID


async def test_number_of_partitions_may_be_left_to_the_node() -> None:
    async with running_node(broker=BrokerConfig(default_partitions=6)) as node:
        (result,) = await create(await node.connect(), new_topic("orders", -1, -1))
        assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 6, 1)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
async def test_validation_alone_makes_nothing(node: TalkingNode, talk: Conversation, version: int) -> None:
    wanted = [new_topic("orders"), new_topic("bad name"), new_topic("none", 0)]
    found = errors(await create(talk, *wanted, version=version, validates_only=True))
    assert found == {
        "orders": ErrorCode.NONE,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "none": ErrorCode.INVALID_PARTITIONS,
    }
    assert node.broker.topics() == []


async def test_existing_topic_is_not_made_again(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", 2)
    found = await create(talk, new_topic("orders", 5), new_topic("others"))
    assert errors(found) == {"orders": ErrorCode.TOPIC_ALREADY_EXISTS, "others": ErrorCode.NONE}
    served = node.broker.topic("orders")
    assert served is not None
    assert served.partition_count == 2


async def test_topic_named_twice_is_made_never(node: TalkingNode, talk: Conversation) -> None:
    found = await create(talk, new_topic("orders"), new_topic("others"), new_topic("orders", 2))
    assert [(result.name, result.error_code) for result in found] == [
        ("orders", ErrorCode.INVALID_REQUEST),
        ("others", 0),
    ]
    assert node.broker.topic("orders") is None


BAD_TOPICS = {
    "": (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "..": (new_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a/b": (new_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "long name": (new_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "no partitions": (new_topic("a", 0), ErrorCode.INVALID_PARTITIONS),
    "negative partitions": (new_topic("a", -2), ErrorCode.INVALID_PARTITIONS),
    "too many partitions": (new_topic("a", 2**31 - 1), ErrorCode.INVALID_PARTITIONS),
    "no replicas": (new_topic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "more replicas than nodes": (new_topic("a", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    "unknown setting": (new_topic("a", retention="1"), ErrorCode.INVALID_CONFIG),
    "setting of another type": (new_topic("a", retention_ms="a week"), ErrorCode.INVALID_CONFIG),
    "setting out of bounds": (new_topic("a", segment_bytes="1"), ErrorCode.INVALID_CONFIG),
    "setting without a value": (new_topic("a", retention_ms=None), ErrorCode.INVALID_CONFIG),
    "setting that is not built yet": (new_topic("a", durability="replicated"), ErrorCode.INVALID_CONFIG),
    "assignment and numbers": (new_topic("a", 1, 1, assignments={0: [1]}), ErrorCode.INVALID_REQUEST),
    "assignment to nobody": (new_topic("a", -1, -1, assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "assignment to a stranger": (new_topic("a", -1, -1, assignments={0: [2]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    "assignment to one node twice": (
        new_topic("a", -1, -1, assignments={0: [1, 1]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "assignment with a gap": (
        new_topic("a", -1, -1, assignments={0: [1], 2: [1]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("what", BAD_TOPICS)
async def test_bad_topic_is_refused_with_a_reason(
    node: TalkingNode, talk: Conversation, what: str, version: int
) -> None:
    topic, error = BAD_TOPICS[what]
    (result,) = await create(talk, topic, version=version)
    assert result.error_code == error
    assert result.error_message
    assert node.broker.topics() == []


async def test_assignment_to_this_node_is_taken(node: TalkingNode, talk: Conversation) -> None:
    (result,) = await create(talk, new_topic("orders", -1, -1, assignments={1: [1], 0: [1]}))
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)


@pytest.mark.timeout(20)
async def test_request_with_very_many_names_costs_little_each(talk: Conversation) -> None:
    """Each name against each other would keep the loop for minutes."""
    wanted = [new_topic(f"no {number}") for number in range(10_000)]
    found = await create(talk, *wanted)
    assert {result.error_code for result in found} == {ErrorCode.INVALID_TOPIC_EXCEPTION}


async def test_more_partitions_than_one_request_may_make_are_refused(node: TalkingNode, talk: Conversation) -> None:
    """As Kafka's controller does it: none of them is made."""
    found = await create(talk, new_topic("small"), new_topic("large", 10_000))
    assert {result.error_code for result in found} == {ErrorCode.POLICY_VIOLATION}
    assert "10001 partitions" in (found[0].error_message or "")
    assert node.broker.topics() == []


async def test_a_topic_grows_by_no_more_partitions_than_one_request_may_make(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("orders")
    request = CreatePartitionsRequest(topics=(CreatePartitionsTopic("orders", 10_002),), timeout_ms=1000)
    reply = await talk.ask(request, CreatePartitionsResponse)
    assert reply.results[0].error_code == ErrorCode.POLICY_VIOLATION


# DeleteTopics


@pytest.mark.parametrize("version", [1, 4, 5])
async def test_topics_are_deleted_by_name(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders")
    request = DeleteTopicsRequest(topic_names=("missing", "orders"), timeout_ms=1000)
    reply = await talk.ask(request, DeleteTopicsResponse, version)
    assert [(result.name, result.error_code) for result in reply.responses] == [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", ErrorCode.NONE),
    ]
    assert node.broker.topics() == []


async def test_topics_are_deleted_by_name_or_id(node: TalkingNode, talk: Conversation) -> None:
    first, second = await node.create_topic("first"), await node.create_topic("second")
    states = (
        DeleteTopicState(name="first"),
        DeleteTopicState(topic_id=second),
        DeleteTopicState(topic_id=b"\x07" * 16),
        DeleteTopicState(name="absent"),
    )
    reply = await talk.ask(DeleteTopicsRequest(topics=states, timeout_ms=1000), DeleteTopicsResponse, 6)
    assert [(result.name, result.topic_id, result.error_code) for result in reply.responses] == [
        ("first", first, ErrorCode.NONE),
        ("second", second, ErrorCode.NONE),
        (None, b"\x07" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
        ("absent", NO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert node.broker.topics() == []


async def test_topic_that_is_named_badly_is_not_deleted(node: TalkingNode, talk: Conversation) -> None:
    """Twice, by a name and an id that may mean two topics, or not at all."""
    await node.create_topic("first")
    second = await node.create_topic("second")
    for states in (
        (DeleteTopicState(name="first"), DeleteTopicState(name="first")),
        (DeleteTopicState(name="first", topic_id=second),),
        (DeleteTopicState(),),
    ):
        reply = await talk.ask(DeleteTopicsRequest(topics=states, timeout_ms=1000), DeleteTopicsResponse, 6)
        assert [result.error_code for result in reply.responses] == [ErrorCode.INVALID_REQUEST]
    assert len(node.broker.topics()) == 2


async def test_what_coordinators_remember_by_is_neither_deleted_nor_grown(
    node: TalkingNode, talk: Conversation
) -> None:
    """Without it no group could commit before the node's next start."""
    assert await node.parts.groups.ready()
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name="__consumer_offsets"),), timeout_ms=1000)
    reply = await talk.ask(request, DeleteTopicsResponse)
    assert [result.error_code for result in reply.responses] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert node.broker.topic("__consumer_offsets") is not None
    assert await grown(talk, grow("__consumer_offsets", 100)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_topic_made_again_has_another_id_and_nothing_in_it(node: TalkingNode, talk: Conversation) -> None:
    old_id = await node.create_topic("orders")
    await talk.ask(produce("orders", batch(b"a", producer_id=1, sequence=5)), ProduceResponse, 9)
    await talk.ask(DeleteTopicsRequest(topic_names=("orders",)), DeleteTopicsResponse, 5)
    (result,) = await create(talk, new_topic("orders"))
    assert result.topic_id != old_id
    # Nor does it remember the producer, whose next batch would have been out of order.
    reply = await talk.ask(produce("orders", batch(b"b", producer_id=1, sequence=0)), ProduceResponse, 9)
    assert outcome(reply) == (ErrorCode.NONE, 0)
    reply = await talk.ask(produce("", batch(b"c"), topic_id=old_id), ProduceResponse, 13)
    assert outcome(reply) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


# CreatePartitions


def grow(name: str, count: int, assignments: list[list[int]] | None = None) -> CreatePartitionsTopic:
    nodes = None if assignments is None else [CreatePartitionsAssignment(each) for each in assignments]
    return CreatePartitionsTopic(name=name, count=count, assignments=nodes)


async def grown(
    talk: Conversation, *topics: CreatePartitionsTopic, version: int = 3, validates_only: bool = False
) -> list[ErrorCode]:
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validates_only)
    reply = await talk.ask(request, CreatePartitionsResponse, version)
    return [ErrorCode(result.error_code) for result in reply.results]


@pytest.mark.parametrize("version", [0, 3])
async def test_topic_grows(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders", 2)
    assert await grown(talk, grow("orders", 4), version=version, validates_only=True) == [ErrorCode.NONE]
    reply = await talk.ask(produce("orders", batch(b"a"), 3), ProduceResponse, 9)
    assert outcome(reply)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await grown(talk, grow("orders", 4), version=version) == [ErrorCode.NONE]
    reply = await talk.ask(produce("orders", batch(b"a"), 3), ProduceResponse, 9)
    assert outcome(reply) == (ErrorCode.NONE, 0)


async def test_impossible_growth_is_refused(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", 2)
    wanted = [
        grow("missing", 3),
        grow("orders", 2),
        grow("orders", 1),
        grow("orders", -1),
        grow("orders", 2**31 - 1),
        grow("orders", 3, [[9]]),
        grow("orders", 4, [[1]]),
    ]
    assert [(await grown(talk, each))[0] for each in wanted] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        *[ErrorCode.INVALID_PARTITIONS] * 4,
        *[ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 2,
    ]
    # Which of two wishes is meant, nobody knows.
    assert await grown(talk, grow("orders", 3), grow("orders", 4)) == [ErrorCode.INVALID_REQUEST]


async def test_topic_grows_while_it_is_written_to(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", 1)
    admin = await node.connect()
    is_grown = asyncio.Event()

    async def write() -> list[tuple[ErrorCode, int]]:
        found = []
        while len(found) < 20 or not is_grown.is_set():
            reply = await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)
            found.append(outcome(reply))
        return found

    writing = asyncio.ensure_future(write())
    for count in (2, 5, 9):
        assert await grown(admin, grow("orders", count)) == [ErrorCode.NONE]
    is_grown.set()
    assert await writing == [(ErrorCode.NONE, offset) for offset in range(len(writing.result()))]
