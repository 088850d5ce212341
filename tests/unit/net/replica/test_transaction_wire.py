"""What a coordinator and the leaders of partitions say to each other, through the bytes and by the door's own codes."""

from __future__ import annotations

import pytest

from penstock.codec.kafka import decode, encode
from penstock.codec.kafka.error_codes import ErrorCode
from penstock.codec.kafka.messages import add_partitions_to_txn as added
from penstock.codec.kafka.messages import write_txn_markers as written
from penstock.domain.transaction.commands import PartitionsAdded, PartitionsVerified, Refused, TransactionProblem
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.marker import Marker, MarkerOutcome
from penstock.domain.transaction.state import TopicPartition
from penstock.gateways.kafka.errors import MARKER_CODES, TRANSACTION_CODES
from penstock.net.replica import transactions as wire

END = TransactionEnd(producer_id=7, producer_epoch=2, coordinator_epoch=40, is_commit=True, version=2)
OTHER = TransactionEnd(producer_id=8, producer_epoch=0, coordinator_epoch=40, is_commit=False)
MARKERS = [Marker("orders", 0, END), Marker("orders", 3, END), Marker("stock", 1, END), Marker("orders", 0, OTHER)]
PLACES = (TopicPartition("orders", 0), TopicPartition("stock", 1))


def test_markers_are_told_by_their_end() -> None:
    request = wire.write_markers(MARKERS)
    read = decode(written.WriteTxnMarkersRequest, 2, encode(request, 2))
    assert [
        (each.producer_id, each.producer_epoch, each.transaction_result, each.coordinator_epoch)
        for each in read.markers
    ] == [(7, 2, True, 40), (8, 0, False, 40)]
    assert [(topic.name, list(topic.partition_indexes)) for topic in read.markers[0].topics] == [
        ("orders", [0, 3]),
        ("stock", [1]),
    ]


@pytest.mark.parametrize(("outcome", "code"), MARKER_CODES.items())
def test_every_outcome_is_read_as_the_door_writes_it(outcome: MarkerOutcome, code: ErrorCode) -> None:
    results = [written.WritableTxnMarkerPartitionResult(0, code)]
    topics = [written.WritableTxnMarkerTopicResult("orders", results)]
    response = written.WriteTxnMarkersResponse(markers=[written.WritableTxnMarkerResult(7, topics)])
    # Of the second nothing is said.
    assert wire.read_outcomes(MARKERS[:2], response) == [outcome, MarkerOutcome.UNAVAILABLE]


def answer(*codes: int) -> added.AddPartitionsToTxnResponse:
    topics = [
        added.AddPartitionsToTxnTopicResult(
            place.topic, [added.AddPartitionsToTxnPartitionResult(place.partition, code)]
        )
        for place, code in zip(PLACES, codes, strict=True)
    ]
    return added.AddPartitionsToTxnResponse(results_by_transaction=[added.AddPartitionsToTxnResult("payments", topics)])


def asked(*, is_verified_only: bool) -> wire.Admission:
    return wire.Admission("payments", 7, 2, PLACES, is_verified_only=is_verified_only)


@pytest.mark.parametrize("is_verified_only", [True, False])
def test_admissions_are_asked_for_one_transaction(is_verified_only: bool) -> None:
    request = wire.write_admission(asked(is_verified_only=is_verified_only))
    (read,) = decode(added.AddPartitionsToTxnRequest, 5, encode(request, 5)).transactions
    assert (read.transactional_id, read.producer_id, read.producer_epoch) == ("payments", 7, 2)
    assert read.verify_only is is_verified_only
    assert [(topic.name, list(topic.partitions)) for topic in read.topics] == [("orders", [0]), ("stock", [1])]


def test_what_is_missing_is_told_by_partition() -> None:
    verified = wire.read_admitted(asked(is_verified_only=True), answer(0, ErrorCode.TRANSACTION_ABORTABLE))
    assert verified == PartitionsVerified((PLACES[1],))
    assert wire.read_admitted(asked(is_verified_only=False), answer(0, 0)) == PartitionsAdded()


@pytest.mark.parametrize(("problem", "code"), TRANSACTION_CODES.items())
def test_every_problem_is_read_as_the_door_writes_it(problem: TransactionProblem, code: ErrorCode) -> None:
    if problem is not TransactionProblem.TRANSACTION_ABORTABLE:
        assert wire.read_admitted(asked(is_verified_only=True), answer(code, code)) == Refused(problem)


def test_what_is_no_problem_of_a_transaction_passes() -> None:
    away = Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
    for code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED):
        assert wire.read_admitted(asked(is_verified_only=False), answer(code, code)) == away
    silent = added.AddPartitionsToTxnResponse()
    assert wire.read_admitted(asked(is_verified_only=False), silent) == away
