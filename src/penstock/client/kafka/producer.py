"""Sends whole record batches and waits for their acknowledgements.

The caller builds the batches (codec.columns, codec.records); this adds the leader look-up, one request a
leader for many partitions, a bound on requests under way, retries, and producer sequences when it is
idempotent.

Rules:
- At most one batch of a partition in one `send`; calls for the same partition take effect in the order of the
  calls.
- A batch that was refused has taken no sequence; one whose fate is not known may have. Another batch with its sequence
  would pass for it and be lost, so the producer goes on under another id, as soon as everything before is back.
- Without idempotence nothing is sent twice after a lost connection: whether it took effect is not known, and
  the caller is told. With it, a retry is recognised by the broker.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from penstock.base.checksum import crc32c
from penstock.base.slow_waits import told_if_slow
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.batch.header import CHECKSUM_START, HEADER_BYTES
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.net.connection import Connection
from penstock.net.errors import (
    BrokerError,
    BrokerUnreachableError,
    ClientError,
    ConnectionLostError,
    RequestTimeoutError,
    describe_code,
)

Acks = Literal[-1, 0, 1]
TopicPartition = tuple[str, int]

RETRY_MS: Final = 100
# The broker does not tell: acks=0, or a duplicate that it no longer remembers the place of.
UNKNOWN_OFFSET: Final = -1
# Sequence numbers wrap to 0 after this one, as the protocol says.
SEQUENCE_MAX: Final = 0x7FFF_FFFF

# The broker keeps the last 5 batches of a producer: more under way could not be told from duplicates.
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5

_PRODUCER_FIELDS = struct.Struct(">qhi")
_PRODUCER_FIELDS_POSITION: Final = 43
_CHECKSUM = struct.Struct(">I")
_CHECKSUM_POSITION: Final = 17

# The broker wrote nothing, and may do better in a moment.
_RETRIABLE = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.BROKER_NOT_AVAILABLE,
})  # fmt: skip
# It may have written something: only a producer whose retries are recognised may try again. An earlier batch
# that is being retried makes the ones behind it come out of order for that time.
_RETRIABLE_IF_IDEMPOTENT = frozenset({
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
})  # fmt: skip
# Answers after which the batch may be in the log all the same: it was written, and then the disk, the leader or the
# replicas failed it.
_MAY_BE_WRITTEN = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NETWORK_EXCEPTION,
})  # fmt: skip


class ProducerOptions(msgspec.Struct, frozen=True):
    acks: Acks = -1
    is_idempotent: bool = False
    requests_in_flight_max: int = 5
    # How long a broker may take to make one request durable.
    request_timeout_ms: int = 30_000
    # How long one `send` keeps trying, all retries together.
    delivery_timeout_ms: int = 30_000


class PartitionBatch(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    data: bytearray | bytes
    record_count: int


class Acknowledged(msgspec.Struct, frozen=True):
    batch: PartitionBatch
    base_offset: int


class Refused(msgspec.Struct, frozen=True):
    batch: PartitionBatch
    code: int
    message: str | None

    def sentence(self) -> str:
        detail = f" ({self.message})" if self.message else ""
        return f"partition {self.batch.partition} of {self.batch.topic!r}: {describe_code(self.code)}{detail}"


Outcome = Acknowledged | Refused


class Producer:
    def __init__(self, client: ClusterClient, options: ProducerOptions | None = None) -> None:
        self._client = client
        self._options = options or ProducerOptions()
        in_flight_max = self._options.requests_in_flight_max
        if self._options.is_idempotent:
            assert self._options.acks == -1, "an idempotent producer needs every acknowledgement"
            in_flight_max = min(in_flight_max, IDEMPOTENT_IN_FLIGHT_MAX)
        self._turns = asyncio.Semaphore(in_flight_max)
        self._producer_id = -1
        self._producer_epoch = -1
        self._next_sequence: dict[TopicPartition, int] = {}
        # Calls that are not back yet, and the first sequence among those that were refused.
        self._under_way: Counter[TopicPartition] = Counter()
        self._refused: dict[TopicPartition, int] = {}
        # Of some batch nobody knows whether it is stored; and who waits for the id with which that does not matter.
        self._must_renew = False
        self._renewal = asyncio.Lock()
        self._renewal_waiters = 0
        self._is_idle = asyncio.Event()

    async def start(self) -> None:
        """Gets a producer id if one is needed; call it once before `send`."""
        if not self._options.is_idempotent:
            return
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        reply = await self._client.call(request, InitProducerIdResponse)
        if reply.error_code != 0:
            raise BrokerError(reply.error_code, "no producer id")
        self._producer_id = reply.producer_id
        self._producer_epoch = reply.producer_epoch

    async def send(self, batches: Sequence[PartitionBatch]) -> list[Outcome]:
        """One outcome a batch, in the order of the batches. Raises when the fate of some is not known."""
        places = [(batch.topic, batch.partition) for batch in batches]
        assert len(set(places)) == len(batches)
        if not self._options.is_idempotent:
            async with self._turns:
                return await self._deliver(batches)
        if self._must_renew or self._renewal_waiters:
            await self._renew()
        # Before anything else is awaited: the order of the calls is the order of the sequences.
        firsts = [self._next_sequence.get(place, 0) for place in places]
        batches = [self._stamp(batch) for batch in batches]
        self._under_way.update(places)
        is_known = False
        try:
            async with self._turns:
                outcomes = await self._deliver(batches)
            for place, first, outcome in zip(places, firsts, outcomes, strict=True):
                if isinstance(outcome, Refused):
                    self._refused[place] = min(first, self._refused.get(place, first))
            is_known = True
            return outcomes
        finally:
            self._must_renew |= not is_known
            self._under_way.subtract(places)
            self._take_sequences_back(places)

    async def _renew(self) -> None:
        """Those who wait go on in the order in which they came."""
        self._renewal_waiters += 1
        try:
            async with self._renewal:
                if not self._must_renew:
                    return
                while self._under_way:
                    self._is_idle.clear()
                    await self._is_idle.wait()
                await self.start()
                self._next_sequence.clear()
                self._must_renew = False
        finally:
            self._renewal_waiters -= 1

    def _take_sequences_back(self, places: Sequence[TopicPartition]) -> None:
        """Of what was refused the broker has nothing, nor of what came behind it. So the next batch has the sequence of
        the first that was refused, or the broker would wait for that one for ever; but not before all are back."""
        for place in places:
            if not self._under_way[place]:
                del self._under_way[place]
                refused = self._refused.pop(place, None)
                if refused is not None and place in self._next_sequence:
                    self._next_sequence[place] = refused
        if not self._under_way:
            self._is_idle.set()

    async def _deliver(self, batches: Sequence[PartitionBatch]) -> list[Outcome]:
        outcomes: dict[TopicPartition, Outcome] = {}

        def sentence() -> str:
            refused = [outcome.sentence() for outcome in outcomes.values() if isinstance(outcome, Refused)]
            problem = refused[0] if refused else "no acknowledgement yet"
            return f"{problem}; trying for up to {self._options.delivery_timeout_ms / 1000:g} s"

        with told_if_slow(sentence):
            return await self._try_until_deadline(batches, outcomes)

    async def _try_until_deadline(
        self, batches: Sequence[PartitionBatch], outcomes: dict[TopicPartition, Outcome]
    ) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.delivery_timeout_ms / 1000
        left = list(batches)
        unknown: set[TopicPartition] = set()
        while True:
            failure: ClientError | None = None
            try:
                for outcome in await self._send_once(left):
                    outcomes[outcome.batch.topic, outcome.batch.partition] = outcome
            except (BrokerUnreachableError, ConnectionLostError, RequestTimeoutError) as error:
                if not self._options.is_idempotent:
                    raise
                failure = error
                unknown.update((batch.topic, batch.partition) for batch in left)
            unknown.update(place for place, outcome in outcomes.items() if _may_be_written(outcome))
            left = [batch for batch in batches if self._may_retry(outcomes.get((batch.topic, batch.partition)))]
            is_over = loop.time() + RETRY_MS / 1000 >= deadline
            if left and is_over and failure is not None:
                raise failure
            if not left or is_over:
                self._must_renew |= any(isinstance(outcomes[place], Refused) for place in unknown)
                return [outcomes[batch.topic, batch.partition] for batch in batches]
            for topic in {batch.topic for batch in left}:
                self._client.forget(topic)
            await asyncio.sleep(RETRY_MS / 1000)

    def _may_retry(self, outcome: Outcome | None) -> bool:
        if outcome is None:
            return True
        if isinstance(outcome, Acknowledged):
            return False
        if outcome.code in _RETRIABLE:
            return True
        return self._options.is_idempotent and outcome.code in _RETRIABLE_IF_IDEMPOTENT

    async def _send_once(self, batches: Sequence[PartitionBatch]) -> list[Outcome]:
        by_leader: dict[int, list[PartitionBatch]] = {}
        for batch in batches:
            leader = self._client.known_leader_id(batch.topic, batch.partition)
            if leader is None:
                leader = await self._client.leader_id(batch.topic, batch.partition)
            by_leader.setdefault(leader, []).append(batch)
        replies: list[tuple[list[PartitionBatch], asyncio.Future[ProduceResponse]]] = []
        outcomes: list[Outcome] = []
        for leader, group in by_leader.items():
            connection = await self._client.connection_to(leader)
            if self._options.acks == 0:
                await connection.post(self._request(group))
                outcomes += [Acknowledged(batch, UNKNOWN_OFFSET) for batch in group]
            else:
                replies.append((group, await self._send_to(connection, group)))
        for group, reply in replies:
            outcomes += _outcomes(group, await reply)
        return outcomes

    async def _send_to(
        self, connection: Connection, group: Sequence[PartitionBatch]
    ) -> asyncio.Future[ProduceResponse]:
        # The broker gives up first, and says so: its answer is worth more than our own alarm.
        timeout_ms = self._options.request_timeout_ms + 5_000
        return await connection.send(self._request(group), ProduceResponse, timeout_ms=timeout_ms)

    def _request(self, group: Sequence[PartitionBatch]) -> ProduceRequest:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in group:
            data = PartitionProduceData(index=batch.partition, records=batch.data)
            by_topic.setdefault(batch.topic, []).append(data)
        return ProduceRequest(
            transactional_id=None,
            acks=self._options.acks,
            timeout_ms=self._options.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in by_topic.items()],
        )

    def _stamp(self, batch: PartitionBatch) -> PartitionBatch:
        place = (batch.topic, batch.partition)
        sequence = self._next_sequence.get(place, 0)
        after = sequence + batch.record_count
        self._next_sequence[place] = after if after <= SEQUENCE_MAX else after - SEQUENCE_MAX - 1
        data = stamp_sequence(
            bytearray(batch.data),
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        return PartitionBatch(batch.topic, batch.partition, data, batch.record_count)


def stamp_sequence(data: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
    """Signs one batch, in place, as a producer's; its checksum is renewed."""
    assert len(data) >= HEADER_BYTES
    _PRODUCER_FIELDS.pack_into(data, _PRODUCER_FIELDS_POSITION, producer_id, producer_epoch, base_sequence)
    _CHECKSUM.pack_into(data, _CHECKSUM_POSITION, crc32c(memoryview(data)[CHECKSUM_START:]))
    return data


def _may_be_written(outcome: Outcome) -> bool:
    return isinstance(outcome, Refused) and outcome.code in _MAY_BE_WRITTEN


def _outcomes(group: Sequence[PartitionBatch], reply: ProduceResponse) -> list[Outcome]:
    answers: Mapping[TopicPartition, PartitionProduceResponse] = {
        (topic.name, partition.index): partition for topic in reply.responses for partition in topic.partition_responses
    }
    return [_outcome(batch, answers.get((batch.topic, batch.partition))) for batch in group]


def _outcome(batch: PartitionBatch, answer: PartitionProduceResponse | None) -> Outcome:
    if answer is None:
        return Refused(batch, ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's reply does not mention it")
    if answer.error_code == 0:
        return Acknowledged(batch, answer.base_offset)
    if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return Acknowledged(batch, UNKNOWN_OFFSET)
    return Refused(batch, answer.error_code, answer.error_message)
