"""What is said at the Kafka door, in few words: requests and replies for one partition, and batches for them.

Every phrase names a topic by name and by id where one is given, so that it can be said in any version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchProblem, pack_header, read_header
from penstock.codec.batch.records import Record, StoredRecord, build_batch, read_records
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages import fetch as f
from penstock.codec.kafka.messages import list_offsets as lo
from penstock.codec.kafka.messages import metadata as m
from penstock.codec.kafka.messages import produce as p

# A fixed day, so that a batch is the same bytes in every run.
DAY_MS: Final = 1_700_000_000_000
NONE: Final = ErrorCode.NONE
NO_RECORDS: Final = b""
UNLIMITED: Final = 2**31 - 1


def batch(
    *values: bytes,
    codec: Codec = Codec.NONE,
    timestamp_ms: int = DAY_MS,
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
    is_control: bool = False,
    is_transactional: bool = False,
) -> bytes:
    """One batch as a client would send it; its records are a millisecond apart."""
    records = [Record(value, timestamp_ms=timestamp_ms + number) for number, value in enumerate(values)]
    return bytes(
        build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_control=is_control,
            is_transactional=is_transactional,
        )
    )


def altered(data: bytes, **fields: int) -> bytes:
    """The batch with other header fields, and a checksum that fits them."""
    header = read_header(data)
    assert not isinstance(header, BatchProblem)
    changed = bytearray(pack_header(msgspec.structs.replace(header, **fields)) + data[61:])
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def corrupt(data: bytes) -> bytes:
    """The batch with one bit changed under its checksum."""
    return data[:-1] + bytes([data[-1] ^ 1])


def values_in(records: object) -> list[bytes | None]:
    return [record.value for record in records_in(records)]


def records_in(records: object) -> list[StoredRecord]:
    """All records of the batches in a fetched field."""
    assert isinstance(records, bytes | memoryview)
    found: list[StoredRecord] = []
    position = 0
    while position < len(records):
        header = read_header(records, position)
        assert not isinstance(header, BatchProblem), header.reason
        read = read_records(records, position)
        assert not isinstance(read, BatchProblem), read.reason
        found += read
        position += header.size_bytes
    return found


# Produce


def produce(
    topic: str,
    records: bytes | None,
    partition: int = 0,
    *,
    topic_id: bytes = NO_UUID,
    acks: int = -1,
    timeout_ms: int = 1000,
    transactional_id: str | None = None,
) -> p.ProduceRequest:
    return produce_many(
        [(topic, partition, records)],
        ids={topic: topic_id},
        acks=acks,
        timeout_ms=timeout_ms,
        transaction=transactional_id,
    )


def produce_many(
    entries: Sequence[tuple[str, int, bytes | None]],
    *,
    ids: dict[str, bytes] | None = None,
    acks: int = -1,
    timeout_ms: int = 1000,
    transaction: str | None = None,
) -> p.ProduceRequest:
    """A topic named several times in a row stands once in the request."""
    grouped: dict[str, list[p.PartitionProduceData]] = {}
    for topic, partition, records in entries:
        grouped.setdefault(topic, []).append(p.PartitionProduceData(index=partition, records=records))
    return p.ProduceRequest(
        transactional_id=transaction,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            p.TopicProduceData(name=topic, topic_id=(ids or {}).get(topic, NO_UUID), partition_data=partitions)
            for topic, partitions in grouped.items()
        ),
    )


def produced(
    topic: str,
    partition: int = 0,
    *,
    topic_id: bytes = NO_UUID,
    offset: int = -1,
    error: int = NONE,
    message: str | None = None,
    append_time_ms: int = -1,
    log_start: int = 0,
) -> p.ProduceResponse:
    answer = p.PartitionProduceResponse(
        index=partition,
        error_code=error,
        base_offset=offset,
        log_append_time_ms=append_time_ms,
        log_start_offset=log_start,
        error_message=message,
    )
    entry = p.TopicProduceResponse(name=topic, topic_id=topic_id, partition_responses=(answer,))
    return p.ProduceResponse(responses=(entry,))


def outcomes(reply: p.ProduceResponse) -> list[tuple[ErrorCode, int]]:
    """Error and base offset of each partition, in order."""
    return [
        (ErrorCode(partition.error_code), partition.base_offset)
        for topic in reply.responses
        for partition in topic.partition_responses
    ]


def outcome(reply: p.ProduceResponse) -> tuple[ErrorCode, int]:
    (only,) = outcomes(reply)
    return only


# Fetch


def fetch(
    topic: str,
    offset: int = 0,
    partition: int = 0,
    *,
    topic_id: bytes = NO_UUID,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = UNLIMITED,
    partition_bytes_max: int = UNLIMITED,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> f.FetchRequest:
    wanted = f.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_bytes_max,
        current_leader_epoch=leader_epoch,
    )
    entry = f.FetchTopic(topic=topic, topic_id=topic_id, partitions=(wanted,))
    return fetch_many([entry], wait_ms=wait_ms, bytes_min=bytes_min, bytes_max=bytes_max, session=session)


def fetch_many(
    topics: Sequence[f.FetchTopic],
    *,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = UNLIMITED,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[f.ForgottenTopic] = (),
) -> f.FetchRequest:
    session_id, session_epoch = session
    return f.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=tuple(topics),
        forgotten_topics_data=tuple(forgotten),
    )


def wanted(
    topic: str, offsets: dict[int, int], *, topic_id: bytes = NO_UUID, bytes_max: int = UNLIMITED
) -> f.FetchTopic:
    """Partitions of one topic with their offsets."""
    return f.FetchTopic(
        topic=topic,
        topic_id=topic_id,
        partitions=tuple(
            f.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
            for partition, offset in offsets.items()
        ),
    )


def only_partition(reply: f.FetchResponse) -> f.PartitionData:
    (topic,) = reply.responses
    (partition,) = topic.partitions
    return partition


def by_partition(reply: f.FetchResponse) -> dict[int, f.PartitionData]:
    return {data.partition_index: data for topic in reply.responses for data in topic.partitions}


# Metadata and offsets


def metadata(*topics: str, creates: bool = False, with_operations: bool = False) -> m.MetadataRequest:
    return m.MetadataRequest(
        topics=tuple(m.MetadataRequestTopic(name=topic) for topic in topics),
        allow_auto_topic_creation=creates,
        include_topic_authorized_operations=with_operations,
        include_cluster_authorized_operations=with_operations,
    )


def list_offsets(topic: str, timestamp: int, partition: int = 0, *, leader_epoch: int = -1) -> lo.ListOffsetsRequest:
    place = lo.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch)
    return lo.ListOffsetsRequest(replica_id=-1, topics=(lo.ListOffsetsTopic(name=topic, partitions=(place,)),))


def only_offset(reply: lo.ListOffsetsResponse) -> lo.ListOffsetsPartitionResponse:
    (topic,) = reply.topics
    (partition,) = topic.partitions
    return partition
