from __future__ import annotations

import pytest

from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    Noted,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdNeeded,
    ProducerReady,
    Refused,
    TimePassed,
    TransactionEnded,
    TransactionListing,
    TransactionProblem,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.domain.transaction.machine import DUE_MAX, TransactionCoordinator
from penstock.domain.transaction.rules import TransactionSettings
from penstock.domain.transaction.state import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    STATES_BY_LABEL,
    TopicPartition,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
)
from support.transaction.talk import ID, TIMEOUT_MS, A, B, Talk

VERSION_ONE_SERVER = TransactionSettings(version=1)
FENCED = Refused(TransactionProblem.PRODUCER_FENCED)
CONCURRENT = Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)
INVALID_STATE = Refused(TransactionProblem.INVALID_TXN_STATE)
WRONG_ID = Refused(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)


def aged(epoch: int, state: TransactionState = TransactionState.EMPTY) -> TransactionMetadata:
    return TransactionMetadata(50, epoch, state, TIMEOUT_MS, update_ms=0)


# --- a producer begins -------------------------------------------------------------------------------------------


def test_first_producer_gets_a_new_id_at_epoch_0() -> None:
    talk = Talk()
    assert talk.say(InitProducer(ID, TIMEOUT_MS)) == ProducerIdNeeded()
    assert talk.records == []
    assert talk.init() == ProducerReady(101, 0)
    assert talk.state.state is TransactionState.EMPTY


def test_next_producer_gets_the_same_id_with_a_higher_epoch_and_needs_no_new_id() -> None:
    talk = Talk()
    talk.ready()
    assert talk.say(InitProducer(ID, TIMEOUT_MS)) == ProducerReady(101, 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_outside_its_bounds_is_refused(timeout_ms: int) -> None:
    assert Talk().init(timeout_ms=timeout_ms) == Refused(TransactionProblem.INVALID_TRANSACTION_TIMEOUT)


def test_largest_timeout_is_taken_and_a_later_producer_may_change_it() -> None:
    talk = Talk()
    assert talk.init(timeout_ms=900_000) == ProducerReady(101, 0)
    talk.init(timeout_ms=5)
    assert talk.state.timeout_ms == 5


def test_empty_transactional_id_is_refused_everywhere() -> None:
    machine = Talk().machine
    for command in (
        InitProducer("", TIMEOUT_MS, spare_producer_id=1),
        AddPartitions("", 1, 0, (A,)),
        VerifyPartitions("", 1, 0, (A,)),
        EndTransaction("", 1, 0, is_commit=True),
    ):
        assert machine.decide(command, 0).reply == Refused(TransactionProblem.INVALID_REQUEST)


def test_producer_id_without_epoch_is_refused() -> None:
    assert Talk().init(5, -1) == Refused(TransactionProblem.INVALID_REQUEST)
    assert Talk().init(-1, 5) == Refused(TransactionProblem.INVALID_REQUEST)


def test_unknown_transactional_id_has_no_producer() -> None:
    talk, stranger = Talk(), ProducerReady(9, 0)
    assert talk.add(stranger, A) == WRONG_ID
    assert talk.verify(stranger, A) == WRONG_ID
    assert talk.end(stranger, is_commit=True) == WRONG_ID
    assert talk.end(stranger, is_commit=True, version=2) == WRONG_ID


# --- a transaction, version 1 ------------------------------------------------------------------------------------


def test_commit_is_decided_at_once_and_complete_when_every_partition_has_its_marker() -> None:
    talk = Talk()
    producer = talk.ready()
    assert talk.add(producer, B, A) == PartitionsAdded()
    assert talk.state.partitions == (A, B)
    assert talk.end(producer, is_commit=True) == TransactionEnded(101, 0)
    assert talk.state.state is TransactionState.PREPARE_COMMIT
    assert talk.effects == [WriteMarkers(ID, 101, 0, 7, True, 1, talk.state.update_ms, (A, B))]
    talk.write_markers(A)
    talk.write_markers(A)
    assert talk.state.state is TransactionState.PREPARE_COMMIT
    talk.write_markers(B)
    assert talk.state.state is TransactionState.COMPLETE_COMMIT
    assert talk.state.partitions == ()
    assert len(talk.records) == 4


def test_partition_that_is_added_again_writes_nothing() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A, B)
    count = len(talk.records)
    assert talk.add(producer, B) == PartitionsAdded()
    assert len(talk.records) == count


