"""What a client asks first: which versions, which brokers, which topics, which coordinator."""

from __future__ import annotations

import msgspec

from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest
from penstock.codec.kafka.messages.describe_cluster import DescribeClusterRequest
from penstock.codec.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support.door.kafka_phrases import metadata

UNKNOWN_ID = bytes(15) + b"\x09"


@dialogue(ApiVersionsRequest)
def api_versions(talk: Talk) -> None:
    talk.ask("all", ApiVersionsRequest(client_software_name="differential", client_software_version="1"))
    talk.ask("no name", ApiVersionsRequest(client_software_version="1"))
    talk.ask("bad name", ApiVersionsRequest(client_software_name="not a name!", client_software_version="1"))


@dialogue(DescribeClusterRequest)
def describe_cluster(talk: Talk) -> None:
    talk.ask("brokers", DescribeClusterRequest())
    talk.ask("with operations", DescribeClusterRequest(include_cluster_authorized_operations=True))
    talk.ask("fenced too", DescribeClusterRequest(include_fenced_brokers=True))
    talk.ask("controllers", DescribeClusterRequest(endpoint_type=2))
    talk.ask("neither", DescribeClusterRequest(endpoint_type=9))


@dialogue(MetadataRequest)
def metadata_of_topics(talk: Talk) -> None:
    topic = talk.topic("known", 3)
    absent = talk.name("absent")
    talk.ask("known", metadata(topic))
    talk.ask("with operations", metadata(topic, with_operations=True))
    talk.ask("absent", metadata(absent), version=max(4, talk.version(MetadataRequest)))
    talk.ask("both", metadata(topic, absent), version=max(4, talk.version(MetadataRequest)))
    talk.ask("twice", metadata(topic, topic))
    talk.ask("none", metadata(), show=without_topics if talk.version(MetadataRequest) == 0 else None)
    talk.ask("illegal name", metadata("no/such name"))
    talk.ask("too long", metadata("x" * 250))
    talk.ask("dots", metadata(".."))


@dialogue(MetadataRequest)
def metadata_by_id(talk: Talk) -> None:
    topic = talk.topic("known")
    version = max(10, talk.version(MetadataRequest))
    by_id = MetadataRequestTopic(topic_id=talk.ids[topic], name=None)
    unknown = MetadataRequestTopic(topic_id=UNKNOWN_ID, name=None)
    talk.ask("by id", MetadataRequest(topics=(by_id,)), version=max(12, version))
    talk.ask("unknown id", MetadataRequest(topics=(unknown,)), version=max(12, version))
    talk.ask("both", MetadataRequest(topics=(by_id, unknown)), version=max(12, version))
    named = MetadataRequestTopic(topic_id=UNKNOWN_ID, name=topic)
    talk.ask("name and another id", MetadataRequest(topics=(named,)), version=version)


@dialogue(MetadataRequest)
def metadata_creates_topics(talk: Talk) -> None:
    name = talk.name("made")
    version = max(4, talk.version(MetadataRequest))
    talk.ask("forbidden", metadata(name), version=version)
    talk.ask("asked for", metadata(name, creates=True), version=version)
    talk.await_topic(name)
    talk.ask("then", metadata(name), version=version)
    talk.ask("illegal", metadata("what is this", creates=True), version=version)


def without_topics(reply: MetadataResponse) -> MetadataResponse:
    """In version 0 no topics means all of them, those of other runs too."""
    return msgspec.structs.replace(reply, topics=())


@dialogue(MetadataRequest)
def metadata_of_all(talk: Talk) -> None:
    topic = talk.topic("here", 2)

    def own(reply: MetadataResponse) -> MetadataResponse:
        found = [each for each in reply.topics if each.name in (topic, "__consumer_offsets", "__transaction_state")]
        return msgspec.structs.replace(reply, topics=found)

    request = MetadataRequest(topics=None if talk.version(MetadataRequest) else ())
    talk.ask("all", request, show=own)


@dialogue(DescribeTopicPartitionsRequest)
def describe_topic_partitions(talk: Talk) -> None:
    topics = [talk.topic("one", 2), talk.topic("three"), talk.topic("two", 3)]

    def ask(step: str, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> DescribeTopicPartitionsResponse:
        wanted = tuple(TopicRequest(name) for name in names)
        request = DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=limit, cursor=cursor)
        return talk.ask(step, request)  # type: ignore[no-any-return]

    ask("all", *topics)
    ask("unknown", talk.name("absent"), topics[0])
    page = ask("first page", *topics, limit=3)
    if page.next_cursor is not None:
        ask("second page", *topics, limit=3, cursor=page.next_cursor)
    ask("from the middle", *topics, cursor=Cursor(topics[2], 1))
    ask("from a topic that is not", *topics, cursor=Cursor(talk.name("p"), 0))
    ask("negative cursor", *topics, cursor=Cursor(topics[0], -1))
    ask("limit zero", *topics, limit=0)


@dialogue(FindCoordinatorRequest)
def find_coordinator(talk: Talk) -> None:
    group = talk.name("group")

    def find(key: str, kind: int = 0) -> FindCoordinatorRequest:
        return FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=(key,))

    talk.ask("group", find(group))
    talk.ask("empty group", find(""))
    version = max(1, talk.version(FindCoordinatorRequest))
    talk.ask("transaction", find(talk.name("transaction"), 1), version=version)
    talk.ask("no such kind", find(group, 9), version=version)
    if version >= 4:
        several = FindCoordinatorRequest(coordinator_keys=(group, talk.name("other"), group))
        talk.ask("several", several)
        talk.ask("none", FindCoordinatorRequest())
