"""Every API has a bound on what one request may name; long messages are read and written in steps, to the same end."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from penstock.base.long_work import all_at_once
from penstock.codec.kafka import (
    APIS,
    BOUNDS,
    ErrorCode,
    Malformed,
    OverBound,
    Response,
    decode,
    decode_in_steps,
    decode_response,
    encode,
    encode_response_in_steps,
    encode_response_parts,
    refusal_of,
)
from penstock.codec.kafka.compiler_decode import STEP_ELEMENTS
from penstock.codec.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from penstock.codec.kafka.messages.create_topics import CreateTopicsRequest
from penstock.codec.kafka.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.codec.kafka.schema import Array, Nested, fields_of
from support.codec.wire_messages import every_body, random_message

PARTITIONS = 10_000


def test_every_api_has_a_bound() -> None:
    assert BOUNDS.keys() == APIS.keys()
    assert all(bound.reason for bound in BOUNDS.values())


@pytest.mark.parametrize("topic_count", [1, PARTITIONS])
@pytest.mark.parametrize("version", [3, 4])
def test_a_transaction_takes_all_partitions_that_one_request_creates(version: int, topic_count: int) -> None:
    indexes = tuple(range(PARTITIONS // topic_count))
    topics = tuple(AddPartitionsToTxnTopic(name=f"t{number}", partitions=indexes) for number in range(topic_count))
    request = AddPartitionsToTxnRequest(v3_and_below_topics=topics)
    if version > 3:
        request = AddPartitionsToTxnRequest(transactions=(AddPartitionsToTxnTransaction(topics=topics),))
    decoded = decode(AddPartitionsToTxnRequest, version, encode(request, version))
    assert isinstance(decoded, AddPartitionsToTxnRequest)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_request_with_more_elements_than_its_bound_is_refused_before_any_is_read(api) -> None:  # type: ignore[no-untyped-def]
    version = api.version_min
    arrays = [
        field
        for field in fields_of(api.request)
        if isinstance(field.kind, Array) and field.is_plain(version) and isinstance(field.kind.element, Nested)
    ]
    if not arrays:
        return
    array = arrays[0]
    count = BOUNDS[api.key].elements_max + 1
    frame = encode(api.request(**{array.name: (array.kind.element.message_class(),) * count}), version)
    decode(api.request, version, frame)  # so that compiling is not measured
    tracemalloc.start()
    refused = decode(api.request, version, frame)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(refused, OverBound)
    assert peak_bytes < 20_000
    assert isinstance(all_at_once(decode_in_steps(api.request, version, memoryview(frame))), OverBound)


def test_what_real_clients_name_is_within_the_bounds() -> None:
    topics = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(20_000))
    assert decode(MetadataRequest, 9, encode(MetadataRequest(topics=topics), 9)) == MetadataRequest(topics=topics)
    request = fetch_of(PARTITIONS)
    assert decode(FetchRequest, 12, encode(request, 12)) == request


@pytest.mark.parametrize(("topic_count", "partition_count"), [(10_000, 1), (1, 20_000), (20_000, 1)])
def test_a_member_may_own_every_partition_that_it_subscribes_to(topic_count: int, partition_count: int) -> None:
    owned = TopicPartitions(partitions=tuple(range(partition_count)))
    request = ConsumerGroupHeartbeatRequest(
        group_id="workers",
        subscribed_topic_names=tuple(f"topic-{number}" for number in range(topic_count)),
        topic_partitions=(owned,) * topic_count,
    )
    assert decode(ConsumerGroupHeartbeatRequest, 1, encode(request, 1)) == request


@pytest.mark.parametrize("seed", range(3))
def test_in_steps_every_message_is_the_same(seed: int) -> None:
    random = Random(seed)
    for message_class, version in every_body():
        message = random_message(message_class, version, random)
        data = encode(message, version)
        assert all_at_once(decode_in_steps(message_class, version, memoryview(data))) == decode(
            message_class, version, data
        )
        if isinstance(message, Response):
            whole = b"".join(encode_response_parts(message, version, 7))
            assert b"".join(all_at_once(encode_response_in_steps(message, version, 7))) == whole


def test_a_malformed_message_is_refused_in_steps_too() -> None:
    data = encode(fetch_of(PARTITIONS), 12)[:-100]
    assert isinstance(all_at_once(decode_in_steps(FetchRequest, 12, memoryview(data))), Malformed)


def test_a_long_request_is_read_in_many_steps() -> None:
    data = memoryview(encode(fetch_of(PARTITIONS), 12))
    assert sum(1 for _ in decode_in_steps(FetchRequest, 12, data)) == (PARTITIONS + 1) // STEP_ELEMENTS


def test_a_long_reply_is_written_in_many_steps() -> None:
    data = tuple(PartitionData(number) for number in range(PARTITIONS))
    reply = FetchResponse(responses=(FetchableTopicResponse(topic="orders", partitions=data),))
    assert sum(1 for _ in encode_response_in_steps(reply, 12, 1)) >= PARTITIONS // STEP_ELEMENTS


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_refusal_can_be_written_in_every_version_that_has_a_place_for_it(api) -> None:  # type: ignore[no-untyped-def]
    for version in range(api.version_min, api.version_max + 1):
        refusal = refusal_of(api.key, version, ErrorCode.INVALID_REQUEST, "too many")
        if refusal is not None:
            frame = b"".join(encode_response_parts(refusal, version, 5))[4:]
            told = decode_response(api.response, version, frame)
            assert not isinstance(told, Malformed)
            assert told[1].error_code == ErrorCode.INVALID_REQUEST


def test_fetch_can_be_refused_and_create_topics_cannot() -> None:
    assert refusal_of(FetchRequest.api_key, 12, ErrorCode.INVALID_REQUEST, "") is not None
    assert refusal_of(CreateTopicsRequest.api_key, 5, ErrorCode.INVALID_REQUEST, "") is None


def fetch_of(partitions: int) -> FetchRequest:
    named = tuple(FetchPartition(partition=number) for number in range(partitions))
    return FetchRequest(topics=(FetchTopic(topic="orders", partitions=named),))
