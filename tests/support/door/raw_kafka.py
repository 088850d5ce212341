"""A Kafka connection without a client's good manners: any bytes, any order, read when the test wants to.

For what no real client does: hostile frames, pipelining by hand, a reader that does not read. It blocks, no
longer than the socket's timeout.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from penstock.codec import kafka as wire
from penstock.codec.batch.header import BatchHeader, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages import fetch, list_offsets, metadata, produce
from support.codec.sample_messages import FIRST_TIMESTAMP_MS

M = TypeVar("M", bound=wire.Response)
CLIENT_ID: Final = "raw"
# Versions that every Kafka since 2.4 speaks, without topic ids: the oldest that our oracles agree on.
FETCH_VERSION: Final = 11
PRODUCE_VERSION: Final = 9
METADATA_VERSION: Final = 9
LIST_OFFSETS_VERSION: Final = 5


class HasAddress(Protocol):
    @property
    def address(self) -> tuple[str, int]: ...


class RawConnection:
    def __init__(self, node: HasAddress, *, timeout_seconds: float = 20.0, receive_buffer: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            # Before connecting, or the kernel has promised its peer a larger window already.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_seconds)
        self.socket.connect(node.address)
        self._correlation_id = 0

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, message: Any, version: int, *, correlation_id: int | None = None) -> int:
        """Sends and does not wait. Returns the correlation id."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        self.send_bytes(wire.encode_request(message, version, correlation_id, CLIENT_ID))
        return correlation_id

    def receive_frame(self) -> bytes | None:
        """One frame without its length; None when the other side has closed."""
        prefix = self._receive_exactly(4)
        if prefix is None:
            return None
        return self._receive_exactly(struct.unpack(">i", prefix)[0])

    def receive(self, message_class: type[M], version: int) -> tuple[int, M]:
        frame = self.receive_frame()
        assert frame is not None, "the node closed the connection"
        decoded = wire.decode_response(message_class, version, memoryview(frame))
        assert not isinstance(decoded, wire.Malformed), decoded.reason
        return decoded

    def ask(self, message: Any, message_class: type[M], version: int) -> M:
        correlation_id = self.send(message, version)
        answered, reply = self.receive(message_class, version)
        assert answered == correlation_id, f"asked {correlation_id}, answered {answered}"
        return reply

    def is_closed_by_peer(self) -> bool:
        """True when the other side ends the connection, gracefully or not, before the timeout."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive_exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            chunk = self.socket.recv(min(count - len(parts), 1 << 20))
            if not chunk:
                return None
            parts += chunk
        return bytes(parts)


def create_by_asking(connection: RawConnection, topic: str) -> None:
    """Metadata with auto-creation, as any client's first question about a topic."""
    request = metadata.MetadataRequest(
        topics=(metadata.MetadataRequestTopic(name=topic),), allow_auto_topic_creation=True
    )
    for _ in range(100):
        reply = connection.ask(request, metadata.MetadataResponse, METADATA_VERSION)
        if reply.topics[0].error_code == wire.ErrorCode.NONE:
            return
    raise AssertionError(f"{topic} was not created: error {reply.topics[0].error_code}")


def fetch_request(topic: str, partition: int = 0, offset: int = 0, *, wait_ms: int = 0) -> fetch.FetchRequest:
    return fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=0,
        session_epoch=-1,
        topics=(
            fetch.FetchTopic(
                topic=topic,
                partitions=(
                    fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=50 << 20),
                ),
            ),
        ),
    )


def records_of(answer: fetch.PartitionData) -> bytes:
    assert answer.records is None or isinstance(answer.records, memoryview)
    return bytes(answer.records or b"")


def stored_batches(node: HasAddress, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The headers of every batch of a partition, as a consumer gets them."""
    headers: list[BatchHeader] = []
    offset = 0
    with RawConnection(node) as connection:
        while True:
            reply = connection.ask(fetch_request(topic, partition, offset), fetch.FetchResponse, FETCH_VERSION)
            answer = reply.responses[0].partitions[0]
            assert answer.error_code == wire.ErrorCode.NONE, wire.ErrorCode(answer.error_code)
            found = [header for _, header in walk_headers(records_of(answer))]
            headers += found
            if not found or found[-1].next_offset >= answer.high_watermark:
                return headers
            offset = found[-1].next_offset


def log_ends(node: HasAddress, topic: str, partition: int = 0) -> tuple[int, int]:
    """Earliest and latest offset of a partition."""
    with RawConnection(node) as connection:
        ends = [
            connection.ask(
                list_offsets.ListOffsetsRequest(
                    replica_id=-1,
                    topics=(
                        list_offsets.ListOffsetsTopic(
                            name=topic,
                            partitions=(
                                list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=timestamp),
                            ),
                        ),
                    ),
                ),
                list_offsets.ListOffsetsResponse,
                LIST_OFFSETS_VERSION,
            )
            .topics[0]
            .partitions[0]
            .offset
            for timestamp in (-2, -1)
        ]
    return ends[0], ends[1]


def one_batch(*values: bytes) -> bytes:
    return bytes(build_batch([Record(value=value, timestamp_ms=FIRST_TIMESTAMP_MS) for value in values]))


def produce_request(
    topic: str, batches: dict[int, bytes], *, acks: int = -1, timeout_ms: int = 10_000
) -> produce.ProduceRequest:
    partitions = tuple(produce.PartitionProduceData(index=index, records=batch) for index, batch in batches.items())
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=(produce.TopicProduceData(name=topic, partition_data=partitions),),
    )
