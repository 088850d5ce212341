"""The schedule of a partition, on a desk: what waits, what is released when, and what a restart changes."""

from __future__ import annotations

import pytest

from penstock.domain.schedule.commands import (
    Accepted,
    AppendMove,
    Cancel,
    Done,
    EndTransaction,
    FinishMove,
    Refused,
    Release,
    Reschedule,
    Schedule,
    ScheduleProblem,
)
from penstock.domain.schedule.machine import ScheduleConfig
from penstock.domain.schedule.records import (
    MOVE_KEY,
    CronFired,
    End,
    Ended,
    Move,
    MoveDone,
    MoveIntended,
    ProducerBatch,
    Scheduled,
    TransactionEnded,
    entry_key,
    key_of,
    read_entry_key,
)
from support.schedule.desk import PRODUCER_ID, START_MS, ScheduleDesk

SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY


@pytest.fixture
def desk() -> ScheduleDesk:
    return ScheduleDesk()


def flat(released: list[tuple[int, ...]]) -> list[int]:
    return [position for sources in released for position in sources]


# ------------------------------------------------------------------ releasing


def test_message_is_released_at_its_time_and_not_a_millisecond_before(desk: ScheduleDesk) -> None:
    place = desk.delay(1_500)
    assert desk.pass_time(1_499) == []
    assert desk.pass_time(1) == [(place,)]
    assert desk.schedule.pending_count == 0


@pytest.mark.parametrize("delay_ms", [0, 1, 999, 70 * SECOND, 5 * HOUR, 3 * DAY, 100 * DAY, 3 * YEAR, 300 * YEAR])
def test_delay_has_no_maximum(desk: ScheduleDesk, delay_ms: int) -> None:
    place = desk.delay(delay_ms)
    desk.spill()
    if delay_ms:
        assert desk.pass_time(delay_ms - 1) == []
        desk.spill()
        desk.now_ms += 1
    assert desk.pass_time(0) == [(place,)]


def test_messages_are_released_in_the_order_of_their_times(desk: ScheduleDesk) -> None:
    desk.delay(30, 10, 20, 10)
    desk.now_ms += 50
    assert desk.pass_time(0) == [(1, 3, 2, 0)]


@pytest.mark.parametrize("delay_ms", [10, 200 * SECOND, 5 * HOUR, 3 * DAY])
def test_messages_that_are_due_together_are_released_in_the_order_in_which_they_came(
    desk: ScheduleDesk, delay_ms: int
) -> None:
    """A FIFO queue whose delay was made shorter lets all that come later wait for the same moment."""
    due_ms = desk.now_ms + delay_ms
    for step in range(6):
        desk.delay(due_ms - desk.now_ms, due_ms - desk.now_ms)
        if step % 2 == 0:
            desk.spill()
        desk.now_ms += (due_ms - desk.now_ms) // 3
        desk.ring()
    desk.restart()
    desk.delay(due_ms - desk.now_ms)
    assert [place for move in desk.pass_time(due_ms - desk.now_ms) for place in move] == list(range(13))


def test_batch_is_appended_when_its_intent_is_durable_and_ended_when_it_is_appended(desk: ScheduleDesk) -> None:
    desk.delay(5, 5)
    desk.now_ms += 5
    desk.ring()
    decision = desk.decide(Release(PRODUCER_ID, 0))
    move = Move(1, PRODUCER_ID, 0, 0, (0, 1))
    assert decision.records == (MoveIntended(move, desk.now_ms),)
    assert decision.effects == (AppendMove(move),)
    assert desk.decide(FinishMove(1)).records == (
        Ended(0, 0, End.RELEASED, desk.now_ms),
        Ended(1, 1, End.RELEASED, desk.now_ms),
        MoveDone(move, desk.now_ms),
    )
    assert desk.submit(FinishMove(1)) == Refused(ScheduleProblem.NO_SUCH_MOVE)


def test_there_is_one_batch_at_a_time_and_no_alarm_meanwhile(desk: ScheduleDesk) -> None:
    desk.delay(0, 5)
    assert desk.begin_release() is not None
    desk.now_ms += 5
    assert desk.submit(Release(PRODUCER_ID, 0)) == Refused(ScheduleProblem.MOVE_UNDER_WAY)
    assert desk.schedule.next_deadline_ms(desk.now_ms) is None
    desk.submit(FinishMove(1))
    assert desk.schedule.next_deadline_ms(desk.now_ms) == desk.now_ms
    assert desk.release() == (1,)