def test_next_transaction_begins_after_a_complete_one_and_its_time_anew() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    talk.end(producer, is_commit=True)
    talk.write_markers()
    talk.now_ms += 500
    assert talk.add(producer, B) == PartitionsAdded()
    assert (talk.state.partitions, talk.state.start_ms) == ((B,), 1_500)
    talk.now_ms += 500
    talk.add(producer, A)
    assert talk.state.start_ms == 1_500


@pytest.mark.parametrize("is_commit", [True, False])
def test_repeated_end_gets_the_same_answer_and_the_opposite_is_refused(is_commit: bool) -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    talk.end(producer, is_commit=is_commit)
    assert talk.end(producer, is_commit=is_commit) == CONCURRENT
    talk.write_markers()
    count = len(talk.records)
    assert talk.end(producer, is_commit=is_commit) == TransactionEnded(101, 0)
    assert talk.end(producer, is_commit=not is_commit) == INVALID_STATE
    assert len(talk.records) == count


def test_nothing_ends_where_nothing_began() -> None:
    talk = Talk()
    producer = talk.ready()
    assert talk.end(producer, is_commit=True) == INVALID_STATE
    assert talk.end(producer, is_commit=False) == INVALID_STATE


def test_everybody_waits_while_markers_are_written() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    talk.end(producer, is_commit=True)
    assert talk.add(producer, B) == CONCURRENT
    assert talk.verify(producer, A) == CONCURRENT
    assert talk.init() == CONCURRENT
    assert talk.end(producer, is_commit=False) == CONCURRENT


def test_wrong_id_and_wrong_epoch_are_told_apart() -> None:
    talk = Talk()
    talk.ready()
    producer = talk.ready()
    old, strange = ProducerReady(101, 0), ProducerReady(5, 1)
    future = ProducerReady(101, 2)
    talk.add(producer, A)
    for ask in (talk.add, talk.verify):
        assert ask(old, A) == FENCED
        assert ask(future, A) == FENCED
        assert ask(strange, A) == WRONG_ID
    for version in (1, 2):
        assert talk.end(old, is_commit=True, version=version) == FENCED
        assert talk.end(future, is_commit=True, version=version) == FENCED
        assert talk.end(strange, is_commit=True, version=version) == WRONG_ID


def test_partitions_of_the_transaction_are_verified_and_others_are_not() -> None:
    talk = Talk()
    producer = talk.ready()
    assert talk.verify(producer, A) == PartitionsVerified((A,))
    talk.add(producer, A)
    count = len(talk.records)
    assert talk.verify(producer, A) == PartitionsVerified()
    assert talk.verify(producer, B, A) == PartitionsVerified((B,))
    assert len(talk.records) == count


def test_transaction_without_partitions_ends_with_one_record_and_no_marker() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer)
    assert talk.state.state is TransactionState.ONGOING
    count = len(talk.records)
    assert talk.end(producer, is_commit=True) == TransactionEnded(101, 0)
    assert talk.state.state is TransactionState.COMPLETE_COMMIT
    assert (len(talk.records), talk.effects) == (count + 1, [])


# --- fencing -----------------------------------------------------------------------------------------------------


def test_new_producer_aborts_what_the_old_one_left_and_must_ask_again() -> None:
    talk = Talk()
    old = talk.ready()
    talk.add(old, A)
    assert talk.init() == CONCURRENT
    assert talk.state.state is TransactionState.PREPARE_ABORT
    assert (talk.effects[-1].producer_epoch, talk.effects[-1].is_commit) == (1, False)
    assert talk.init() == CONCURRENT
    talk.write_markers()
    assert talk.init() == ProducerReady(101, 2)
    assert talk.end(old, is_commit=True) == FENCED
    assert talk.add(old, A) == FENCED


@pytest.mark.parametrize("settings", [TransactionSettings(), VERSION_ONE_SERVER])
def test_zombie_gets_nowhere_between_the_abort_and_its_successor(settings: TransactionSettings) -> None:
    talk = Talk(settings)
    old = talk.ready()
    talk.add(old, A)
    talk.init()
    talk.write_markers()
    for version in (1, 2):
        assert talk.end(old, is_commit=True, version=version) == FENCED
        assert talk.end(old, is_commit=False, version=version) == FENCED
    assert talk.init(old.producer_id, old.producer_epoch) == FENCED


def test_producer_goes_on_with_its_own_id_and_epoch() -> None:
    talk = Talk()
    producer = talk.ready()
    assert talk.init(producer.producer_id, producer.producer_epoch) == ProducerReady(101, 1)
    assert talk.state.last_producer_epoch == 0


