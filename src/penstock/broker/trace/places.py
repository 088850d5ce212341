"""Facts about one place of a message, as the log and the node know them."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Final

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.broker.trace.log import Found, read_place, transaction_of
from penstock.codec.batch.header import BatchHeader
from penstock.domain.queue.lanes import DEFAULT_LANE, PRIORITY_HEADER, lane_of
from penstock.domain.queue.receipt import MessageId, write_message_id
from penstock.domain.queue.redrive import TTL_HEADER, death_of
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER
from penstock.domain.trace.events import Place, PlaceFacts, Producer

KEY_CHARACTERS_MAX: Final = 200


class PlaceReader:
    def __init__(self, broker: Broker, readers: Executor) -> None:
        self._broker = broker
        self._readers = readers

    async def facts(self, place: Place, topic: ServedTopic, partition: PartitionShell) -> PlaceFacts:
        found = await read_place(partition, place.offset, self._readers)
        name = write_message_id(MessageId(topic.topic_id, place.partition, place.offset))
        header, record = found.header, found.record
        if header is None or record is None:
            producer = None if header is None else _producer(header, place.offset)
            return PlaceFacts(place=place, id=name, state=found.state, producer=producer, node=self._broker.node_id)
        transaction = await transaction_of(partition, header, self._readers)
        headers = dict(record.headers)
        first_id = headers.get(MESSAGE_ID_HEADER)
        lane = lane_of(headers.get(PRIORITY_HEADER))
        ttl = headers.get(TTL_HEADER)
        return PlaceFacts(
            place=place,
            id=name,
            state=found.state,
            timestamp_ms=record.timestamp_ms if record.timestamp_ms >= 0 else None,
            has_log_append_time=header.has_log_append_time,
            key=_text(record.key),
            size_bytes=len(record.key or b"") + len(record.value or b""),
            lane=None if lane == DEFAULT_LANE else lane,
            producer=_producer(header, record.offset),
            transaction=transaction.state,
            transaction_end_ms=transaction.end_ms,
            is_durable=partition.is_kept(place.offset),
            node=self._broker.node_id,
            leader_epoch=header.leader_epoch,
            # One node leads every partition until the cluster hands out replicas.
            replica_count=1,
            replicas_in_sync=1,
            first_id="" if first_id is None else first_id.decode(errors="replace"),
            origin=_origin(found),
            ttl_ms=int(ttl) if ttl is not None and ttl.isdigit() and len(ttl) < 16 else None,
        )


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="backslashreplace")[:KEY_CHARACTERS_MAX]


def _producer(header: BatchHeader, offset: int) -> Producer | None:
    if header.producer_id < 0:
        return None
    sequence = (header.base_sequence + offset - header.base_offset) % (1 << 31)
    return Producer(header.producer_id, header.producer_epoch, sequence, header.is_transactional)


def _origin(found: Found) -> Place | None:
    """Of a dead letter: where the message died. Anybody can write such headers: it is only a place to look at."""
    death = death_of(found.record.headers) if found.record is not None else None
    if death is None or death.topic is None or death.partition is None or death.offset is None:
        return None
    return Place(death.topic, death.partition, death.offset)
