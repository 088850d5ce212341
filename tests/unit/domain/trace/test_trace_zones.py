"""Zones name too many places at times, and never too few."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.group.records import OffsetStored, offset_key
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.records import (
    Died,
    Finished,
    Leased,
    Move,
    MoveDone,
    MoveIntended,
    Passed,
    Paused,
    QueueRecord,
    Returned,
    Stored,
    Take,
    write_record,
)
from penstock.domain.queue.values import Cause, Range
from penstock.domain.schedule.records import ProducerBatch, entry_key
from penstock.domain.trace.zones import (
    BUCKET_BITS,
    NARROW,
    NARROW_BUCKETS_MAX,
    WIDE,
    CommitZones,
    QueueZones,
    ScheduleZones,
    ZoneEntry,
    bucketed,
    commit_key,
    producer_key,
    read_commit,
    speaks_of,
)

ranges = st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 18)).map(lambda pair: (pair[0], pair[0] + pair[1]))
_encode = msgspec.msgpack.Encoder().encode


def covers(entries: list[ZoneEntry], offset: int) -> bool:
    """As a reader looks: narrow ones by where they begin, wide ones one by one."""
    bucket = offset >> BUCKET_BITS
    return any(
        low <= bucket <= high and (key == WIDE or low >= bucket - NARROW_BUCKETS_MAX) for key, low, high in entries
    )


@given(st.lists(ranges, max_size=30))
def test_every_message_of_a_zone_is_found_by_its_entries(touched: list[Range]) -> None:
    entries = bucketed(list(touched))
    for first, last in touched:
        for offset in (first, last, (first + last) // 2):
            assert covers(entries, offset)
    assert all(high - low < NARROW_BUCKETS_MAX for key, low, high in entries if key == NARROW)


def test_neighbours_are_told_as_one() -> None:
    assert bucketed([(number, number) for number in range(1000)]) == [(NARROW, 0, 999 >> BUCKET_BITS)]


def rows(*records: QueueRecord) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(place, b"workers", write_record(record)) for place, record in enumerate(records)]


def test_a_lease_names_what_is_taken_what_comes_again_and_what_is_blocked() -> None:
    take = Take(DEFAULT_LANE, 1000, ((640, 641),), (1, 2), ((6400, 1),), ((64_000, 64_000),))
    leased = Leased(1, "c", 2, 1, (take,), ((64, 64),))
    entries = QueueZones().entries(rows(leased))
    for offset in (64, 640, 6400, 64_000):
        assert covers(entries, offset)
        assert speaks_of(leased, offset)
    assert not covers(entries, 640_000)
    assert not speaks_of(leased, 642)
    assert covers(QueueZones().entries(rows(Passed((take,), 1))), 6400)


def test_the_end_of_a_move_is_found_by_the_messages_of_its_intent() -> None:
    zones = QueueZones()
    move = Move(3, bytes(16), 0, 7, 0, 0, ((6400, 6401),))
    zones.entries(rows(MoveIntended(move, 1)))
    assert covers(zones.entries(rows(MoveDone(3, 2, 5))), 6400)
    # Of an intent that nobody remembers it says nothing: whoever needs it looks behind the intent.
    assert QueueZones().entries(rows(MoveDone(3, 2, 5))) == []


def test_what_happens_to_a_whole_queue_is_about_every_message() -> None:
    assert covers(QueueZones().entries(rows(Paused(1))), 1 << 40)


def test_snapshots_are_passed_over_and_so_is_what_cannot_be_read() -> None:
    stored = Stored(
        is_open=True,
        is_paused=False,
        log_start=0,
        next_number=1,
        delivered_count=0,
        cursors=((4, 10),),
        holds=(),
        failures=(),
        spans=(),
        keys=(),
        expiries=(),
        move=None,
        is_moving=False,
    )
    broken: list[tuple[int, bytes | None, bytes | None]] = [(0, b"workers", b"\x92\xa4what"), (1, b"workers", None)]
    assert QueueZones().entries([*rows(stored), *broken]) == []
    one = ((1, 1),)
    others: tuple[QueueRecord, ...] = (
        Finished(one, Cause.ACCEPTED, 1),
        Returned(one, 0, Cause.RELEASED, 1),
        Died(one, Cause.REJECTED, 1),
    )
    assert all(covers(QueueZones().entries(rows(record)), 1) for record in others)


def test_rows_of_a_schedule_are_found_by_the_first_place() -> None:
    entries = ScheduleZones().entries([(9, entry_key(6400), b"whatever"), (10, b"!fired/x", b"x"), (11, None, None)])
    assert entries == [(NARROW, 100, 100)]


def test_rows_of_a_schedule_are_found_by_the_producers_sequence_too() -> None:
    batches = [ProducerBatch(7, 0, sequence, 5) for sequence in (100, 105)]
    found = ScheduleZones().entries([(9, entry_key(9, batch), b"") for batch in batches])
    assert (producer_key(7), 100, 105) in found


def commit(group: str, topic: str, offset: int, producer_id: int = -1) -> tuple[int, bytes | None, bytes | None]:
    stored = OffsetStored(topic, 0, offset, 0, "", 1, producer_id=producer_id)
    return 0, _encode((group, stored.key)), _encode(stored)


def test_commits_are_found_by_partition_and_group_with_the_lowest_and_the_highest_position() -> None:
    entries = CommitZones().entries(
        [
            commit("a", "orders", 5),
            commit("a", "orders", 9),
            commit("a", "orders", 7),
            commit("b", "orders", 3),
            commit("a", "others", 1),
            commit("a", "orders", 99, producer_id=4),
            (0, _encode(("a", offset_key("orders", 0))), None),
            (0, _encode(("a", ("epoch", "", -1))), b"\x90"),
        ]
    )
    key = commit_key("orders", 0)
    of_orders = sorted((low, high) for name, low, high in entries if key <= name <= key | 0xFFFF_FFFF)
    assert of_orders == [(3, 3), (5, 9)]
    assert len(entries) == 3


def test_a_commit_that_waits_for_its_transaction_does_not_count() -> None:
    assert read_commit(*commit("a", "orders", 5, producer_id=4)[1:]) is None
    found = read_commit(*commit("a", "orders", 5)[1:])
    assert found is not None
    assert (found[0], found[1].offset) == ("a", 5)