def test_repeated_request_to_go_on_gets_the_same_epoch_also_after_a_restart() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.init(producer.producer_id, producer.producer_epoch)
    restarted = Talk()
    for record in talk.records:
        restarted.machine.apply(record)
    assert restarted.init(producer.producer_id, producer.producer_epoch) == ProducerReady(101, 1)


def test_fenced_producer_cannot_go_on() -> None:
    talk = Talk()
    old = talk.ready()
    talk.ready()
    assert talk.init(old.producer_id, old.producer_epoch) == FENCED
    assert talk.init(99, 0) == FENCED


def test_late_request_to_go_on_does_not_abort_the_transaction_that_came_after() -> None:
    talk = Talk()
    old = talk.ready()
    newer = talk.init(old.producer_id, old.producer_epoch)
    assert isinstance(newer, ProducerReady)
    talk.add(newer, A)
    assert talk.init(old.producer_id, old.producer_epoch) == FENCED
    assert talk.state.state is TransactionState.ONGOING


def test_producer_that_goes_on_aborts_its_own_transaction_first() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    assert talk.init(producer.producer_id, producer.producer_epoch) == CONCURRENT
    talk.write_markers()
    assert talk.init(producer.producer_id, producer.producer_epoch) == ProducerReady(101, 1)


# --- the end of the epochs ---------------------------------------------------------------------------------------


def test_producer_after_the_last_epoch_gets_a_new_id() -> None:
    talk = Talk()
    talk.begin_with(aged(CLIENT_EPOCH_MAX - 1))
    assert talk.init() == ProducerReady(50, CLIENT_EPOCH_MAX)
    assert talk.init() == ProducerReady(101, 0)


def test_last_epoch_can_still_be_fenced() -> None:
    talk = Talk()
    old = talk.begin_with(aged(CLIENT_EPOCH_MAX))
    talk.add(old, A)
    assert talk.init() == CONCURRENT
    assert talk.effects[-1].producer_epoch == EPOCH_MAX
    talk.write_markers()
    assert talk.init() == ProducerReady(101, 0)
    assert talk.end(old, is_commit=True) == WRONG_ID


def test_repeated_request_finds_its_new_id() -> None:
    talk = Talk()
    old = talk.begin_with(aged(CLIENT_EPOCH_MAX))
    assert talk.init(old.producer_id, old.producer_epoch) == ProducerReady(101, 0)
    assert talk.init(old.producer_id, old.producer_epoch) == ProducerReady(101, 0)
    talk.add(ProducerReady(101, 0), A)
    assert talk.init(old.producer_id, old.producer_epoch) == FENCED


def test_producer_that_timed_out_at_its_last_epoch_goes_on_under_a_new_id() -> None:
    talk = Talk()
    producer = talk.begin_with(aged(CLIENT_EPOCH_MAX))
    talk.add(producer, A)
    talk.wait(TIMEOUT_MS)
    talk.write_markers()
    assert talk.state.producer_epoch == EPOCH_MAX
    assert talk.init(producer.producer_id, producer.producer_epoch) == ProducerReady(101, 0)


# --- time --------------------------------------------------------------------------------------------------------


def test_transaction_that_takes_too_long_is_aborted_with_a_higher_epoch() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    assert talk.machine.next_deadline_ms() == 1_000 + TIMEOUT_MS
    talk.wait(TIMEOUT_MS - 1)
    assert talk.state.state is TransactionState.ONGOING
    talk.wait(1)
    assert talk.state.state is TransactionState.PREPARE_ABORT
    assert (talk.effects[-1].producer_epoch, talk.effects[-1].partitions) == (1, (A,))
    talk.write_markers()
    assert talk.end(producer, is_commit=True) == FENCED


def test_decided_transaction_never_times_out() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    talk.end(producer, is_commit=True)
    talk.wait(10 * TIMEOUT_MS)
    assert talk.state.state is TransactionState.PREPARE_COMMIT


