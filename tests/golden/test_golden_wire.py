"""Frames captured from real clients, and from librdkafka's mock brokers, decode and re-encode exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from penstock.codec.batch.header import BatchHeader, check_batch
from penstock.codec.kafka import (
    APIS,
    ApiVersionsRequest,
    FetchRequest,
    JoinGroupRequest,
    Malformed,
    MetadataRequest,
    ProduceRequest,
    Request,
    RequestHeader,
    decode,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response_parts,
)

FOLDER = Path(__file__).parent / "wire"
RequestT = TypeVar("RequestT", bound=Request)

KEYS = {api.name: api.key for api in APIS.values()}


def captured(pattern: str) -> list[pytest.ParameterSet]:
    found = []
    for path in sorted(FOLDER.glob(pattern)):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if not line.startswith("#"):
                name, version, text = line.split()
                label = f"{path.stem.split('_', 1)[1]}-{number}-{name}-v{version}"
                found.append(pytest.param(name, int(version), bytes.fromhex(text), id=label))
    return found


def read_request(frame: bytes) -> tuple[RequestHeader, Request]:
    header = decode_request_header(memoryview(frame))
    assert isinstance(header, RequestHeader), header
    request = APIS[header.api_key].request
    message = decode(request, header.api_version, memoryview(frame), header.body_position)
    assert not isinstance(message, Malformed), message
    return header, message


def requests_of(client: str, kind: type[RequestT]) -> list[RequestT]:
    frames = [bytes(parameter.values[2]) for parameter in captured(f"requests_{client}.txt")]
    messages = [read_request(frame)[1] for frame in frames]
    return [message for message in messages if isinstance(message, kind)]


@pytest.mark.parametrize(("name", "version", "frame"), captured("requests_*.txt"))
def test_request_of_a_real_client_comes_back_byte_for_byte(name: str, version: int, frame: bytes) -> None:
    header, message = read_request(frame)
    assert (header.api_key, header.api_version) == (KEYS[name], version)
    again = encode_request(message, version, header.correlation_id, header.client_id)
    assert again[4:] == frame


@pytest.mark.parametrize(("name", "version", "frame"), captured("responses_*.txt"))
def test_response_of_a_real_broker_comes_back_byte_for_byte(name: str, version: int, frame: bytes) -> None:
    answer = decode_response(APIS[KEYS[name]].response, version, memoryview(frame))
    assert not isinstance(answer, Malformed), answer
    correlation_id, message = answer
    assert b"".join(encode_response_parts(message, version, correlation_id))[4:] == frame


@pytest.mark.parametrize("client", ["confluent_kafka", "kafka_python", "aiokafka", "kcat"])
def test_produced_batches_are_whole(client: str) -> None:
    messages = requests_of(client, ProduceRequest)
    assert messages
    for message in messages:
        assert message.acks == -1
        (topic,) = message.topic_data
        assert topic.name == "golden"
        (partition,) = topic.partition_data
        assert isinstance(partition.records, memoryview)
        header = check_batch(partition.records)
        assert isinstance(header, BatchHeader), header
        assert header.size_bytes == len(partition.records)
        assert header.is_transactional == (message.transactional_id is not None)


def test_clients_say_who_they_are() -> None:
    (message,) = requests_of("confluent_kafka", ApiVersionsRequest)
    assert message.client_software_name == "confluent-kafka-python"
    header, _ = read_request(bytes(captured("requests_aiokafka.txt")[0].values[2]))
    assert header.client_id == "aiokafka-0.14.0"


def test_what_was_asked_for_is_what_is_read() -> None:
    asked = [topic.name for message in requests_of("kcat", MetadataRequest) for topic in message.topics or ()]
    assert "golden" in asked
    fetch = requests_of("confluent_kafka", FetchRequest)[0]
    assert fetch.topics[0].topic_id == bytes(range(16))
    assert fetch.topics[0].partitions[0].fetch_offset == 0
    join = requests_of("kafka_python", JoinGroupRequest)[0]
    assert (join.group_id, join.protocol_type) == ("g", "consumer")


def test_librdkafka_asking_for_all_topics_is_understood() -> None:
    """Captured from confluent-kafka 2.16.1: three bytes stand behind the null that means all topics."""
    header, message = read_request(bytes.fromhex("0003000d00000003000772646b61666b610000000000010000"))
    assert header.api_version == 13
    assert isinstance(message, MetadataRequest)
    assert message.topics is None
