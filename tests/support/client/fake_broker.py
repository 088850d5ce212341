"""A broker of a hundred lines for tests of the client: real frames, real codec, logs in lists.

`replies` overrides the answer to an API: a callable gets the request and returns a response, or None for silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from penstock.codec.batch.header import BatchHeader, patch, read_header
from penstock.codec.kafka import APIS, Malformed, decode, decode_request_header, encode_response_parts
from penstock.codec.kafka.messages.api_versions import ApiVersion, ApiVersionsResponse
from penstock.codec.kafka.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdResponse
from penstock.codec.kafka.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.codec.kafka.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.codec.kafka.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.codec.kafka.schema import Request, Response
from penstock.net.address import Address

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
UNKNOWN_TOPIC = 3

Reply = Callable[[Request], Response | None]


class FakeBroker:
    def __init__(self, topics: dict[str, int]) -> None:
        self.logs: dict[tuple[str, int], list[bytes]] = {
            (topic, partition): [] for topic, count in topics.items() for partition in range(count)
        }
        self.requests: list[Request] = []
        self.versions: dict[int, tuple[int, int]] = {
            key: (APIS[key].version_min, APIS[key].version_max)
            for key in (PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID)
        }
        self.replies: dict[int, Reply] = {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            METADATA: self._metadata,
            INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(producer_id=7, producer_epoch=0),
        }
        self.address = Address("127.0.0.1", 0)
        self.connection_count = 0
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeBroker]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            self.drop_connections()
            await server.wait_closed()

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def end(self, topic: str, partition: int) -> int:
        log = self.logs[topic, partition]
        return header_of(log[-1]).next_offset if log else 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                self._answer(memoryview(await reader.readexactly(length)), writer)

    def _answer(self, frame: memoryview, writer: asyncio.StreamWriter) -> None:
        header = decode_request_header(frame)
        assert not isinstance(header, Malformed), header
        if header.api_key == API_VERSIONS:
            self._answer_versions(header.api_version, header.correlation_id, writer)
            return
        request = decode(APIS[header.api_key].request, header.api_version, frame, header.body_position)
        assert not isinstance(request, Malformed), request
        self.requests.append(request)
        response = self.replies[header.api_key](request)
        if response is not None:
            writer.writelines(encode_response_parts(response, header.api_version, header.correlation_id))

    def _answer_versions(self, version: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.versions.items()
        ]
        is_known = version <= self.versions[API_VERSIONS][1]
        response = ApiVersionsResponse(error_code=0 if is_known else 35, api_keys=keys)
        writer.writelines(encode_response_parts(response, version if is_known else 0, correlation_id))

    def _metadata(self, request: Request) -> MetadataResponse:
        assert isinstance(request, MetadataRequest)
        known = sorted({topic for topic, _ in self.logs})
        asked = known if request.topics is None else [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host=self.address.host, port=self.address.port)],
            cluster_id="fake",
            controller_id=1,
            topics=[self._describe(name) for name in asked],
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        numbers = sorted(partition for topic, partition in self.logs if topic == name)
        partitions = [MetadataResponsePartition(partition_index=number, leader_id=1) for number in numbers]
        return MetadataResponseTopic(error_code=0 if numbers else UNKNOWN_TOPIC, name=name, partitions=partitions)

    def _produce(self, request: Request) -> ProduceResponse | None:
        assert isinstance(request, ProduceRequest)
        answers = []
        for topic in request.topic_data:
            partitions = []
            for data in topic.partition_data:
                base_offset = self.end(topic.name, data.index)
                batch = bytearray(data.records or b"")
                header = read_header(batch)
                assert isinstance(header, BatchHeader)
                patch(batch, 0, header, base_offset=base_offset, leader_epoch=0)
                self.logs[topic.name, data.index].append(bytes(batch))
                partitions.append(PartitionProduceResponse(index=data.index, base_offset=base_offset))
            answers.append(TopicProduceResponse(name=topic.name, partition_responses=partitions))
        return None if request.acks == 0 else ProduceResponse(responses=answers)

    def _fetch(self, request: Request) -> FetchResponse:
        assert isinstance(request, FetchRequest)
        answers = []
        for topic in request.topics:
            partitions = []
            for wanted in topic.partitions:
                log = self.logs[topic.topic, wanted.partition]
                found = [batch for batch in log if header_of(batch).next_offset > wanted.fetch_offset]
                end = self.end(topic.topic, wanted.partition)
                records = b"".join(found[:2])
                partitions.append(PartitionData(partition_index=wanted.partition, high_watermark=end, records=records))
            answers.append(FetchableTopicResponse(topic=topic.topic, partitions=partitions))
        return FetchResponse(responses=answers)

    def _list_offsets(self, request: Request) -> ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        answers = []
        for topic in request.topics:
            partitions = [
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index,
                    offset=self.end(topic.name, asked.partition_index) if asked.timestamp == -1 else 0,
                )
                for asked in topic.partitions
            ]
            answers.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=answers)


def header_of(batch: bytes) -> BatchHeader:
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    return header
