from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.domain.queue.commands import (
    Act,
    Close,
    ConsumerGone,
    Found,
    MoveStart,
    Open,
    Outcome,
    Pause,
    QueueProblem,
    Receive,
    Received,
    Refused,
    Resume,
    Settle,
    Settled,
    Settlement,
    Snapshot,
    TrimLog,
    WakeReceivers,
)
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.machine import Queue, deletable_below
from penstock.domain.queue.records import Stored, read_record, write_record
from penstock.domain.queue.values import (
    NO_KEY,
    BackOff,
    BackOffKind,
    Cause,
    HoldKind,
    Limit,
    Ordering,
    QueueConfig,
)
from support.queue.desk import QueueDesk, counts, offsets, rebuilt


def test_a_message_is_with_one_consumer_until_it_is_settled() -> None:
    desk = QueueDesk(log_end=10)
    first = desk.receive("ann", 4)
    second = desk.receive("bob", 10)
    assert offsets(first) == [0, 1, 2, 3]
    assert offsets(second) == [4, 5, 6, 7, 8, 9]
    assert not desk.receive("cleo").deliveries


def test_the_finished_offset_waits_for_the_first_unfinished_message() -> None:
    desk = QueueDesk(log_end=10)
    received = desk.receive("ann", 10)
    desk.settle(Act.ACCEPT, 1, 9, number=received.number)
    assert desk.queue.finished_below == 0
    desk.settle(Act.ACCEPT, 0, number=received.number)
    assert desk.queue.finished_below == 10
    assert desk.queue.span_count == 0


def test_an_old_receipt_does_not_settle_a_newer_delivery() -> None:
    desk = QueueDesk(log_end=1)
    old = desk.receive("ann")
    desk.pass_time(1_000)
    new = desk.receive("bob")
    assert desk.settle(Act.ACCEPT, 0, number=old.number) is Outcome.NOT_HELD
    assert desk.settle(Act.ACCEPT, 0, number=new.number) is Outcome.DONE


def test_a_late_acceptance_counts_while_nobody_else_has_the_message() -> None:
    desk = QueueDesk(log_end=1)
    received = desk.receive("ann")
    desk.pass_time(1_000)
    assert desk.settle(Act.RENEW, 0, number=received.number) is Outcome.NOT_HELD
    assert desk.settle(Act.ACCEPT, 0, number=received.number) is Outcome.DONE
    assert not desk.receive("bob").deliveries


def test_a_repeated_acceptance_is_told_that_all_is_finished() -> None:
    desk = QueueDesk(log_end=2)
    received = desk.receive("ann", 1)
    desk.accept(received)
    assert desk.settle(Act.ACCEPT, 0, number=received.number) is Outcome.FINISHED
    assert desk.settle(Act.ACCEPT, 1, number=received.number) is Outcome.NOT_HELD


def test_one_message_named_twice_in_a_command_is_settled_once() -> None:
    desk = QueueDesk(log_end=4)
    number = desk.receive("ann").number
    items = (
        Settlement(1, 2, Act.ACCEPT, number),
        Settlement(2, 3, Act.REJECT, number),
        Settlement(0, 0, Act.GAP, number),
    )
    reply = desk.submit(Settle(items))
    assert reply == Settled((Outcome.DONE, Outcome.NOT_HELD, Outcome.DONE))
    assert desk.queue.finished_below == 3


def test_a_whole_command_does_all_or_nothing() -> None:
    desk = QueueDesk(log_end=2)
    desk.receive("ann", 1)
    items = (Settlement(0, 0, Act.ACCEPT), Settlement(1, 1, Act.ACCEPT))
    reply = desk.submit(Settle(items, "ann", is_whole=True))
    assert reply == Settled((Outcome.DONE, Outcome.NOT_HELD))
    assert desk.queue.look_up(0) is not None


def test_without_receipt_and_name_nothing_is_settled() -> None:
    desk = QueueDesk(log_end=1)
    desk.receive("ann")
    assert desk.settle(Act.ACCEPT, 0) is Outcome.NOT_HELD
    assert desk.settle(Act.ACCEPT, 0, consumer="bob") is Outcome.NOT_HELD
    assert desk.settle(Act.ACCEPT, 0, consumer="ann") is Outcome.DONE


