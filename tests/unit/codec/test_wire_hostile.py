"""Whatever a peer sends is a message or a `Malformed`: never an exception, never memory beyond the frame."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any

import pytest

from penstock.codec.kafka import (
    APIS,
    ApiVersionsRequest,
    FetchRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Malformed,
    MetadataRequest,
    OverBound,
    ProduceRequest,
    Request,
    RequestHeader,
    decode,
    decode_request_header,
    decode_response,
    encode,
    encode_request,
)
from penstock.codec.kafka.bounds import BOUNDS
from penstock.codec.kafka.messages.metadata import MetadataRequestTopic
from penstock.codec.kafka.primitives import TAGS_MAX, write_varint
from support.codec.wire_messages import every_body, random_message

HOSTILE_WORDS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff\x0f")


def reason(result: Any) -> str:
    assert isinstance(result, Malformed), result
    return result.reason


def test_count_beyond_the_frame_is_refused_before_anything_is_reserved() -> None:
    frame = struct.pack(">i", 0x7FFFFFFF) + bytes(40)
    decode(MetadataRequest, 1, frame)  # so that compiling is not measured
    tracemalloc.start()
    result = decode(MetadataRequest, 1, frame)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason(result) == "MetadataRequest v1: array of 2147483647 elements, but 40 bytes remain"
    assert peak_bytes < 20_000


def test_compact_count_beyond_the_frame_is_refused() -> None:
    frame = write_varint(0xFFFFFFFF) + bytes(40)
    assert "array of 4294967294 elements" in reason(decode(MetadataRequest, 9, frame))


def test_count_is_bounded_by_what_an_element_takes_at_least() -> None:
    # A partition of ListOffsets v1 takes 12 bytes: of 23 there can be one, not two.
    head = struct.pack(">ii", -1, 1) + b"\0\1t"
    assert "array of 2 elements" in reason(decode(ListOffsetsRequest, 1, head + struct.pack(">i", 2) + bytes(23)))


def test_elements_of_a_request_are_bounded_however_large_its_frame() -> None:
    # Two bytes a topic, some fifty for each in memory: a frame of 100 MB would become gigabytes of objects.
    elements_max = BOUNDS[MetadataRequest.api_key].elements_max
    topics = elements_max + 1
    frame = write_varint(topics + 1) + b"\1\0" * topics + b"\0\0\0"
    refused = decode(MetadataRequest, 9, frame)
    assert f"more than {elements_max} elements" in reason(refused)
    assert isinstance(refused, OverBound)


@pytest.mark.parametrize("length", [-1, -2, -0x8000])
def test_negative_length_of_a_string_is_refused(length: int) -> None:
    frame = struct.pack(">ih", 1, length)
    assert f"name has length {length}" in reason(decode(MetadataRequest, 1, frame + bytes(8)))


@pytest.mark.parametrize("count", [-2, -0x80000000])
def test_negative_count_other_than_null_is_refused(count: int) -> None:
    assert f"topics has length {count}" in reason(decode(MetadataRequest, 1, struct.pack(">i", count)))


def test_null_is_refused_in_versions_that_have_none() -> None:
    null = struct.pack(">i", -1)
    assert "topics has length -1" in reason(decode(MetadataRequest, 0, null))
    assert decode(MetadataRequest, 1, null) == MetadataRequest(topics=None)


def test_string_beyond_the_frame_is_refused() -> None:
    frame = struct.pack(">ih", 1, 0x7FFF) + b"short"
    assert "needs 32762 bytes more than the frame has" in reason(decode(MetadataRequest, 1, frame))


def test_text_that_is_not_utf8_is_refused() -> None:
    frame = struct.pack(">ih", 1, 2) + b"\xc3\x28"
    assert "text is not UTF-8" in reason(decode(MetadataRequest, 1, frame))


def test_bytes_behind_a_response_are_refused() -> None:
    frame = encode(ListOffsetsResponse(), 1) + b"\0\0"
    assert "2 bytes behind the message" in reason(decode(ListOffsetsResponse, 1, frame))


def test_bytes_behind_every_request_are_overlooked() -> None:
    random = Random(3)
    for body, version in every_body():
        if issubclass(body, Request):
            message = random_message(body, version, random)
            assert decode(body, version, encode(message, version) + b"\0garbage") == message, (body, version)


def test_trailing_bytes_of_a_metadata_request_are_forgiven() -> None:
    frame = encode(MetadataRequest(topics=()), 1) + b"\0\0"
    assert decode(MetadataRequest, 1, frame) == MetadataRequest(topics=())


@pytest.mark.parametrize("version", [-1, 14, 99, 0x7FFF])
def test_unknown_version_is_refused(version: int) -> None:
    assert reason(decode(ProduceRequest, version, b"")) == f"ProduceRequest has no version {version}"


@pytest.mark.parametrize("varint", [b"\x80\x80\x80\x80\x10", b"\xff\xff\xff\xff\xff", b"\x80" * 40])
def test_varint_of_more_than_32_bits_is_refused(varint: bytes) -> None:
    assert "more than 32 bits" in reason(decode(MetadataRequest, 9, varint + bytes(8)))


def test_unending_varint_is_refused() -> None:
    assert "ends inside a field" in reason(decode(MetadataRequest, 9, b"\x80\x80"))


def tagged(section: bytes) -> bytes:
    """A Metadata request v9 whose tagged section is the one given."""
    frame = encode(MetadataRequest(topics=()), 9)
    assert frame[-1] == 0
    return frame[:-1] + section


def test_unknown_tags_are_skipped() -> None:
    section = b"\2" + b"\7\3abc" + write_varint(99999) + write_varint(300) + bytes(300)
    assert decode(MetadataRequest, 9, tagged(section)) == MetadataRequest(topics=())


def test_unknown_tags_inside_a_nested_part_are_skipped() -> None:
    frame = encode(MetadataRequest(topics=(MetadataRequestTopic(name="a"),)), 9)
    assert frame.startswith(b"\2\2a\0")
    frame = b"\2\2a\1\5\4wxyz" + frame[4:]
    assert decode(MetadataRequest, 9, frame) == MetadataRequest(topics=(MetadataRequestTopic(name="a"),))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (b"\2\5\0\5\0", "tag 5 after tag 5"),
        (b"\2\5\0\4\0", "tag 4 after tag 5"),
        (b"\1\5\x09abc", "tag 5 of 9 bytes, but 3 remain"),
        (b"\3\5\0", "ends inside a field"),
        (write_varint(TAGS_MAX + 1) + b"\0\0", "1001 tagged fields"),
        (write_varint(0xFFFFFFFF), "elements in all arrays together"),
    ],
)
def test_broken_tagged_section_is_refused(section: bytes, expected: str) -> None:
    assert expected in reason(decode(MetadataRequest, 9, tagged(section)))


def test_known_tag_must_fill_its_size() -> None:
    frame = encode(FetchRequest(cluster_id="abc"), 12)
    assert frame.endswith(b"\1\0\4\4abc")
    assert decode(FetchRequest, 12, frame) == FetchRequest(cluster_id="abc")
    assert "1 bytes behind" in reason(decode(FetchRequest, 12, frame[:-7] + b"\1\0\5\4abcd"))
    assert "1 bytes more" in reason(decode(FetchRequest, 12, frame[:-7] + b"\1\0\3\4abc"))


def test_known_tag_given_twice_is_refused() -> None:
    frame = encode(FetchRequest(cluster_id="abc"), 12)
    assert "tag 0 after tag 0" in reason(decode(FetchRequest, 12, frame[:-7] + b"\2\0\4\4abc\0\4\4abc"))


@pytest.mark.parametrize("frame", [b"", b"\0", b"\0\3\0\1", b"\0\3\0\1\0\0\0\7\x00"])
def test_truncated_header_is_refused(frame: bytes) -> None:
    assert reason(decode_request_header(frame)) == "request header: the frame ends inside a field"


def test_header_with_a_broken_client_id_is_refused() -> None:
    head = struct.pack(">hhi", 3, 1, 7)
    assert "client id has length -2" in reason(decode_request_header(head + b"\xff\xfe"))
    assert "client id of 99 bytes" in reason(decode_request_header(head + b"\0\x63abc"))
    assert "not UTF-8" in reason(decode_request_header(head + b"\0\1\xff"))


def test_header_of_an_unknown_api_is_refused() -> None:
    frame = struct.pack(">hhih", 31999, 0, 7, -1)
    assert reason(decode_request_header(frame)) == "no API has the key 31999"


def test_every_truncation_and_every_byte_behind_a_response_is_refused() -> None:
    random = Random(1)
    for body, version in every_body():
        frame = encode(random_message(body, version, random), version)
        cuts = range(len(frame)) if len(frame) < 60 else random.sample(range(len(frame)), 60)
        for cut in cuts:
            assert isinstance(decode(body, version, memoryview(frame)[:cut]), Malformed), (body, version, cut)
        if not issubclass(body, Request):
            assert isinstance(decode(body, version, frame + b"\0"), Malformed)


def mutated(frame: bytes, random: Random) -> bytes:
    data = bytearray(frame)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        place = random.randrange(len(data) + 1)
        match random.randrange(5):
            case 0:
                data[place : place + 1] = random.randbytes(1)
            case 1:
                word = random.choice(HOSTILE_WORDS)
                data[place : place + len(word)] = word
            case 2:
                data[place:place] = random.randbytes(random.randrange(1, 9))
            case 3:
                del data[place : place + random.randrange(1, 9)]
            case _:
                data[place : place + 2] = random.choice((b"\xff\xff", b"\x7f\xff", b"\0\0", b"\x80\0"))
    return bytes(data)


@pytest.mark.heavy
def test_mutated_messages_are_messages_or_malformed() -> None:
    """Some 170,000 decodes, always the same ones: a message that comes out must survive a round trip."""
    random = Random(2)
    refused = accepted = 0
    for body, version in every_body():
        for _ in range(20):
            frame = encode(random_message(body, version, random), version)
            for _ in range(20):
                result = decode(body, version, mutated(frame, random))
                if isinstance(result, Malformed):
                    refused += 1
                    continue
                accepted += 1
                again = decode(body, version, encode(result, version))
                assert again == result or "nan" in repr(result)
    assert refused > 50_000
    assert accepted > 10_000


def test_random_bytes_are_messages_or_malformed() -> None:
    random = Random(3)
    for body, version in every_body():
        for _ in range(30):
            data = random.randbytes(random.choice((0, 1, 2, 5, 20, 100)))
            assert isinstance(decode(body, version, data), body | Malformed)


def test_mutated_frames_have_a_header_or_are_malformed() -> None:
    random = Random(4)
    for api in APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            message = random_message(api.request, version, random)
            frame = encode_request(message, version, 7, random.choice((None, "", "client")))[4:]
            for _ in range(20):
                data = mutated(frame, random)
                header = decode_request_header(memoryview(data))
                assert isinstance(header, RequestHeader | Malformed)
                if isinstance(header, RequestHeader):
                    assert header.body_position <= len(data)
                assert isinstance(decode_response(api.response, version, data), tuple | Malformed)


def test_memory_of_a_hostile_frame_is_bounded_by_its_size() -> None:
    frame = memoryview(encode(ApiVersionsRequest("a" * 1000, "b" * 1000), 3))
    tracemalloc.start()
    for body, version in every_body():
        decode(body, version, frame)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    for body, version in every_body():
        for word in HOSTILE_WORDS:
            for place in (0, 2, 4, 8):
                data = bytearray(frame)
                data[place : place + len(word)] = word
                decode(body, version, data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes - before < 1_000_000