def test_sequence_goes_on_from_batch_to_batch_and_begins_again_with_a_new_producer(desk: ScheduleDesk) -> None:
    desk.delay(0, 0, 0)
    assert desk.release() == (0, 1, 2)
    desk.delay(0)
    move = desk.begin_release()
    assert move is not None
    assert (move.batch, move.base_sequence) == (2, 3)
    desk.submit(FinishMove(2))
    desk.delay(0)
    assert desk.submit(Release(PRODUCER_ID, 1)) == Refused(ScheduleProblem.PRODUCER_ID_USED)
    desk.submit(Release(PRODUCER_ID + 1, 0))
    move = desk.schedule.pending_move()
    assert move is not None
    assert (move.batch, move.base_sequence) == (3, 0)


def test_batch_is_no_larger_than_allowed() -> None:
    desk = ScheduleDesk(ScheduleConfig(batch_count_max=3))
    desk.delay(*[7] * 8)
    desk.now_ms += 7
    assert [len(sources) for sources in desk.pass_time(SECOND)] == [3, 3, 2]


# ------------------------------------------------------------------ clocks


def test_clock_that_is_put_back_makes_messages_wait(desk: ScheduleDesk) -> None:
    place = desk.delay(10 * SECOND)
    desk.now_ms += 9 * SECOND
    desk.ring()
    desk.now_ms -= HOUR
    assert desk.pass_time(HOUR) == []
    assert desk.pass_time(SECOND) == [(place,)]


def test_message_that_comes_after_the_clock_was_put_back_is_released_by_that_clock(desk: ScheduleDesk) -> None:
    desk.delay(1)
    desk.now_ms += YEAR
    assert desk.pass_time(0) == [(0,)]
    desk.now_ms -= YEAR
    place = desk.delay(HOUR)
    assert desk.pass_time(HOUR - 1) == []
    assert desk.pass_time(1) == [(place,)]


def test_clock_that_is_put_forward_makes_messages_due(desk: ScheduleDesk) -> None:
    desk.delay(3 * DAY, HOUR, 100 * DAY)
    desk.spill()
    desk.now_ms += 4 * DAY
    assert flat(desk.pass_time(0)) == [1, 0]


def test_burst_after_downtime_is_throttled_and_in_order() -> None:
    desk = ScheduleDesk(ScheduleConfig(release_rate_max=1_000, batch_count_max=100))
    for _batch in range(30):
        desk.delay(*range(HOUR, HOUR + 100))
    desk.checkpoint()
    desk.now_ms += DAY
    desk.restart()
    first = desk.pass_time(SECOND)
    assert 1_000 <= len(flat(first)) <= 1_100
    rest = desk.pass_time(3 * SECOND)
    dues = [position % 100 for position in flat(first + rest)]
    assert len(dues) == 3_000
    assert dues == sorted(dues)


# ------------------------------------------------------------------ cancelling, another time


def test_cancelled_message_is_never_released(desk: ScheduleDesk) -> None:
    place = desk.delay(SECOND)
    assert desk.submit(Cancel(place)) == Done()
    assert desk.schedule.pending_count == 0
    assert desk.pass_time(DAY) == []
    assert desk.submit(Cancel(place)) == Refused(ScheduleProblem.NOT_PENDING)


def test_cancelling_loses_against_the_intent(desk: ScheduleDesk) -> None:
    place = desk.delay(0)
    desk.begin_release()
    assert desk.schedule.is_being_released(place)
    assert desk.submit(Cancel(place)) == Refused(ScheduleProblem.BEING_RELEASED)
    assert desk.submit(Reschedule(desk.end, place, desk.now_ms)) == Refused(ScheduleProblem.BEING_RELEASED)
    desk.submit(FinishMove(1))
    assert desk.submit(Cancel(place)) == Refused(ScheduleProblem.NOT_PENDING)


@pytest.mark.parametrize("delay_ms", [SECOND, 30 * DAY])
def test_message_gets_another_time_and_keeps_its_id(desk: ScheduleDesk, delay_ms: int) -> None:
    place = desk.delay(DAY)
    desk.spill()
    for new_ms in (2 * DAY, delay_ms):
        position = desk.end
        assert desk.submit(Reschedule(position, place, START_MS + new_ms)) == Accepted(1, position)
        assert desk.schedule.place_of(place) == position
    assert desk.schedule.pending_count == 1
    assert desk.pass_time(delay_ms - 1) == []
    assert desk.pass_time(1) == [(2,)]
    assert desk.schedule.place_of(place) is None
    ended = next(record for record in desk.records() if isinstance(record, Ended))
    assert (ended.position, ended.origin) == (2, place)


def test_message_with_another_time_is_cancelled_by_its_id(desk: ScheduleDesk) -> None:
    place = desk.delay(DAY)
    desk.submit(Reschedule(desk.end, place, START_MS + HOUR))
    desk.checkpoint()
    desk.restart()
    assert desk.submit(Cancel(place)) == Done()
    assert desk.pass_time(2 * DAY) == []


