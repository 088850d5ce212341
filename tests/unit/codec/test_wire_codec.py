"""Messages, headers and frames: what goes in comes out, and what must not be copied is not."""

from __future__ import annotations

import struct
from random import Random

import pytest

from penstock.codec.kafka import (
    APIS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BytesLike,
    CreateTopicsRequest,
    DescribeTopicPartitionsRequest,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    RequestHeader,
    SaslHandshakeRequest,
    decode,
    decode_request_header,
    decode_response,
    encode,
    encode_request,
    encode_response_parts,
)
from penstock.codec.kafka.messages.describe_topic_partitions import Cursor
from penstock.codec.kafka.messages.fetch import FetchableTopicResponse, PartitionData, ReplicaState
from penstock.codec.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from penstock.codec.kafka.messages.metadata import MetadataResponseBroker
from penstock.codec.kafka.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from support.codec.wire_messages import every_body, random_message


def produce(records: BytesLike) -> ProduceRequest:
    return ProduceRequest(
        acks=-1,
        timeout_ms=1500,
        topic_data=(TopicProduceData("t", partition_data=(PartitionProduceData(3, records),)),),
    )


def fetched(records: BytesLike | list[BytesLike]) -> FetchResponse:
    partition = PartitionData(partition_index=3, high_watermark=9, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=bytes(16), partitions=[partition])])


def test_every_message_comes_back_equal() -> None:
    random = Random(5)
    for body, version in every_body():
        for _ in range(3):
            message = random_message(body, version, random)
            data = encode(message, version)
            assert decode(body, version, data) == message


def test_every_message_is_made_of_defaults() -> None:
    for body, version in every_body():
        assert decode(body, version, encode(body(), version)) == body()


def test_produce_v3_is_laid_out_as_kafka_lays_it_out() -> None:
    assert encode(produce(b"batch"), 3) == (
        b"\xff\xff" + b"\xff\xff" + struct.pack(">i", 1500)  # no transaction, acks, timeout
        + struct.pack(">i", 1) + b"\0\1t"
        + struct.pack(">iii", 1, 3, 5) + b"batch"
    )  # fmt: skip


def test_produce_v2_has_no_transactional_id() -> None:
    assert encode(produce(b""), 2).startswith(b"\xff\xff" + struct.pack(">i", 1500))
    assert decode(ProduceRequest, 0, encode(produce(b"set"), 0)) == produce(b"set")


def test_records_are_decoded_as_views_of_the_frame() -> None:
    frame = bytearray(encode(produce(b"batch"), 9))
    message = decode(ProduceRequest, 9, memoryview(frame))
    assert isinstance(message, ProduceRequest)
    records = message.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"batch")] = ord("c")
    assert records == b"catch"


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_are_encoded_without_a_copy(version: int) -> None:
    records = memoryview(b"x" * 1000)
    parts = encode_response_parts(fetched(records), version, 5)
    assert any(part is records for part in parts)
    assert len(parts) == 3 if version >= 12 else 2


def test_records_may_be_given_in_several_ranges() -> None:
    ranges: list[BytesLike] = [b"one", memoryview(b"two"), bytearray(b"three")]
    parts = encode_response_parts(fetched(ranges), 12, 5)
    assert [any(part is given for part in parts) for given in ranges] == [True, True, True]
    assert b"".join(parts) == b"".join(encode_response_parts(fetched(b"onetwothree"), 12, 5))


def test_no_records_are_empty_and_not_null() -> None:
    # librdkafka fails on null: "invalid MessageSetSize -1".
    assert encode(fetched(b""), 4) == encode(fetched([]), 4)
    message = decode(FetchResponse, 4, encode(FetchResponse(responses=(FetchableTopicResponse(),)), 4))
    assert isinstance(message, FetchResponse)
    default = FetchResponse(responses=(FetchableTopicResponse(partitions=(PartitionData(),)),))
    assert encode(default, 4).endswith(struct.pack(">i", 0))


def test_any_sequence_is_encoded() -> None:
    topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])
    as_list = ListOffsetsRequest(topics=[topic])
    as_tuple = ListOffsetsRequest(topics=(ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp=-1),)),))
    assert encode(as_list, 6) == encode(as_tuple, 6)
    assert decode(ListOffsetsRequest, 6, encode(as_list, 6)) == as_tuple


def test_fields_of_other_versions_are_left_out_and_defaulted() -> None:
    message = MetadataResponse(throttle_time_ms=7, brokers=(MetadataResponseBroker(1, "h", 9092, "rack"),))
    decoded = decode(MetadataResponse, 0, encode(message, 0))
    assert isinstance(decoded, MetadataResponse)
    assert decoded.throttle_time_ms == 0
    assert decoded.brokers == (MetadataResponseBroker(1, "h", 9092, None),)


def test_tagged_fields_are_sent_only_if_they_say_something() -> None:
    def answer(leader: LeaderIdAndEpoch) -> ProduceResponse:
        partition = PartitionProduceResponse(0, 6, -1, current_leader=leader)
        return ProduceResponse((TopicProduceResponse("t", partition_responses=(partition,)),))

    unset = encode(answer(LeaderIdAndEpoch()), 10)
    told = encode(answer(LeaderIdAndEpoch(2, 5)), 10)
    assert len(told) - len(unset) == 1 + 1 + 8 + 1  # tag, size, two int32, the part's own tags
    assert decode(ProduceResponse, 10, told) == answer(LeaderIdAndEpoch(2, 5))


