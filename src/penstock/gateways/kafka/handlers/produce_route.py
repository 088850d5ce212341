"""A producer's request head, and where it led.

A producer that sends small batches to one partition repeats the same head with every request: API, version, client,
acks, topic, partition. The first request is decoded and handled as any other; what its head led to is remembered as a
route on the connection, and a request with the same head goes straight to the partition's shell. Only what the head
says is skipped: the batch is checked as ever. One that begins a transaction in its partition goes the long way, and so
do one with records to be delivered later and a transactional one whose head says nothing of a transaction.

    |length|api, version|correlation id|client, acks, topic, partition …|records length|records|tags|
            ───── start ──────          ────────────── rest ─────────────                       tail

Measured with one message a request: decoding, looking up and encoding cost 8 µs of 17 µs; matching costs 1 µs.

A route holds until topics or permissions change (`broker.generation`). It is learnt only from a request that was taken.
Its head is not what that request's bytes were but what we would have written for it, without padding or unknown tags:
all of it stands before the records' length, so whoever sends the same bytes means the same.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.outcome import Appended, DelayPossible, VerificationNeeded
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.codec.batch.header import ATTRIBUTE_TRANSACTIONAL, HEADER_BYTES
from penstock.codec.kafka import BytesLike, RequestHeader, encode_request, encode_response_parts
from penstock.codec.kafka.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.handlers.produce import (
    ACKS_ALL,
    TOPIC_IDS_FROM,
    acks_of,
    lost_response,
    partition_response,
    single_response,
)
from penstock.gateways.kafka.handlers.produce_held import ATTRIBUTES_AT
from penstock.gateways.kafka.leader_hints import LeaderHints

# From here on the reply holds base offset, append time and log start side by side.
VERSION_FIRST: Final = 5
FLEXIBLE_FROM: Final = 9
# Api key and version; the correlation id after them differs from request to request.
START_BYTES: Final = 4
REST_AT: Final = 8
LENGTH_BYTES: Final = 4
# The tagged sections of partition, topic and request, all empty.
FLEXIBLE_TAIL: Final = b"\0\0\0"

_CORRELATION_ID = struct.Struct(">i")
_RECORDS_LENGTH = struct.Struct(">i")
_PLACES = struct.Struct(">qqq")
_MARKS: Final = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)


class ProduceRoute:
    __slots__ = (
        "_acks",
        "_broker",
        "_bytes_min",
        "_generation",
        "_hints",
        "_is_flexible",
        "_middle",
        "_reply",
        "_reply_length",
        "_reply_tail",
        "_request",
        "_rest",
        "_shell",
        "_start",
        "_tail",
        "_takes_transactional",
        "_version",
    )

    def __init__(
        self,
        broker: Broker,
        hints: LeaderHints,
        request: ProduceRequest,
        version: int,
        shell: PartitionShell,
        *,
        start: bytes,
        rest: bytes,
    ) -> None:
        self._broker = broker
        self._hints = hints
        self._generation = broker.generation
        self._request = request
        self._acks = acks_of(request)
        self._version = version
        self._shell = shell
        self._is_flexible = version >= FLEXIBLE_FROM
        self._tail = FLEXIBLE_TAIL if self._is_flexible else b""
        self._start = start
        self._rest = rest
        self._takes_transactional = request.transactional_id is not None and request.acks == ACKS_ALL
        # Less holds no batch, and its length could not be looked at without looking past the frame.
        self._bytes_min = REST_AT + len(rest) + HEADER_BYTES + len(self._tail)
        self._make_reply()

    def _make_reply(self) -> None:
        """The reply's bytes around the three numbers that differ, cut out of one that was encoded as any other."""
        marked = Appended(_MARKS[0], _MARKS[1], _MARKS[2], None)
        frame = b"".join(self._encode(partition_response(self._shell, marked, self._version), 0))
        place = frame.index(_PLACES.pack(*_MARKS))
        self._reply_length = frame[:LENGTH_BYTES]
        self._middle = frame[REST_AT:place]
        self._reply_tail = frame[place + _PLACES.size :]
        self._reply = struct.Struct(f">4si{len(self._middle)}sqqq{len(self._reply_tail)}s")

    def take(self, connection: KafkaConnection, buffer: bytearray, view: memoryview, start: int, end: int) -> bool:
        """Handles the frame at `start` if it has this route's head; False: somebody else must."""
        place = start + REST_AT
        if not (
            buffer.startswith(self._rest, place, end)
            and buffer.startswith(self._start, start)
            and end - start >= self._bytes_min
            and self._generation == self._broker.generation
        ):
            return False
        place += len(self._rest)
        if self._is_flexible:
            size = buffer[place] & 0x7F
            shift = 7
            while buffer[place] & 0x80 and shift <= 28:
                place += 1
                size |= (buffer[place] & 0x7F) << shift
                shift += 7
            if buffer[place] & 0x80:
                return False  # five bytes and more to come: for the decoder to refuse
            place += 1
            size -= 1
        else:
            (size,) = _RECORDS_LENGTH.unpack_from(buffer, place)
            place += 4
        records_end = place + size
        if size <= 0 or records_end + len(self._tail) != end or not buffer.startswith(self._tail, records_end):
            return False
        if not self._takes_transactional and buffer[place + ATTRIBUTES_AT] & ATTRIBUTE_TRANSACTIONAL:
            return False
        (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, start + START_BYTES)
        outcome = self._shell.produce(view[place:records_end], acks=self._acks)
        if isinstance(outcome, Appended):
            self._answer(connection, correlation_id, outcome)
        elif isinstance(outcome, VerificationNeeded | DelayPossible):
            return False  # nothing was written
        else:
            answer = partition_response(self._shell, outcome, self._version)
            connection.reply(self._encode_refusal(answer, correlation_id, connection))
        return True

    def _answer(self, connection: KafkaConnection, correlation_id: int, outcome: Appended) -> None:
        reply = self._reply.pack(
            self._reply_length,
            correlation_id,
            self._middle,
            outcome.base_offset,
            outcome.log_append_time_ms,
            outcome.log_start,
            self._reply_tail,
        )
        commitment = outcome.commitment
        if commitment is None:
            connection.reply_one(reply)
            return
        slot = connection.reserve()

        def on_known(commitment: Commitment) -> None:
            if commitment.loss is None:
                slot.fill([reply])
            else:
                answer = lost_response(self._shell.index, commitment.loss)
                slot.fill(self._encode_refusal(answer, correlation_id, connection))

        commitment.when_known(on_known)

    def _encode_refusal(
        self, partition: PartitionProduceResponse, correlation_id: int, connection: KafkaConnection
    ) -> list[BytesLike]:
        response = self._hints.hint(single_response(self._request, partition), connection.local_address)
        return encode_response_parts(response, self._version, correlation_id)

    def _encode(self, partition: PartitionProduceResponse, correlation_id: int) -> list[BytesLike]:
        response = single_response(self._request, partition)
        return encode_response_parts(response, self._version, correlation_id)


