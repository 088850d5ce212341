"""What the stories of nodes are judged by: no excuse that is too wide, no check that lets everything pass."""

from __future__ import annotations

from random import Random

import pytest

from penstock.codec.batch.header import patch
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.batch.rewrite import header_of
from support.sim.clock import EPOCH_MS, SimClock
from support.sim.excuses import Excuses
from support.sim.invariants import ONE_LEASE_HOLDER, QUEUE_ACK_KEPT, InvariantError
from support.sim.ledger import Register
from support.sim.loads.queue_books import Delivery, Job, QueueBooks
from support.sim.loop import SimLoop
from support.storage.faulty_files import FaultyFiles

LOG = "/logs/topic/0"
PATH = f"{LOG}/00000000000000000000.log"


def batch(base_offset: int) -> bytes:
    """Of two records."""
    built = build_batch([Record(value=b"a"), Record(value=b"b")])
    patch(built, 0, header_of(built), base_offset=base_offset, leader_epoch=0)
    return bytes(built)


def log_with_one_synced_batch(files: FaultyFiles) -> int:
    """Of offsets 0 and 1, with 2 and 3 behind it in the cache alone; the size of each."""
    files.make_root(LOG)
    file = files.open(PATH, create=True)
    files.sync_directory(LOG)
    first, second = batch(0), batch(2)
    file.write_at(first, 0)
    file.sync()
    # Cut short, and continued.
    file.write_at(second[:30], len(first))
    file.write_at(second[30:], len(first) + 30)
    return len(first)


def test_a_power_cut_excuses_what_was_not_synced_and_nothing_else() -> None:
    files = FaultyFiles()
    excuses = Excuses(files)
    log_with_one_synced_batch(files)
    assert not excuses.may_be_damaged("topic/0", 2)
    excuses.note_unsynced()
    assert [excuses.may_be_damaged("topic/0", offset) for offset in range(5)] == [False, False, True, True, False]
    assert not excuses.may_be_damaged("topic/1", 2)
    assert not excuses.is_rotten("topic/0", 2)


def test_a_rotten_bit_excuses_its_batch() -> None:
    files = FaultyFiles()
    excuses = Excuses(files)
    size = log_with_one_synced_batch(files)
    excuses.rot(PATH, 8 * (size - 1))
    assert [excuses.is_rotten("topic/0", offset) for offset in range(3)] == [True, True, False]
    assert files.image()[PATH] != files.content(PATH)[:size]


def test_a_position_that_was_written_over_is_not_possible() -> None:
    register = Register()
    assert register.possible() == [-1]
    first = register.ask(1, 1.0)
    assert register.possible() == [-1, 1]
    first.confirmed_at = 2.0
    second = register.ask(2, 3.0)
    assert register.possible() == [1, 2]
    second.confirmed_at = 4.0
    assert register.possible() == [2]
    # Whoever asked before it was confirmed may have been answered with the one before.
    assert register.possible(asked_after=3.5) == [1, 2]


def test_a_clock_tells_the_bounds_of_what_was_read_on_it() -> None:
    clock = SimClock(SimLoop(1), Random(1), skew_ms=100)
    assert clock.lowest_ms(0.0) == clock.now_ms() == clock.highest_ms() == EPOCH_MS + 100
    clock.step_ms(-1_000)
    assert (clock.lowest_ms(0.0), clock.highest_ms()) == (EPOCH_MS - 900, EPOCH_MS + 100)


def held(until_ms: int = 1_000) -> QueueBooks:
    books = QueueBooks({b"job": Job()})
    books.deliver(b"job", (0, 0), Delivery(1, 1, until_ms), highest_ms=0)
    return books


def test_a_message_is_with_one_until_its_lease_has_run_out() -> None:
    held().deliver(b"job", (0, 0), Delivery(2, 2, 2_000), highest_ms=1_000)
    with pytest.raises(InvariantError, match=ONE_LEASE_HOLDER):
        held().deliver(b"job", (0, 0), Delivery(2, 2, 2_000), highest_ms=999)
    with pytest.raises(InvariantError, match=ONE_LEASE_HOLDER):
        held().deliver(b"job", (0, 0), Delivery(1, 2, 2_000), highest_ms=1_000)


def test_what_was_accepted_does_not_come_again() -> None:
    books = held()
    books.accept(b"job", Delivery(1, 1, 1_000))
    with pytest.raises(InvariantError, match=QUEUE_ACK_KEPT):
        books.deliver(b"job", (0, 0), Delivery(2, 2, 2_000), highest_ms=1_000)