def test_idle_transactional_id_is_forgotten_and_a_busy_one_is_not() -> None:
    talk = Talk(TransactionSettings(id_expiration_ms=TIMEOUT_MS // 2))
    producer = talk.ready()
    talk.wait(TIMEOUT_MS // 2 - 1)
    talk.add(producer, A)
    talk.wait(TIMEOUT_MS // 2)
    assert talk.state.state is TransactionState.ONGOING
    talk.end(producer, is_commit=True)
    talk.write_markers()
    talk.wait(TIMEOUT_MS // 2)
    assert talk.machine.describe(ID) is None
    assert talk.records[-1] == TransactionRecord(ID, None)
    assert talk.machine.next_deadline_ms() is None
    assert talk.init() == ProducerReady(102, 0)


def test_many_due_at_once_are_ended_in_portions() -> None:
    machine = TransactionCoordinator(coordinator_epoch=0)
    metadata = TransactionMetadata(5, 0, TransactionState.ONGOING, 10, (A,), start_ms=0)
    for number in range(DUE_MAX + 5):
        machine.apply(TransactionRecord(f"id-{number:05}", metadata))
    counts = []
    while (deadline := machine.next_deadline_ms()) is not None and deadline <= 10:
        decision = machine.decide(TimePassed(), 10)
        counts.append((len(decision.records), len(decision.effects)))
        for record in decision.records:
            machine.apply(record)
    # The last alarm rings for nothing, and not again.
    assert counts == [(DUE_MAX, DUE_MAX), (5, 5), (0, 0)]


# --- markers -----------------------------------------------------------------------------------------------------


def test_report_about_markers_of_another_transaction_is_not_believed() -> None:
    talk = Talk()
    producer = talk.ready()
    for _ in range(2):
        talk.add(producer, A)
        talk.end(producer, is_commit=True)
        if len(talk.effects) == 1:
            talk.write_markers()
    # The same producer, epoch and partition, in the same millisecond.
    first, second = talk.effects
    assert first.ended_ms < second.ended_ms
    assert talk.say(MarkersWritten(ID, first.ended_ms, (A,))) == Noted()
    assert talk.state.state is TransactionState.PREPARE_COMMIT
    talk.write_markers()
    assert talk.state.state is TransactionState.COMPLETE_COMMIT


def test_report_about_an_unknown_id_is_passed_over() -> None:
    talk = Talk()
    assert talk.say(MarkersWritten("nobody", 5, (A,))) == Noted()
    assert talk.records == []


def test_restarted_coordinator_asks_for_all_markers_again_with_its_own_epoch() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A, B)
    talk.end(producer, is_commit=False)
    talk.write_markers(A)
    restarted = Talk(coordinator_epoch=8)
    for record in talk.records:
        restarted.machine.apply(record)
    assert restarted.machine.as_dict() == talk.machine.as_dict()
    (markers,) = restarted.machine.pending_markers()
    assert (markers.coordinator_epoch, markers.partitions, markers.is_commit) == (8, (A, B), False)
    assert restarted.machine.decide(MarkersWritten(ID, markers.ended_ms, (A, B)), 0).records


# --- views -------------------------------------------------------------------------------------------------------


def machine_with_states() -> TransactionCoordinator:
    machine = TransactionCoordinator(coordinator_epoch=0)
    for number, (state, start_ms) in enumerate(
        [(TransactionState.ONGOING, 100), (TransactionState.COMPLETE_COMMIT, 900), (TransactionState.EMPTY, -1)]
    ):
        machine.apply(TransactionRecord(f"id-{number}", TransactionMetadata(number, 0, state, 10, (), start_ms)))
    return machine


def listed(listings: list[TransactionListing]) -> list[str]:
    return [listing.transactional_id for listing in listings]


def test_list_passes_every_filter() -> None:
    machine = machine_with_states()
    assert listed(machine.list_transactions(1_000)) == ["id-0", "id-1", "id-2"]
    assert listed(machine.list_transactions(1_000, states=[TransactionState.ONGOING])) == ["id-0"]
    assert listed(machine.list_transactions(1_000, states=[])) == []
    assert listed(machine.list_transactions(1_000, producer_ids=[1, 2, 7])) == ["id-1", "id-2"]
    assert listed(machine.list_transactions(1_000, longer_than_ms=100)) == ["id-0", "id-2"]
    assert listed(machine.list_transactions(1_000, longer_than_ms=99)) == ["id-0", "id-1", "id-2"]
    assert listed(machine.list_transactions(1_000, id_matches=lambda name: name.endswith("1"))) == ["id-1"]
    assert listed(machine.list_transactions(1_000, states=[TransactionState.ONGOING], producer_ids=[1])) == []


def test_states_have_the_names_that_kafka_gives_them() -> None:
    assert sorted(STATES_BY_LABEL) == [
        "CompleteAbort", "CompleteCommit", "Dead", "Empty", "Ongoing", "PrepareAbort", "PrepareCommit",
        "PrepareEpochFence",
    ]  # fmt: skip


def test_description_is_the_whole_state() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, TopicPartition("z", 0), A)
    described = talk.machine.describe(ID)
    assert described is not None
    assert (described.partitions, described.timeout_ms, described.start_ms) == (
        (A, TopicPartition("z", 0)),
        TIMEOUT_MS,
        1_000,
    )
    assert talk.machine.describe("nobody") is None
    assert len(talk.machine) == 1
