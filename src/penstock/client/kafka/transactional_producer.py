"""One transaction at a time: whole batches into partitions and positions of groups, all of it or nothing.

    start ──► send* ──► commit_offsets* ──► commit
                └────────────┴────────────► abort

`start` is also the fence: it ends what a predecessor with the same transactional id has left open, and from then on
the predecessor is refused. The broker takes partitions and groups into the transaction when it first sees them
(transaction version 2), so nothing is asked for before the first batch.

Rules:
- Everything is asked again while brokers are away, up to `patience_ms`; a repeat is recognised by the broker.
- After a `commit` whose outcome is not known, neither `abort` nor `send`: it may have taken effect. Whoever comes next
  with this id finds out, because `start` waits for the end of what was under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.coordinators import CoordinatorKind, find_coordinator
from penstock.client.kafka.producer import (
    UNKNOWN_OFFSET,
    Acknowledged,
    Outcome,
    PartitionBatch,
    Producer,
    ProducerOptions,
    Refused,
)
from penstock.client.patience import NOT_YET, ask_patiently
from penstock.codec.batch.rewrite import sign_transactional
from penstock.codec.columns.write import sequence_after
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.produce import ProduceRequest
from penstock.codec.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.net.connection import Connection
from penstock.net.errors import BrokerError, ClientError, ProtocolMismatchError

Place = tuple[str, int]

PATIENCE_MS: Final = 120_000
TRANSACTION_TIMEOUT_MS: Final = 60_000
# EndTxn's first version of transaction version 2.
_END_VERSION_MIN: Final = 5

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class ProducerFencedError(ClientError):
    """Somebody else has started with the same transactional id: this one may write no more."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"another producer has taken over the transactional id {transactional_id!r}")


class TransactionalProducer:
    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._patience_ms = patience_ms
        self._sender = _Sender(client, transactional_id, patience_ms)

    async def start(self) -> None:
        """Waits until a predecessor's transaction has ended, one way or the other."""
        await ask_patiently(self._init, patience_ms=self._patience_ms)

    async def send(self, batches: Sequence[PartitionBatch]) -> list[int]:
        """The offset of each. At most one batch of a partition; calls for one partition take effect in their order. The
        data is signed in place where it is a bytearray."""
        offsets: list[int] = []
        for outcome in await self._sender.send(batches):
            if isinstance(outcome, Refused):
                self._check(outcome.code, outcome.sentence())
            offsets.append(outcome.base_offset if isinstance(outcome, Acknowledged) else UNKNOWN_OFFSET)
        return offsets

    async def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """The group's positions, valid once the transaction commits."""

        async def ask() -> None:
            await self._commit_offsets(group, offsets)

        await ask_patiently(ask, patience_ms=self._patience_ms)

    async def commit(self) -> None:
        await self._end(is_commit=True, patience_ms=self._patience_ms)

    async def abort(self, *, patience_ms: int | None = None) -> None:
        """With less patience than for the rest, if need be: the transaction's own timeout does the same."""
        await self._end(is_commit=False, patience_ms=self._patience_ms if patience_ms is None else patience_ms)

    async def _init(self) -> None:
        connection = await self._coordinator(CoordinatorKind.TRANSACTION, self._transactional_id)
        if connection.version_of(EndTxnRequest.api_key) < _END_VERSION_MIN:
            raise ProtocolMismatchError(f"{connection.address} has no transactions of version 2: the broker is too old")
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id, transaction_timeout_ms=self._transaction_timeout_ms
        )
        reply = await connection.call(request, InitProducerIdResponse)
        self._check(reply.error_code, f"no producer id for transactional id {self._transactional_id!r}")
        self._sender.begin(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)

    async def _commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        connection = await self._coordinator(CoordinatorKind.GROUP, group)
        topics = [
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=place[1], committed_offset=offsets[place])
                    for place in places
                ],
            )
            for name, places in groupby(sorted(offsets), key=itemgetter(0))
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group,
            producer_id=self._sender.producer_id,
            producer_epoch=self._sender.producer_epoch,
            topics=topics,
        )
        reply = await connection.call(request, TxnOffsetCommitResponse)
        for topic in reply.topics:
            for partition in topic.partitions:
                what = f"offset of partition {partition.partition_index} of {topic.name!r} was not committed"
                self._check(partition.error_code, what)

    async def _end(self, *, is_commit: bool, patience_ms: int) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._sender.producer_id,
            producer_epoch=self._sender.producer_epoch,
            committed=is_commit,
        )

        async def ask() -> EndTxnResponse:
            connection = await self._coordinator(CoordinatorKind.TRANSACTION, self._transactional_id)
            reply = await connection.call(request, EndTxnResponse)
            self._check(reply.error_code, f"transaction of {self._transactional_id!r} did not end")
            return reply

        reply = await ask_patiently(ask, patience_ms=patience_ms)
        self._sender.begin(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)

    async def _coordinator(self, kind: CoordinatorKind, key: str) -> Connection:
        connection, _ = await find_coordinator(self._client, kind, key)
        return connection

    def _check(self, code: int, what: str) -> None:
        if code in _FENCED:
            raise ProducerFencedError(self._transactional_id)
        if code != 0:
            raise BrokerError(code, what)


class _Sender(Producer):
    """An idempotent producer whose batches are signed as parts of a transaction."""

    def __init__(self, client: ClusterClient, transactional_id: str, patience_ms: int) -> None:
        super().__init__(client, ProducerOptions(is_idempotent=True, delivery_timeout_ms=patience_ms))
        self._transactional_id = transactional_id

    @property
    def producer_id(self) -> int:
        return self._producer_id

    @property
    def producer_epoch(self) -> int:
        return self._producer_epoch

    def begin(self, *, producer_id: int, producer_epoch: int) -> None:
        """With a new epoch the sequences start again."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._next_sequence.clear()

    def _may_retry(self, outcome: Outcome | None) -> bool:
        # The batch that brings a partition into the transaction waits for the coordinator, and has its errors.
        return super()._may_retry(outcome) or (isinstance(outcome, Refused) and outcome.code in NOT_YET)

    def _request(self, group: Sequence[PartitionBatch]) -> ProduceRequest:
        return msgspec.structs.replace(super()._request(group), transactional_id=self._transactional_id)

    def _stamp(self, batch: PartitionBatch) -> PartitionBatch:
        assert self._producer_id >= 0, "start comes first"
        place = (batch.topic, batch.partition)
        sequence = self._next_sequence.get(place, 0)
        self._next_sequence[place] = sequence_after(sequence, batch.record_count)
        data = sign_transactional(
            batch.data if isinstance(batch.data, bytearray) else bytearray(batch.data),
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        return PartitionBatch(batch.topic, batch.partition, data, batch.record_count)