# ------------------------------------------------------------------ producers and transactions


def test_batch_that_is_sent_again_is_scheduled_once(desk: ScheduleDesk) -> None:
    batch = ProducerBatch(5, 0, 40)
    desk.delay(SECOND, SECOND, producer=batch)
    assert desk.submit(Schedule(desk.end, (START_MS + 9, START_MS + 9), batch)) == Accepted(0, desk.end)
    desk.pass_time(2 * SECOND)
    # Released meanwhile: it is the same batch still, and after a restart too.
    assert desk.submit(Schedule(desk.end, (START_MS + 9, START_MS + 9), batch)) == Accepted(0, desk.end)
    desk.checkpoint()
    desk.restart()
    assert desk.submit(Schedule(desk.end, (START_MS + 9, START_MS + 9), batch)) == Accepted(0, desk.end)
    assert desk.schedule.pending_count == 0


def test_other_messages_under_the_sequence_of_a_batch_that_was_given_up_are_no_repetition(desk: ScheduleDesk) -> None:
    given_up, other = (ProducerBatch(5, 0, 40, checksum=checksum) for checksum in (11, 12))
    desk.delay(SECOND, SECOND, producer=given_up)
    desk.delay(SECOND, producer=other)
    for is_restarted in (False, True, True):
        if is_restarted:
            desk.checkpoint()
            desk.restart()
        for batch in (given_up, other):
            dues_ms = (START_MS, START_MS) if batch is given_up else (START_MS,)
            assert desk.submit(Schedule(desk.end, dues_ms, batch)) == Accepted(0, desk.end)
    assert desk.schedule.pending_count == 3
    # One that was written before there were checksums may be any.
    assert desk.submit(Schedule(desk.end, (START_MS,), ProducerBatch(5, 0, 40))) == Accepted(0, desk.end)


def test_rest_of_a_batch_is_scheduled_when_it_is_sent_again(desk: ScheduleDesk) -> None:
    batch = ProducerBatch(5, 0, 40)
    desk.delay(SECOND, SECOND, SECOND, producer=batch)
    del desk.rows[2:]
    desk.restart()
    decision = desk.decide(Schedule(2, (1, 2, 3), batch))
    assert decision.records == (Scheduled(2, 3, desk.now_ms, producer=ProducerBatch(5, 0, 40, 2)),)
    assert decision.reply == Accepted(1, 2)


def test_message_of_a_transaction_waits_for_the_commit(desk: ScheduleDesk) -> None:
    place = desk.delay(SECOND, producer=ProducerBatch(5, 0, 0), is_transactional=True)
    assert (desk.schedule.pending_count, desk.schedule.held_count) == (0, 1)
    assert desk.pass_time(HOUR) == []
    assert desk.submit(Cancel(place)) == Refused(ScheduleProblem.NOT_PENDING)
    desk.checkpoint()
    desk.restart()
    assert desk.decide(EndTransaction(5, 0, is_commit=True)).records == (TransactionEnded(5, 0, True, desk.now_ms),)
    assert desk.pass_time(0) == [(place,)]
    assert desk.decide(EndTransaction(5, 0, is_commit=True)).records == ()


def test_message_of_an_aborted_transaction_is_never_released(desk: ScheduleDesk) -> None:
    desk.delay(SECOND, producer=ProducerBatch(5, 0, 0), is_transactional=True)
    desk.submit(EndTransaction(5, 1, is_commit=False))
    assert desk.schedule.held_count == 0
    assert desk.pass_time(HOUR) == []


def test_end_of_an_old_transaction_does_not_end_a_new_one(desk: ScheduleDesk) -> None:
    desk.delay(SECOND, producer=ProducerBatch(5, 3, 0), is_transactional=True)
    desk.submit(EndTransaction(5, 2, is_commit=True))
    assert desk.schedule.held_count == 1


# ------------------------------------------------------------------ files, restarts, views


def test_far_messages_are_in_files_and_not_in_memory(desk: ScheduleDesk) -> None:
    desk.delay(*(HOUR * hour for hour in range(1, 1_000)))
    desk.checkpoint()
    assert desk.schedule.spill_bytes == 0
    assert desk.schedule.near_count == 0
    assert sum(len(data) for data in desk.files.values()) == 999 * 16
    assert len(desk.files) < 100
    assert sum(count for _start, _end, count in desk.schedule.spans()) == 999
    assert len(flat(desk.pass_time(1_000 * HOUR))) == 999


