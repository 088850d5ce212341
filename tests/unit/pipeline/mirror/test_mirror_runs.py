"""Offsets of a mirror against a model: a translated position leaves nothing unread, and little is read twice."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from penstock.pipeline.mirror.runs import KEPT_COUNT, Lineage, Run, RunBook, Stretch, joined, slot_of


class Model:
    """A source with holes, mirrored in transactions whose markers take offsets of the target."""

    def __init__(self, seed: int, transactions: int) -> None:
        self.random = random.Random(seed)
        self.book = RunBook()
        # Source and target offset of every record.
        self.records: list[tuple[int, int]] = []
        self.source_next = self.random.choice((0, 0, 700))
        self.target_next = self.random.choice((0, 0, 30))
        self.runs = []
        for _ in range(transactions):
            self.mirror_some()

    def mirror_some(self) -> None:
        stretches = []
        for _ in range(self.random.randint(1, 4)):
            self.source_next += self.random.choice((0, 0, 1, 5))
            count = self.random.randint(1, 20)
            stretches.append(Stretch(self.source_next, self.target_next, count))
            self.records += [(self.source_next + n, self.target_next + n) for n in range(count)]
            self.source_next += count
            self.target_next += count
        # The marker.
        self.target_next += 1
        run = self.book.make(stretches, self.source_next)
        self.book.add(run)
        self.runs.append(run)


@pytest.mark.parametrize("seed", range(12))
def test_a_translated_position_has_everything_unread_after_it(seed: int) -> None:
    model = Model(seed, transactions=seed * 25 + 1)
    for source in range(model.source_next + 2):
        translated = model.book.translate(source)
        assert translated is not None
        place = bisect_left(model.records, (source, -1))
        first_unread = model.records[place][1] if place < len(model.records) else model.target_next
        assert translated <= first_unread


@pytest.mark.parametrize("seed", range(10))
def test_the_last_transactions_are_translated_exactly(seed: int) -> None:
    model = Model(seed, transactions=400)
    recent = min(stretch.source for run in model.runs[-KEPT_COUNT:] for stretch in run.stretches)
    for source, target in model.records:
        if source >= recent:
            assert model.book.translate(source) == target


def test_who_has_read_everything_reads_nothing_again() -> None:
    model = Model(7, transactions=100)
    last = model.records[-1]
    assert model.book.translate(last[0] + 1) == last[1] + 1
    assert model.book.translate(model.source_next + 100) == last[1] + 1


def test_a_million_runs_are_a_few_hundred_records() -> None:
    assert len({slot_of(number) for number in range(1_000_000)}) < 20 * KEPT_COUNT + 1


def test_runs_that_come_back_in_another_order_say_the_same() -> None:
    model = Model(3, transactions=300)
    kept = {slot_of(run.number): run for run in model.runs}
    again = RunBook()
    shuffled = list(kept.values())
    random.Random(1).shuffle(shuffled)
    for run in shuffled:
        again.add(run)
    assert again.source_next == model.book.source_next
    for source in range(model.source_next):
        assert again.translate(source) == model.book.translate(source)


def test_a_transaction_of_very_many_stretches_keeps_its_last() -> None:
    book = RunBook()
    run = book.make([Stretch(10 * n, n, 1) for n in range(1_000)], 9_991)
    book.add(run)
    assert len(run.stretches) <= 64
    assert book.translate(9_991) == 1_000


def test_stretches_side_by_side_are_one() -> None:
    assert joined([Stretch(0, 5, 3), Stretch(3, 8, 2), Stretch(6, 10, 1)]) == [Stretch(0, 5, 5), Stretch(6, 10, 1)]


def test_nothing_mirrored_is_translated_to_nothing() -> None:
    assert RunBook().translate(5) is None
    assert RunBook().source_next is None


def test_runs_of_a_copy_that_is_gone_count_no_more() -> None:
    old = Lineage("source", "copy")
    book = RunBook(old)
    for number in range(100):
        book.add(book.make([Stretch(10 * number, 10 * number, 10)], 10 * number + 10))
    kept = book._runs.copy()

    again = book.taken_up(Lineage("another source", "another copy"))
    assert again is not None
    assert again.source_next is None
    for number in range(70):
        run = again.make([Stretch(500 + number, number, 1)], 501 + number)
        again.add(run)
        kept[slot_of(run.number, run.first)] = run
    # What compaction leaves, in any order: the last run of each slot.
    shuffled = list(kept.values())
    random.Random(2).shuffle(shuffled)
    read = RunBook()
    for run in shuffled:
        read.add(run)
    assert read.source_next == 570
    # Before everything that the copy holds: its beginning, however sparse the runs have become.
    assert read.translate(3) == 0
    assert read.taken_up(Lineage("another source", "another copy")) is read
    assert read.taken_up(Lineage("a third source", "another copy")) is None


def test_runs_that_tell_no_ids_are_believed() -> None:
    book = RunBook()
    book.add(Run(0, 10, (Stretch(0, 0, 10),)))
    taken = book.taken_up(Lineage("source", "copy"))
    assert taken is book
    assert book.make([], 11).target_id == "copy"
