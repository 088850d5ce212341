"""What a broken or evil peer sends costs that peer its connection, and nobody else anything."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import api_versions, metadata, produce
from support.door.raw_kafka import (
    METADATA_VERSION,
    PRODUCE_VERSION,
    RawConnection,
    create_by_asking,
    one_batch,
    produce_request,
)
from support.node_process import NodeProcess

ALL_TOPICS = metadata.MetadataRequest(topics=())
# A node that has not closed by then waits for the rest of a frame that never comes.
CLOSE_SECONDS_MAX = 10.0


@pytest.fixture
def bystander(node: NodeProcess) -> Iterator[RawConnection]:
    """A well-behaved connection, opened before the mischief and asked after it."""
    with RawConnection(node) as connection:
        connection.ask(ALL_TOPICS, metadata.MetadataResponse, METADATA_VERSION)
        yield connection
        connection.ask(ALL_TOPICS, metadata.MetadataResponse, METADATA_VERSION)
    assert node.is_running


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, api_version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", api_key, api_version, correlation_id, 1) + b"x"


HOPELESS = {
    "a frame of two gigabytes": struct.pack(">i", 0x7FFF_FFFF) + b"x" * 100,
    "a frame of negative length": struct.pack(">i", -5) + b"x" * 100,
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a frame without a header": frame(b"\x00"),
    "an empty frame": frame(b""),
    "a client id longer than the frame": frame(struct.pack(">hhih", 3, 1, 1, 30_000)),
    "an unknown api": frame(header(999, 0)),
    "a version that never was": frame(header(0, 99)),
    "a negative version": frame(header(3, -1)),
    "an array longer than the frame": frame(header(3, 1) + struct.pack(">i", 0x7FFF_FFFF)),
    "a negative array length": frame(header(0, 3) + struct.pack(">hhii", -1, -1, 1_000, -7)),
    "noise": random.Random(1).randbytes(4_096),
}


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("what", HOPELESS)
def test_hopeless_peer_is_shut_out(node: NodeProcess, what: str) -> None:
    with RawConnection(node, timeout_seconds=CLOSE_SECONDS_MAX) as hostile:
        hostile.send_bytes(HOPELESS[what])
        assert hostile.is_closed_by_peer(), f"{what}: the connection is still open"


@pytest.mark.usefixtures("bystander")
def test_half_a_frame_and_a_hang_up_leave_nothing_behind(node: NodeProcess) -> None:
    open_before = node.open_file_count()
    whole = wire.encode_request(ALL_TOPICS, METADATA_VERSION, 1, "half")
    for length in range(1, len(whole)):
        with RawConnection(node) as hostile:
            hostile.send_bytes(whole[:length])
    with RawConnection(node) as after:
        # Answered after all of the above were accepted, for they came first.
        after.ask(ALL_TOPICS, metadata.MetadataResponse, METADATA_VERSION)
        assert node.open_file_count() < open_before + 10


@pytest.mark.usefixtures("bystander")
def test_noise_after_every_api_key_kills_nobody(node: NodeProcess) -> None:
    chance = random.Random(2)
    for api in wire.APIS.values():
        for version in range(api.version_min, api.version_max + 1):
            with RawConnection(node) as hostile:
                hostile.send_bytes(frame(header(api.key, version) + chance.randbytes(chance.randrange(200))))
    assert node.is_running


def test_bad_batch_is_refused_and_the_connection_lives(node: NodeProcess, topic: str, bystander: RawConnection) -> None:
    create_by_asking(bystander, topic)
    damaged = bytearray(one_batch(b"value"))
    damaged[-1] ^= 1
    reply = bystander.ask(produce_request(topic, {0: bytes(damaged)}), produce.ProduceResponse, PRODUCE_VERSION)
    assert reply.responses[0].partition_responses[0].error_code == wire.ErrorCode.CORRUPT_MESSAGE
    reply = bystander.ask(produce_request(topic, {0: one_batch(b"value")}), produce.ProduceResponse, PRODUCE_VERSION)
    assert reply.responses[0].partition_responses[0].base_offset == 0


def test_too_new_api_versions_is_answered_in_version_zero(node: NodeProcess) -> None:
    with RawConnection(node) as connection:
        connection.send_bytes(frame(header(api_versions.ApiVersionsRequest.api_key, 99, correlation_id=41) + b"\0"))
        correlation_id, reply = connection.receive(api_versions.ApiVersionsResponse, 0)
        assert correlation_id == 41
        assert reply.error_code == wire.ErrorCode.UNSUPPORTED_VERSION
        # The client learns from it which version to ask with, on the same connection.
        known = {entry.api_key: entry.max_version for entry in reply.api_keys}
        version = known[api_versions.ApiVersionsRequest.api_key]
        answer = connection.ask(
            api_versions.ApiVersionsRequest(client_software_name="raw", client_software_version="1"),
            api_versions.ApiVersionsResponse,
            version,
        )
        assert answer.error_code == wire.ErrorCode.NONE


def test_produce_is_advertised_from_version_zero(node: NodeProcess) -> None:
    with RawConnection(node) as connection:
        reply = connection.ask(api_versions.ApiVersionsRequest(), api_versions.ApiVersionsResponse, 0)
    least = {entry.api_key: entry.min_version for entry in reply.api_keys}
    # librdkafka 2.0 would otherwise send gzip, snappy and lz4 uncompressed, without a word.
    assert least[produce.ProduceRequest.api_key] == 0


def test_connections_do_not_take_the_files_of_the_log(tmp_path: Path) -> None:
    """Without a file left no topic could be opened and no segment rolled."""
    few_files = ("bash", "-c", 'ulimit -n 256; exec "$@"', "few")
    with NodeProcess(tmp_path / "node", has_http=True, wrapper=few_files) as node, RawConnection(node) as writer:
        create_by_asking(writer, "before")
        with ExitStack() as held:
            for address in (node.kafka, node.http) * 150:
                host, _, port = address.rpartition(":")
                held.enter_context(socket.create_connection((host, int(port)), timeout=CLOSE_SECONDS_MAX))
            create_by_asking(writer, "meanwhile")
            batches = produce_request("meanwhile", {0: one_batch(b"value")})
            reply = writer.ask(batches, produce.ProduceResponse, PRODUCE_VERSION)
            assert reply.responses[0].partition_responses[0].error_code == wire.ErrorCode.NONE
        assert "Too many open files" not in node.log_text()