def learn_route(
    broker: Broker, hints: LeaderHints, request: ProduceRequest, header: RequestHeader, frame: memoryview
) -> ProduceRoute | None:
    """A route for requests with the head of this one, which was handled; none if it is not of the simple form."""
    version = header.api_version
    if version < VERSION_FIRST or request.acks == 0 or len(request.topic_data) != 1:
        return None
    (data,) = request.topic_data
    topic = broker.topic_by_id(data.topic_id) if version >= TOPIC_IDS_FROM else broker.topic(data.name)
    if topic is None or len(data.partition_data) != 1:
        return None
    (partition,) = data.partition_data
    shell = topic.find(partition.index)
    if isinstance(shell, NotHere) or partition.records is None:
        return None
    # Without the batch: the route must not keep a receive buffer alive.
    empty = PartitionProduceData(index=partition.index, records=b"")
    bare = msgspec.structs.replace(request, topic_data=(msgspec.structs.replace(data, partition_data=(empty,)),))
    start, rest = bytes(frame[:START_BYTES]), _rest_of(bare, header)
    return ProduceRoute(broker, hints, bare, version, shell, start=start, rest=rest)


def _rest_of(bare: ProduceRequest, header: RequestHeader) -> bytes:
    """The head behind the correlation id, as we would write it."""
    written = encode_request(bare, header.api_version, header.correlation_id, header.client_id)
    is_flexible = header.api_version >= FLEXIBLE_FROM
    end = len(written) - (len(FLEXIBLE_TAIL) + 1 if is_flexible else LENGTH_BYTES)
    return written[LENGTH_BYTES + REST_AT : end]