def test_a_lease_ends_at_its_deadline_and_the_waiting_are_woken() -> None:
    desk = QueueDesk(log_end=3)
    desk.receive("ann", 3)
    assert desk.queue.next_deadline_ms() == 2_000
    desk.pass_time(999)
    assert not desk.receive("bob").deliveries
    desk.pass_time(1)
    assert WakeReceivers() in desk.effects
    again = desk.receive("bob")
    assert offsets(again) == [0, 1, 2]
    assert counts(again) == [2, 2, 2]


def test_a_renewed_lease_ends_later_and_keeps_its_receipt() -> None:
    desk = QueueDesk(log_end=2)
    received = desk.receive("ann")
    assert desk.settle(Act.RENEW, 0, number=received.number, delay_ms=5_000) is Outcome.DONE
    desk.pass_time(1_000)
    assert offsets(desk.receive("bob")) == [1]
    assert desk.settle(Act.ACCEPT, 0, number=received.number) is Outcome.DONE


def test_a_released_message_comes_back_after_its_delay() -> None:
    desk = QueueDesk(log_end=1)
    received = desk.receive("ann")
    desk.settle(Act.RELEASE, 0, number=received.number, delay_ms=300)
    desk.pass_time(299)
    assert not desk.receive("ann").deliveries
    desk.pass_time(1)
    assert counts(desk.receive("ann")) == [2]


def test_back_off_doubles_up_to_its_limit_and_is_spread_by_chance() -> None:
    policy = BackOff(BackOffKind.EXPONENTIAL, initial_ms=100, ms_max=1_000, jitter_share=0.5)
    assert [policy.delay_ms(count, lambda: 0.0) for count in range(1, 6)] == [100, 200, 400, 800, 1_000]
    assert policy.delay_ms(1, lambda: 0.99) == 149
    assert policy.delay_ms(1_000_000, lambda: 0.0) == 1_000
    assert BackOff(initial_ms=70).delay_ms(9, lambda: 0.5) == 70
    assert BackOff().delay_ms(3, lambda: 0.5) == 0


def test_a_queue_without_dead_letters_drops_what_was_tried_often_enough() -> None:
    desk = QueueDesk(QueueConfig(lease_ms=1_000, deliveries_max=2, has_dead_letters=False), log_end=1)
    for _attempt in range(2):
        assert desk.receive("ann").deliveries
        desk.pass_time(1_000)
    assert not desk.receive("ann").deliveries
    assert desk.queue.finished_below == 1


def test_without_a_limit_a_message_is_delivered_for_ever() -> None:
    desk = QueueDesk(QueueConfig(lease_ms=1_000, deliveries_max=0), log_end=1)
    for attempt in range(1, 50):
        assert counts(desk.receive("ann")) == [attempt]
        desk.pass_time(1_000)


# ------------------------------------------------------------------ share groups (KIP-932)


def test_a_share_session_that_closes_gives_its_messages_and_their_count_back() -> None:
    desk = QueueDesk(log_end=2)
    desk.receive("ann", 1)
    desk.receive("bob", 1)
    desk.submit(ConsumerGone("ann"))
    again = desk.receive("cleo")
    assert offsets(again) == [0]
    assert counts(again) == [1]


def test_a_batch_is_taken_whole_and_its_holes_are_settled_as_gaps() -> None:
    desk = QueueDesk()
    found = (Found(DEFAULT_LANE, 0, 30, ((0, 9), (10, 19), (20, 29))),)
    received = desk.submit(Receive("ann", 15, found, takes_whole_ranges=True))
    assert isinstance(received, Received)
    assert offsets(received) == list(range(20))
    items = (Settlement(0, 4, Act.ACCEPT), Settlement(5, 6, Act.GAP), Settlement(7, 19, Act.ACCEPT))
    assert desk.submit(Settle(items, "ann", is_whole=True)) == Settled((Outcome.DONE,) * 3)
    assert desk.queue.finished_below == 20