def test_several_tagged_fields_are_sent_in_the_order_of_their_tags() -> None:
    message = FetchRequest(cluster_id="c", replica_state=ReplicaState(4, 5))
    data = encode(message, 15)
    assert data.endswith(b"\2" + b"\0\2\2c" + b"\1\x0d" + struct.pack(">iq", 4, 5) + b"\0")
    assert decode(FetchRequest, 15, data) == message


def test_nullable_part_is_marked() -> None:
    with_cursor = DescribeTopicPartitionsRequest(cursor=Cursor("t", 4))
    assert encode(with_cursor, 0).endswith(b"\1\2t\0\0\0\4\0\0")
    assert encode(DescribeTopicPartitionsRequest(), 0).endswith(b"\xff\0")


def test_error_codes_are_numbers_on_the_wire() -> None:
    data = encode(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0)
    assert data == b"\0\x23" + bytes(4)
    assert ErrorCode(35).name == "UNSUPPORTED_VERSION"


@pytest.mark.parametrize(("api_version", "tags"), [(8, b""), (9, b"\0"), (9, b"\1\7\3abc")])
def test_request_header_has_tags_if_the_body_is_flexible(api_version: int, tags: bytes) -> None:
    # The client id is not compact, whatever the version.
    frame = struct.pack(">hhih", 3, api_version, 77, 7) + b"rdkafka" + tags + b"body"
    header = decode_request_header(memoryview(frame))
    assert header == RequestHeader(3, api_version, 77, "rdkafka", len(frame) - 4)


def test_request_header_without_a_client_id() -> None:
    header = decode_request_header(struct.pack(">hhih", 17, 1, 77, -1))
    assert header == RequestHeader(17, 1, 77, None, 10)


def test_header_of_a_version_too_new_can_be_read() -> None:
    """ApiVersions v9 gets an answer in v0, so its header must be understood."""
    frame = struct.pack(">hhih", 18, 9, 77, 1) + b"c\0" + b"unknown body"
    assert decode_request_header(frame) == RequestHeader(18, 9, 77, "c", 12)


@pytest.mark.parametrize("client_id", [None, "", "client", "é" * 200])
def test_every_request_frame_comes_back(client_id: str | None) -> None:
    random = Random(6)
    for api in APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            message = random_message(api.request, version, random)
            frame = encode_request(message, version, 123456, client_id)
            assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
            view = memoryview(frame)[4:]
            header = decode_request_header(view)
            assert isinstance(header, RequestHeader)
            assert (header.api_key, header.api_version, header.correlation_id) == (api.key, version, 123456)
            assert header.client_id == client_id
            assert decode(api.request, version, view, header.body_position) == message


def test_every_response_frame_comes_back() -> None:
    random = Random(7)
    for api in APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            message = random_message(api.response, version, random)
            frame = b"".join(encode_response_parts(message, version, -5))
            assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
            assert decode_response(api.response, version, memoryview(frame)[4:]) == (-5, message)


def test_response_to_api_versions_never_has_header_tags() -> None:
    frame = b"".join(encode_response_parts(ApiVersionsResponse(error_code=35), 3, 1))
    assert frame[8:10] == b"\0\x23"
    frame = b"".join(encode_response_parts(ProduceResponse(), 9, 1))
    assert frame[8:10] == b"\0\1"


def test_the_table_is_the_one_kafka_has() -> None:
    """The minimums matter: a client that sees a higher one may drop features or give up."""
    minimums = {api.name: api.version_min for api in APIS.values() if api.version_min > 0}
    assert minimums == {
        "Fetch": 4,
        "ListOffsets": 1,
        "OffsetCommit": 2,
        "OffsetFetch": 1,
        "CreateTopics": 2,
        "DeleteTopics": 1,
        "OffsetForLeaderEpoch": 2,
        "DescribeConfigs": 1,
        "AlterReplicaLogDirs": 1,
        "DescribeLogDirs": 1,
        "WriteTxnMarkers": 1,
        "DescribeAcls": 1,
        "CreateAcls": 1,
        "DeleteAcls": 1,
        "CreateDelegationToken": 1,
        "RenewDelegationToken": 1,
        "ExpireDelegationToken": 1,
        "DescribeDelegationToken": 1,
        "ShareGroupHeartbeat": 1,
        "ShareGroupDescribe": 1,
        "ShareFetch": 1,
        "ShareAcknowledge": 1,
    }
    maximums = {name: APIS[key].version_max for key, name in ((0, "Produce"), (1, "Fetch"), (2, "ListOffsets"),
                (3, "Metadata"), (18, "ApiVersions"), (22, "InitProducerId"))}  # fmt: skip
    assert maximums == {
        "Produce": 13, "Fetch": 18, "ListOffsets": 11, "Metadata": 13, "ApiVersions": 4, "InitProducerId": 5,
    }  # fmt: skip


def test_request_classes_know_their_key() -> None:
    assert {key: api.request.api_key for key, api in APIS.items()} == {key: key for key in APIS}
    assert APIS[SaslHandshakeRequest.api_key].flexible_from > 0x7FFF
    assert APIS[CreateTopicsRequest.api_key].flexible_from == 5
    assert APIS[ApiVersionsRequest.api_key].name == "ApiVersions"


def test_a_version_that_does_not_exist_cannot_be_encoded() -> None:
    with pytest.raises(AssertionError, match="no version 14"):
        encode(ProduceRequest(), 14)


def test_a_value_that_does_not_fit_is_our_own_mistake() -> None:
    with pytest.raises(struct.error):
        encode(ProduceRequest(timeout_ms=1 << 40), 9)
