"""A broker that stores nothing: what any broker in Python could reach at most.

Frames are taken from the socket and answered, that is all. A Produce request is never decoded after the first of its
kind: the bytes between correlation id and records are the same for one client, topic and partition, so they are the
key to a reply made once. All replies to one read leave in one write. A Fetch is answered with one prebuilt batch per
partition, given the offset that was asked for, for ever.

    python -m bench.null_broker [--value-bytes 100]     prints: ready kafka=HOST:PORT
"""

from __future__ import annotations

import argparse
import asyncio
import struct
from typing import Any, Final, cast

import uvloop

from penstock.codec import kafka as wire
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages import api_versions, fetch, list_offsets, metadata, produce

HOST: Final = "127.0.0.1"
PARTITIONS: Final = 4
# Two batches of librdkafka's largest size: fewer would break one into several reads.
BUFFER_BYTES: Final = 2 << 20
# A read with less room than this is not worth its system call: move what is left to the front first.
ROOM_BYTES_MIN: Final = 64 << 10
BATCH_BYTES: Final = 1_000_000
# A choice, not a finding: of 0.5, 2, 4, 8 and 50 MB, tried twice on a busy machine, 8 MB came out first for values of
# 1 KB and last for 100 B. It bears on the ceiling of the consume cases: try them again on a quiet machine.
ANSWER_BYTES_MAX: Final = 8_000_000
# Joining many small replies is cheaper than handing each to the kernel; joining megabytes is not.
PARTS_WRITTEN_MAX: Final = 128
FAR_END: Final = 1 << 60
PRODUCE: Final = b"\x00\x00"
# Without topic ids: names are enough for a ceiling, and librdkafka speaks these versions as fast.
VERSIONS: Final = {0: (0, 10), 1: (4, 11), 2: (1, 5), 3: (0, 9), 18: (0, 3)}

_BASE_OFFSET = struct.Struct(">q")
_INT16 = struct.Struct(">h")
_HEADER = struct.Struct(">hhi")