def test_the_same_offsets_can_be_acquired_released_and_acknowledged_in_parts() -> None:
    """The example of KIP-932: 110 is accepted, 111-118 are released, 119 is rejected."""
    desk = QueueDesk(QueueConfig(has_dead_letters=False), start=100, log_end=120)
    assert offsets(desk.receive("ann", 10)) == list(range(100, 110))
    assert offsets(desk.receive("bob", 10)) == list(range(110, 120))
    items = (Settlement(110, 110, Act.ACCEPT), Settlement(111, 118, Act.RELEASE), Settlement(119, 119, Act.REJECT))
    assert desk.submit(Settle(items, "bob", is_whole=True)) == Settled((Outcome.DONE,) * 3)
    assert desk.queue.finished_below == 100
    assert desk.settle(Act.ACCEPT, 100, 109, consumer="ann") is Outcome.DONE
    assert desk.queue.finished_below == 111
    again = desk.receive("ann")
    assert offsets(again) == list(range(111, 119))
    assert counts(again) == [2] * 8
    assert desk.settle(Act.ACCEPT, 111, 118, consumer="ann") is Outcome.DONE
    assert desk.queue.finished_below == 120


def test_holes_control_batches_and_aborted_records_are_passed_over() -> None:
    desk = QueueDesk()
    received = desk.receive("ann", 10, found=(Found(DEFAULT_LANE, 0, 20, ((2, 3), (7, 7))),))
    assert offsets(received) == [2, 3, 7]
    assert desk.queue.cursor() == 20
    assert not desk.receive("ann", found=(Found(DEFAULT_LANE, 20, 35, ()),)).deliveries
    assert desk.queue.cursor() == 35


def test_what_was_found_before_somebody_else_received_is_used_as_far_as_it_holds() -> None:
    desk = QueueDesk(log_end=10)
    stale = (Found(DEFAULT_LANE, 0, 10, ((0, 9),)),)
    desk.receive("ann", 4)
    assert offsets(desk.receive("bob", 10, found=stale)) == [4, 5, 6, 7, 8, 9]
    ahead = (Found(DEFAULT_LANE, 12, 20, ((12, 19),)),)
    assert not desk.receive("bob", 10, found=ahead).deliveries
    assert desk.queue.cursor() == 10


# ------------------------------------------------------------------ limits, time to live, order


def test_limits_stop_deliveries_and_say_why() -> None:
    config = QueueConfig(in_flight_max=6, in_flight_per_consumer_max=4)
    desk = QueueDesk(config, log_end=100)
    assert len(offsets(desk.receive("ann", 10))) == 4
    assert desk.receive("ann", 10).limit is Limit.CONSUMER_FULL
    full = desk.receive("bob", 10)
    assert len(offsets(full)) == 2
    assert full.limit is Limit.QUEUE_FULL
    desk.settle(Act.ACCEPT, 0, consumer="ann")
    assert WakeReceivers() in desk.effects
    assert offsets(desk.receive("bob", 10)) == [6]


def test_a_message_is_not_delivered_after_its_time_to_live() -> None:
    desk = QueueDesk()
    found = (Found(DEFAULT_LANE, 0, 4, ((0, 3),), expiries=((1, 1_000), (2, 1_500))),)
    received = desk.receive("ann", found=found)
    assert offsets(received) == [0, 2, 3]
    desk.pass_time(1_000)
    assert offsets(desk.receive("ann")) == [0, 3]
    assert desk.queue.look_up(2) is None


def test_messages_that_expired_are_dead_letters_where_the_queue_keeps_them() -> None:
    desk = QueueDesk(QueueConfig(lease_ms=1_000, keeps_expired=True))
    found = (Found(DEFAULT_LANE, 0, 4, ((0, 3),), expiries=((1, 1_000), (2, 1_500))),)
    desk.receive("ann", found=found)
    desk.pass_time(1_000)
    letters = desk.queue.dying()
    assert [(letter.first, letter.delivery_count) for letter in letters] == [(1, 0), (2, 1)]
    assert {letter.failure.cause for letter in letters} == {Cause.TIME_TO_LIVE_EXPIRED}


def keyed(keys: list[int], since: int = 0) -> tuple[Found, ...]:
    end = since + len(keys)
    return (Found(DEFAULT_LANE, since, end, ((since, end - 1),), keys=tuple(keys)),)


