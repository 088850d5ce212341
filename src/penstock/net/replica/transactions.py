"""What a transaction's coordinator and the leaders of its partitions ask each other: WriteTxnMarkers, Barrier and
AddPartitionsToTxn, as values on either side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.internal.barrier import BarrierResponse
from penstock.codec.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.codec.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.domain.replication.exchange import Barrier, LogBarrier
from penstock.domain.transaction.commands import PartitionsAdded, PartitionsVerified, Refused, TransactionProblem
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.marker import Marker, MarkerOutcome
from penstock.domain.transaction.state import TopicPartition
from penstock.net.peers import Lane, Peers
from penstock.net.replica.calls import GRACE_MS
from penstock.net.replica.questions import read_passed, write_barrier

# A marker is answered when it is committed: some turns of the disks, and a follower that is waited for until it is
# taken out of the set. Who is silent for longer is asked again, which is harmless.
MARKERS_MS_MAX: Final = 30_000
# Less than a producer waits for the end of its transaction.
BARRIER_MS_MAX: Final = 10_000
# Less than a producer waits for its batch.
ADMISSION_MS_MAX: Final = 10_000

# What the other side has said by these codes. Whatever else it says is a passing trouble of its own.
_OUTCOMES: Final[dict[int, MarkerOutcome]] = {
    ErrorCode.NONE: MarkerOutcome.WRITTEN,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MarkerOutcome.GONE,
    ErrorCode.INVALID_PRODUCER_EPOCH: MarkerOutcome.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: MarkerOutcome.COORDINATOR_FENCED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: MarkerOutcome.NOT_LEADER,
}
_PROBLEMS: Final[dict[int, TransactionProblem]] = {ErrorCode[problem.name]: problem for problem in TransactionProblem}


class Admission(msgspec.Struct, frozen=True):
    """Partitions that a batch of a transaction is about to come into."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    # They must be part of it already; else they are added.
    is_verified_only: bool


class TransactionCalls:
    """Each raises PeerError where there is no answer."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def write_markers(self, node_id: int, markers: Sequence[Marker]) -> list[MarkerOutcome]:
        """One outcome for each, in their order."""
        request = write_markers(markers)
        return read_outcomes(
            markers,
            await self._peers.call(node_id, Lane.REST, request, WriteTxnMarkersResponse, timeout_ms=MARKERS_MS_MAX),
        )

    async def barrier(self, node_id: int, logs: Sequence[LogBarrier]) -> bool:
        """True: whatever they held when it was asked is committed."""
        request = write_barrier(Barrier(logs, BARRIER_MS_MAX))
        timeout_ms = BARRIER_MS_MAX + GRACE_MS
        passed = read_passed(
            await self._peers.call(node_id, Lane.REST, request, BarrierResponse, timeout_ms=timeout_ms)
        )
        return len(passed) == len(logs) and all(each.problem is None for each in passed)

    async def admit(self, node_id: int, asked: Admission) -> PartitionsAdded | PartitionsVerified | Refused:
        request = write_admission(asked)
        return read_admitted(
            asked,
            await self._peers.call(
                node_id, Lane.REST, request, AddPartitionsToTxnResponse, timeout_ms=ADMISSION_MS_MAX
            ),
        )


# Markers


def write_markers(markers: Sequence[Marker]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[_write_end(end, list(several)) for end, several in groupby(markers, lambda marker: marker.end)]
    )


def _write_end(end: TransactionEnd, markers: list[Marker]) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        transaction_result=end.is_commit,
        coordinator_epoch=end.coordinator_epoch,
        transaction_version=end.version,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=[marker.partition for marker in several])
            for topic, several in groupby(markers, lambda marker: marker.topic)
        ],
    )


def read_outcomes(markers: Sequence[Marker], response: WriteTxnMarkersResponse) -> list[MarkerOutcome]:
    """Of one that is not spoken of nobody knows: it is asked for again."""
    codes = {
        (marker.producer_id, topic.name, partition.partition_index): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
    found = (codes.get((marker.end.producer_id, marker.topic, marker.partition)) for marker in markers)
    return [MarkerOutcome.UNAVAILABLE if code is None else _outcome(code) for code in found]


def _outcome(code: int) -> MarkerOutcome:
    return _OUTCOMES.get(code, MarkerOutcome.UNAVAILABLE)


# Admission


def write_admission(asked: Admission) -> AddPartitionsToTxnRequest:
    topics = [
        AddPartitionsToTxnTopic(name=topic, partitions=[place.partition for place in several])
        for topic, several in groupby(sorted(asked.partitions), lambda place: place.topic)
    ]
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=asked.transactional_id,
                producer_id=asked.producer_id,
                producer_epoch=asked.producer_epoch,
                verify_only=asked.is_verified_only,
                topics=topics,
            )
        ]
    )


def read_admitted(
    asked: Admission, response: AddPartitionsToTxnResponse
) -> PartitionsAdded | PartitionsVerified | Refused:
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
        for result in response.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
    missing = []
    for place in asked.partitions:
        code = codes.get(place, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if code == ErrorCode.TRANSACTION_ABORTABLE:
            missing.append(place)
        elif code != ErrorCode.NONE:
            # One that is none of a transaction's: the coordinator knows less of the topic than this node, for a moment.
            return Refused(_PROBLEMS.get(code, TransactionProblem.COORDINATOR_NOT_AVAILABLE))
    return PartitionsVerified(tuple(missing)) if asked.is_verified_only else PartitionsAdded()