def test_short_delay_never_comes_to_a_file(desk: ScheduleDesk) -> None:
    desk.ring()
    desk.delay(SECOND)
    assert desk.pass_time(SECOND) == [(0,)]
    assert desk.checkpoint().buckets == ()
    assert desk.files == {}


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_restart_loses_nothing_and_repeats_nothing(has_checkpoint: bool) -> None:
    desk = ScheduleDesk()
    desk.delay(SECOND, HOUR, 30 * DAY, 2 * SECOND, 500 * DAY)
    assert flat(desk.pass_time(SECOND)) == [0]
    if has_checkpoint:
        desk.checkpoint()
    desk.submit(Cancel(3))
    desk.delay(HOUR)
    desk.restart()
    last = desk.end - 1
    assert desk.schedule.pending_since(0, 10) == [1, 2, 4, last]
    assert flat(desk.pass_time(501 * DAY)) == [1, last, 2, 4]
    assert desk.schedule.pending_count == 0


def test_restart_knows_the_batch_that_is_under_way(desk: ScheduleDesk) -> None:
    desk.delay(0, HOUR)
    move = desk.begin_release()
    desk.restart()
    assert desk.schedule.pending_move() == move
    desk.submit(FinishMove(1))
    assert desk.schedule.pending_since(0, 10) == [1]
    assert desk.schedule.last_move() == move


def test_file_that_is_half_read_is_read_again_after_a_restart(desk: ScheduleDesk) -> None:
    places = desk.delay(*(6 * HOUR + second * SECOND for second in range(100))) + 99
    desk.checkpoint()
    desk.now_ms += 6 * HOUR
    (read,) = desk.schedule.open_near(desk.now_ms)
    desk.schedule.load(read.name, desk.files[read.name.number][:160], is_last=False, now_ms=desk.now_ms)
    # Nothing goes before all of it is known.
    assert desk.submit(Release(PRODUCER_ID, 0)) == Done()
    assert desk.schedule.pending_move() is None
    desk.checkpoint()
    desk.restart()
    assert flat(desk.pass_time(HOUR)) == list(range(places + 1))


def test_list_is_in_the_order_of_arrival_and_has_pages(desk: ScheduleDesk) -> None:
    desk.delay(*[HOUR] * 10)
    desk.submit(Cancel(4))
    assert desk.schedule.pending_since(0, 4) == [0, 1, 2, 3]
    assert desk.schedule.pending_since(4, 4) == [5, 6, 7, 8]
    assert desk.schedule.pending_since(9, 4) == [9]


def test_log_is_needed_from_the_first_message_that_waits(desk: ScheduleDesk) -> None:
    assert desk.schedule.needed_from is None
    desk.delay(SECOND, HOUR)
    desk.delay(SECOND, producer=ProducerBatch(5, 0, 0), is_transactional=True)
    desk.delay(HOUR)
    assert desk.schedule.needed_from == 0
    desk.pass_time(2 * SECOND)
    desk.submit(Cancel(1))
    assert desk.schedule.needed_from == 2
    desk.submit(EndTransaction(5, 0, is_commit=False))
    assert desk.schedule.needed_from == 3


def test_position_that_is_in_use_is_our_mistake(desk: ScheduleDesk) -> None:
    desk.delay(1, 1)
    with pytest.raises(AssertionError):
        desk.submit(Schedule(1, (START_MS,)))


def test_keys_tell_messages_from_other_rows() -> None:
    batch = ProducerBatch(5, 1, 77, 3)
    for producer in (None, batch):
        assert read_entry_key(entry_key(12, producer)) == (12, producer)
    assert entry_key(12, batch) != entry_key(13, batch)
    fired = CronFired("nightly", 5, 6)
    assert key_of(fired) == b"!fired/nightly"
    assert key_of(MoveDone(Move(1, 2, 0, 0, ()), 5)) == MOVE_KEY
    assert key_of(Ended(3, 3, End.RELEASED, 5), entry=entry_key(3)) == entry_key(3)
    assert key_of(TransactionEnded(1, 0, True, 5)) is None
    assert read_entry_key(MOVE_KEY) is None
    assert read_entry_key(b"!cron/" + b"x" * 20) is None


def test_file_that_a_checkpoint_does_not_name_is_never_written_to_again(desk: ScheduleDesk) -> None:
    """Whoever finishes the checkpoint deletes it, and that may be later than the next message."""
    desk.ring()
    desk.submit(Cancel(desk.delay(30 * SECOND)))
    stored = desk.schedule.checkpoint(desk.end).stored
    assert stored.buckets == ()
    desk.delay(30 * SECOND)
    (write,) = desk.schedule.take_spill()
    assert write.name.number >= stored.next_bucket