def test_messages_of_a_key_come_one_after_the_other_and_others_flow() -> None:
    desk = QueueDesk(QueueConfig(ordering=Ordering.KEY, lease_ms=1_000))
    log = keyed([7, 7, 8, NO_KEY, 7, NO_KEY])
    first = desk.receive("ann", found=log)
    assert offsets(first) == [0, 2, 3, 5]
    assert desk.queue.stats().blocked_count == 2
    desk.settle(Act.RELEASE, 0, number=first.number, delay_ms=100)
    assert not desk.receive("bob").deliveries
    desk.pass_time(100)
    again = desk.receive("bob")
    assert offsets(again) == [0]
    desk.accept(again)
    assert WakeReceivers() in desk.effects
    second = desk.receive("bob")
    assert offsets(second) == [1]
    assert counts(second) == [1]
    desk.settle(Act.REJECT, 1, number=second.number)
    assert offsets(desk.receive("bob")) == [4]


def test_the_look_ahead_for_keys_ends_somewhere() -> None:
    desk = QueueDesk(QueueConfig(ordering=Ordering.KEY, key_lookahead_max=3))
    received = desk.receive("ann", 10, found=keyed([1] * 10))
    assert offsets(received) == [0]
    assert received.limit is Limit.KEYS_FULL
    assert desk.queue.cursor() == 4
    desk.accept(received)
    assert offsets(desk.receive("ann", 10, found=keyed([1] * 10))) == [1]


def lanes(**ranges: tuple[int, ...]) -> tuple[Found, ...]:
    return tuple(
        Found(int(lane.removeprefix("lane")), 0, 1_000, tuple((offset, offset) for offset in offsets_of_lane))
        for lane, offsets_of_lane in ranges.items()
    )


def test_the_highest_lane_goes_first_and_nothing_of_another_is_lost() -> None:
    desk = QueueDesk()
    found = lanes(lane4=(0, 1, 3), lane9=(2, 500), lane0=(4,))
    received = desk.receive("ann", 3, found=found)
    assert [(each.first, each.lane) for each in received.deliveries] == [(2, 9), (500, 9), (0, 4)]
    rest = desk.receive("ann", 10, found=found)
    assert sorted(offsets(rest)) == [1, 3, 4]
    for each in (received, rest):
        desk.accept(each)
    assert desk.queue.finished_below == 1_000


def test_a_message_that_comes_back_keeps_its_lane() -> None:
    desk = QueueDesk()
    found = lanes(lane4=(0, 1), lane9=(2,), lane1=(3,))
    first = desk.receive("ann", 4, found=found)
    assert offsets(first) == [2, 0, 1, 3]
    desk.pass_time(1_000)
    assert [each.lane for each in desk.receive("bob", 2).deliveries] == [9, 4]


# ------------------------------------------------------------------ hands on


def test_a_paused_queue_delivers_nothing_and_settles_everything() -> None:
    desk = QueueDesk(log_end=5)
    received = desk.receive("ann", 2)
    desk.submit(Pause())
    assert desk.receive("ann").limit is Limit.PAUSED
    desk.accept(received)
    desk.submit(Resume())
    assert desk.effects == (WakeReceivers(),)
    assert offsets(desk.receive("ann")) == [2, 3, 4]


def test_a_purge_moves_the_start_and_makes_receipts_void() -> None:
    desk = QueueDesk(log_end=50)
    received = desk.receive("ann", 5)
    desk.submit(MoveStart(50))
    assert desk.settle(Act.ACCEPT, 0, number=received.number) is Outcome.FINISHED
    assert desk.queue.finished_below == 50
    assert desk.queue.span_count == 0


def test_a_start_set_back_delivers_everything_again() -> None:
    desk = QueueDesk(log_end=5)
    received = desk.receive("ann", 5)
    desk.accept(received)
    desk.submit(MoveStart(2))
    again = desk.receive("ann")
    assert offsets(again) == [2, 3, 4]
    assert again.number > received.number


def test_what_the_log_has_lost_is_finished_when_it_comes_back() -> None:
    desk = QueueDesk(log_end=10)
    held = desk.receive("ann", 4)
    returned = desk.receive("bob", 4)
    desk.settle(Act.RELEASE, 4, 7, number=returned.number, delay_ms=0)
    desk.submit(TrimLog(6))
    assert offsets(desk.receive("cleo", 2)) == [6, 7]
    desk.settle(Act.RELEASE, 0, 1, number=held.number)
    assert desk.settle(Act.ACCEPT, 2, 3, number=held.number) is Outcome.DONE
    assert desk.queue.look_up(0) is None
    assert desk.queue.finished_below == 6


