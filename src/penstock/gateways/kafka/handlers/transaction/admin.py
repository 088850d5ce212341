"""What operators ask of transactions: DescribeProducers, DescribeTransactions, ListTransactions, WriteTxnMarkers.

A transaction is seen from two sides. The coordinator knows those that it looks after, by transactional id; a partition
knows whose records it holds that have not ended, by producer id. One that only the partition knows hangs: it holds up
readers of committed records for ever, and WriteTxnMarkers is how it is ended by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from penstock.base.long_work import Pace, Steps
from penstock.base.patterns import compile_pattern
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere, for_looks, no_topic
from penstock.broker.topic.served_topic import ServedTopic
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import list_transactions as list_wire
from penstock.codec.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.codec.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from penstock.codec.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.codec.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation
from penstock.domain.transaction.commands import Refused, TransactionProblem
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import STATES_BY_LABEL, TopicPartition, TransactionMetadata
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES, MARKER_CODES, transaction_code

NO_SEQUENCE: Final = -1
NO_TIME: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1


class TransactionsAdminHandler:
    def __init__(
        self, broker: Broker, transactions: TransactionCoordinators, markers: MarkerWriter, admission: Admission
    ) -> None:
        self._broker = broker
        self._transactions = transactions
        self._markers = markers
        self._admission = admission

    # As the coordinator sees them

    async def list_transactions(
        self, request: ListTransactionsRequest, context: RequestContext
    ) -> ListTransactionsResponse:
        id_matches: Callable[[str], bool] | None = None
        if request.transactional_id_pattern:
            id_matches = compile_pattern(request.transactional_id_pattern)
            if id_matches is None:
                return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        states = [STATES_BY_LABEL[label] for label in request.state_filters if label in STATES_BY_LABEL]
        found = await self._transactions.list_transactions(
            # Asked for by names that nobody knows is not the same as not asked for.
            states=states if request.state_filters else None,
            producer_ids=frozenset(request.producer_id_filters) or None,
            longer_than_ms=request.duration_filter,
            id_matches=id_matches,
        )
        if isinstance(found, Refused):
            is_damaged = found.problem is TransactionProblem.UNKNOWN_SERVER_ERROR
            code = ErrorCode.UNKNOWN_SERVER_ERROR if is_damaged else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ListTransactionsResponse(error_code=code)
        visible = []
        pace = context.pace()
        for listing in found:
            if self._may_see(listing.transactional_id, context):
                told = list_wire.TransactionState(listing.transactional_id, listing.producer_id, listing.state.label)
                visible.append(told)
            await pace.rest_if_due()
        return ListTransactionsResponse(
            unknown_state_filters=[label for label in request.state_filters if label not in STATES_BY_LABEL],
            transaction_states=visible,
        )

    async def describe_transactions(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> DescribeTransactionsResponse:
        found = []
        pace = context.pace()
        for transactional_id in dict.fromkeys(request.transactional_ids):
            found.append(await self._describe(transactional_id, context))
            await pace.rest_if_due()
        return DescribeTransactionsResponse(transaction_states=found)

    async def _describe(self, transactional_id: str, context: RequestContext) -> TransactionState:
        if not self._may_see(transactional_id, context):
            return _not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not transactional_id:
            return _not_described(transactional_id, ErrorCode.INVALID_REQUEST)
        found = await self._transactions.describe(transactional_id)
        if isinstance(found, Refused):
            return _not_described(transactional_id, transaction_code(found, knows_fenced=True))
        if found is None:
            return _not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionState(
            transactional_id=transactional_id,
            transaction_state=found.state.label,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=self._visible_topics(found, context),
        )

    def _visible_topics(self, found: TransactionMetadata, context: RequestContext) -> list[TopicData]:
        return [
            TopicData(name, [place.partition for place in places])
            for name, places in groupby(found.partitions, key=_topic_of)
            if self._admission.may(context.caller, Operation.DESCRIBE, access.topic(name))
        ]

    def _may_see(self, transactional_id: str, context: RequestContext) -> bool:
        resource = access.transactional_id(transactional_id)
        return self._admission.may(context.caller, Operation.DESCRIBE, resource)

    # As a partition sees them

    def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> Steps[DescribeProducersResponse]:
        # Named twice, told once: what a partition remembers of producers may be long.
        wanted: dict[str, dict[int, None]] = {}
        for asked in request.topics:
            wanted.setdefault(asked.name, {}).update(dict.fromkeys(asked.partition_indexes))
        topics = []
        for name, indexes in wanted.items():
            topics.append(TopicResponse(name, (yield from self._producers_of_topic(name, tuple(indexes), context))))
            yield
        return DescribeProducersResponse(topics=topics)

    def _producers_of_topic(
        self, name: str, indexes: Sequence[int], context: RequestContext
    ) -> Steps[list[PartitionResponse]]:
        if not self._admission.may(context.caller, Operation.READ, access.topic(name)):
            code, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to read this topic"
            return [PartitionResponse(index, code, message) for index in indexes]
        topic = self._broker.topic(name)
        found = []
        for index in indexes:
            found.append(_producers_of(topic, name, index))
            yield
        return found

    # Ended by hand

    async def write_txn_markers(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        # An operator alters the cluster, another node acts for it: either may.
        is_allowed = any(
            self._admission.may(context.caller, operation, CLUSTER)
            for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)
        )
        pace = context.pace()
        markers = [await self._write(marker, pace, is_allowed=is_allowed) for marker in request.markers]
        return WriteTxnMarkersResponse(markers=markers)

    async def _write(self, marker: WritableTxnMarker, pace: Pace, *, is_allowed: bool) -> WritableTxnMarkerResult:
        topics = []
        await pace.rest_if_due()
        for topic in marker.topics:
            results = []
            for index in topic.partition_indexes:
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = await self._write_one(marker, topic.name, index)
                results.append(WritableTxnMarkerPartitionResult(index, code))
                await pace.rest_if_due()
            topics.append(WritableTxnMarkerTopicResult(topic.name, results))
        return WritableTxnMarkerResult(marker.producer_id, topics)

    async def _write_one(self, marker: WritableTxnMarker, topic: str, index: int) -> ErrorCode:
        end = TransactionEnd(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            is_commit=marker.transaction_result,
            version=marker.transaction_version,
        )
        return MARKER_CODES[await self._markers.write(topic, index, end)]


def _producers_of(topic: ServedTopic | None, name: str, index: int) -> PartitionResponse:
    shell = for_looks(no_topic(name) if topic is None else topic.find(index))
    if isinstance(shell, NotHere):
        return PartitionResponse(index, ABSENCE_CODES[shell.why], shell.detail)
    return PartitionResponse(index, active_producers=_active_producers(shell))


def _active_producers(shell: PartitionShell) -> list[ProducerState]:
    """Sequence and time from its batches, the rest from its transactions: of one producer either may be known alone."""
    sequences = dict(shell.log.producers.states())
    transactions = shell.log.transactions.producers
    found = []
    for producer_id in sorted(sequences.keys() | transactions.keys()):
        sequence, transaction = sequences.get(producer_id), transactions.get(producer_id)
        last = sequence.batches[-1] if sequence is not None and sequence.batches else None
        epochs = [NO_EPOCH if sequence is None else sequence.epoch]
        epochs.append(NO_EPOCH if transaction is None else transaction.producer_epoch)
        found.append(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=max(epochs),
                # A marker may have begun the next epoch, in which nothing has a sequence yet.
                last_sequence=NO_SEQUENCE if last is None or max(epochs) > epochs[0] else last[1],
                last_timestamp=NO_TIME if last is None else last[3],
                coordinator_epoch=NO_EPOCH if transaction is None else transaction.coordinator_epoch,
                current_txn_start_offset=NO_OFFSET if transaction is None else transaction.first_offset,
            )
        )
    return found


def _not_described(transactional_id: str, code: ErrorCode) -> TransactionState:
    return TransactionState(error_code=code, transactional_id=transactional_id)


def _topic_of(place: TopicPartition) -> str:
    return place.topic