class NullBroker(asyncio.BufferedProtocol):
    def __init__(self, batch: bytearray) -> None:
        self._batch = batch
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._key_end = 0
        # Length prefix and body of the reply; the correlation id goes between them.
        self._replies: dict[bytes, tuple[bytes, bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._buffer) - self._end < ROOM_BYTES_MIN:
            left = self._end - self._start
            self._buffer[0:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        buffer, start, end = self._buffer, self._start, self._end
        out: list[wire.BytesLike] = []
        while end - start >= 4:
            frame_end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if frame_end > end:
                break
            if buffer[start + 4 : start + 6] == PRODUCE:
                reply = self._replies.get(bytes(buffer[start + 12 : start + 4 + self._key_end]))
                if reply is None:
                    reply = self._learn(self._view[start + 4 : frame_end])
                out += (reply[0], buffer[start + 8 : start + 12], reply[1])
            else:
                out += self._answer(self._view[start + 4 : frame_end])
            start = frame_end
        if start == end:
            self._start = self._end = 0
        else:
            self._start = start
        if len(out) > PARTS_WRITTEN_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _learn(self, frame: memoryview) -> tuple[bytes, bytes]:
        """The first Produce of its kind: decoded properly, and its answer kept."""
        version = _HEADER.unpack_from(frame)[1]
        request = _body(produce.ProduceRequest, frame)
        assert len(request.topic_data) == 1, "librdkafka asks for one partition per request"
        topic = request.topic_data[0]
        (partition,) = topic.partition_data
        answer = produce.PartitionProduceResponse(index=partition.index, base_offset=0)
        reply = produce.ProduceResponse(
            responses=(produce.TopicProduceResponse(name=topic.name, partition_responses=(answer,)),)
        )
        whole = b"".join(wire.encode_response_parts(reply, version, 0))
        self._key_end = _end_of_partition_index(frame, version)
        kept = (whole[:4], whole[8:])
        self._replies[bytes(frame[8 : self._key_end])] = kept
        return kept

    def _answer(self, frame: memoryview) -> list[wire.BytesLike]:
        api_key, version, correlation_id = _HEADER.unpack_from(frame)
        reply: Any
        if api_key == api_versions.ApiVersionsRequest.api_key:
            keys = [
                api_versions.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in VERSIONS.items()
            ]
            reply = api_versions.ApiVersionsResponse(api_keys=keys)
        elif api_key == metadata.MetadataRequest.api_key:
            reply = self._describe(_body(metadata.MetadataRequest, frame))
        elif api_key == fetch.FetchRequest.api_key:
            reply = self._serve(_body(fetch.FetchRequest, frame))
        else:
            assert api_key == list_offsets.ListOffsetsRequest.api_key, f"unexpected request {api_key}"
            reply = _offsets(_body(list_offsets.ListOffsetsRequest, frame))
        return wire.encode_response_parts(reply, version, correlation_id)

    def _describe(self, request: metadata.MetadataRequest) -> metadata.MetadataResponse:
        port = self._transport.get_extra_info("sockname")[1]
        partitions = [
            metadata.MetadataResponsePartition(
                partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=(1,), isr_nodes=(1,)
            )
            for index in range(PARTITIONS)
        ]
        return metadata.MetadataResponse(
            brokers=(metadata.MetadataResponseBroker(node_id=1, host=HOST, port=port),),
            cluster_id="null",
            controller_id=1,
            topics=[
                metadata.MetadataResponseTopic(name=topic.name, partitions=partitions) for topic in request.topics or ()
            ],
        )

    def _serve(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        """One batch for every partition that fits into the answer, as a broker with enough data would."""
        bytes_left = min(request.max_bytes, ANSWER_BYTES_MAX)
        responses = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                records = b""
                if bytes_left > 0:
                    _BASE_OFFSET.pack_into(self._batch, 0, asked.fetch_offset)
                    records = bytes(self._batch)
                    bytes_left -= len(records)
                answers.append(
                    fetch.PartitionData(
                        partition_index=asked.partition,
                        high_watermark=FAR_END,
                        last_stable_offset=FAR_END,
                        log_start_offset=0,
                        records=records,
                    )
                )
            responses.append(fetch.FetchableTopicResponse(topic=topic.topic, partitions=answers))
        return fetch.FetchResponse(responses=responses)


def _offsets(request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        timestamp=-1,
                        offset=0 if asked.timestamp == -2 else FAR_END,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _body(message_class: type[Any], frame: memoryview) -> Any:
    header = wire.decode_request_header(frame)
    assert isinstance(header, wire.RequestHeader), header.reason
    decoded = wire.decode(message_class, header.api_version, frame, header.body_position)
    assert not isinstance(decoded, wire.Malformed), decoded.reason
    return decoded


def _end_of_partition_index(frame: memoryview, version: int) -> int:
    """Where the part of a Produce request ends that is the same for every batch of one partition."""
    client_id_length: int = _INT16.unpack_from(frame, 8)[0]
    position = 10 + max(0, client_id_length)
    if version >= 9:
        # Tags, null transactional id, acks, timeout, topic count; compact name; partition count, index.
        position += 1 + 1 + 2 + 4 + 1
        return position + 1 + (frame[position] - 1) + 1 + 4
    position += 2 + 2 + 4 + 4
    name_length: int = _INT16.unpack_from(frame, position)[0]
    return position + 2 + name_length + 4 + 4


async def serve(value_bytes: int) -> None:
    count = BATCH_BYTES // (value_bytes + 10)
    batch = build_batch([Record(value=bytes(value_bytes), timestamp_ms=1_700_000_000_000)] * count)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullBroker(batch), HOST, 0)
    print(f"ready kafka={HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--value-bytes", type=int, default=100)
    uvloop.run(serve(parser.parse_args().value_bytes))