def test_the_log_may_begin_where_every_queue_has_finished() -> None:
    fast, slow = QueueDesk(log_end=10), QueueDesk(log_end=10)
    fast.accept(fast.receive("ann"))
    slow.accept(slow.receive("ann", 3))
    assert deletable_below([fast.queue, slow.queue]) == 3
    assert deletable_below([]) is None


def test_a_queue_made_again_knows_none_of_the_old_receipts() -> None:
    desk = QueueDesk(log_end=1)
    old = desk.receive("ann")
    desk.submit(Close())
    assert desk.submit(Receive("ann", 1, ())) == Refused(QueueProblem.NOT_OPEN)
    desk.submit(Open(0))
    new = desk.receive("ann")
    assert new.number > old.number
    assert desk.settle(Act.ACCEPT, 0, number=old.number) is Outcome.NOT_HELD


# ------------------------------------------------------------------ memory, journal


def test_a_backlog_of_a_hundred_million_costs_nothing() -> None:
    desk = QueueDesk(log_end=100_000_000)
    for _round in range(20):
        desk.accept(desk.receive("ann", 100))
    stats = desk.queue.stats()
    assert (stats.span_count, stats.finished_below) == (0, 2_000)
    assert len(write_record(desk.queue.snapshot())) < 100


def test_acceptances_out_of_order_cost_what_is_left_in_flight() -> None:
    desk = QueueDesk(log_end=20_000)
    received = desk.receive("ann", 20_000)
    items = tuple(Settlement(offset, offset, Act.ACCEPT, received.number) for offset in range(1, 20_000))
    shuffled = Random(3).sample(items, len(items))
    for place in range(0, len(shuffled), 1_000):
        desk.submit(Settle(tuple(shuffled[place : place + 1_000])))
    assert desk.queue.finished_below == 0
    assert desk.queue.span_count == 1
    desk.settle(Act.ACCEPT, 0, number=received.number)
    assert desk.queue.finished_below == 20_000


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_as_bytes_is_the_whole_queue(seed: int) -> None:
    rng = Random(seed)
    desk = QueueDesk(QueueConfig(ordering=Ordering.KEY, lease_ms=1_000))
    for _round in range(30):
        cursor = desk.queue.cursor()
        received = desk.receive(rng.choice("ab"), 6, found=keyed([rng.randrange(4) for _ in range(8)], cursor))
        for offset in offsets(received):
            desk.settle(rng.choice((Act.ACCEPT, Act.RELEASE, Act.REJECT)), offset, number=received.number, text="no")
        desk.pass_time(rng.choice((1, 600)))
    stored = desk.queue.snapshot()
    read = read_record(write_record(stored))
    assert read == stored
    other = Queue(desk.config)
    other.apply(read)
    assert other.snapshot() == stored == rebuilt(desk).snapshot()
    assert other.records_since_snapshot == 0


def test_a_restart_keeps_leases_waits_and_their_times() -> None:
    desk = QueueDesk(log_end=4)
    received = desk.receive("ann")
    desk.settle(Act.RELEASE, 3, number=received.number, delay_ms=5_000)
    desk.settle(Act.ACCEPT, 0, number=received.number)
    desk.queue = rebuilt(desk)
    assert desk.queue.next_deadline_ms() == 2_000
    assert not desk.receive("bob").deliveries
    assert desk.settle(Act.ACCEPT, 1, number=received.number) is Outcome.DONE
    desk.pass_time(1_000)
    assert offsets(desk.receive("bob")) == [2]
    desk.pass_time(4_000)
    assert 3 in offsets(desk.receive("bob"))


def test_a_snapshot_is_a_record_like_any_other() -> None:
    desk = QueueDesk(log_end=5)
    desk.receive("ann", 3)
    desk.submit(Snapshot())
    assert isinstance(desk.records()[-1], Stored)
    assert desk.queue.records_since_snapshot == 0
    view = desk.queue.look_up(1)
    assert view is not None
    assert (view.kind, view.consumer, view.delivery_count) == (HoldKind.LEASED, "ann", 1)


def test_a_journal_that_nobody_wrote_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        read_record(b"\x93\xa5other\x01\x02")
