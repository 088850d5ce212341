"""A log that follows another one: what it takes, what it gives on, and where it begins."""

from __future__ import annotations

import errno

import pytest

from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.rewrite import filler_batch
from penstock.domain.log.compaction import CompactionRules
from penstock.storage.config import LogConfig
from penstock.storage.errors import StorageError
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.log.replica import NotReplicated, ReplicaRefusal
from support.storage.faulty_files import FaultyFiles
from support.storage.log_desk import LogDesk

COMPACTED = LogConfig(compaction=CompactionRules())


def replicate(desk: LogDesk, *batches: bytes | bytearray, epoch: int = 0, may_skip: bool = False) -> object:
    data = memoryview(b"".join(batches))
    outcome = desk.log.append_replicated(data, leader_epoch=epoch, may_skip=may_skip)
    return outcome.why if isinstance(outcome, NotReplicated) else outcome


def facts(desk: LogDesk) -> tuple[object, ...]:
    log = desk.log
    return log.log_end, log.size_bytes, log.known_producers.to_bytes(), log.epochs.entries(), log.unsaved_batches


def read_as_replica(desk: LogDesk, offset: int) -> bytes:
    plan = desk.log.plan_read(offset, bytes_max=1 << 20, is_replica=True)
    assert isinstance(plan, ReadPlan), plan
    loaded = plan.load_cached()
    assert loaded is not None
    return bytes(loaded)


# --- what is taken ---------------------------------------------------------------------------------------------------


def test_follower_holds_the_bytes_of_its_leader() -> None:
    leader, follower = LogDesk(), LogDesk()
    sent = [leader.append(b"a", leader_epoch=3), leader.append(b"b", b"c", leader_epoch=3)]
    assert replicate(follower, *sent, epoch=3) is None
    assert (follower.log.log_end, follower.log.readable_end) == (3, 0)
    follower.sync()
    assert follower.read(0) == b"".join(sent)
    assert follower.log.epochs.entries() == leader.log.epochs.entries() == [(3, 0)]


def test_follower_knows_producers_and_transactions_of_its_leader() -> None:
    leader, follower = LogDesk(), LogDesk()
    leader.append(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    leader.append_in_transaction(8)
    leader.append_in_transaction(9)
    leader.append_marker(9, is_commit=True)
    assert replicate(follower, read_as_replica(leader, 0)) is None
    assert follower.log.known_producers.to_bytes() == leader.log.known_producers.to_bytes()


def test_nothing_sent_is_nothing_done() -> None:
    desk = LogDesk()
    assert replicate(desk) is None
    assert desk.log.segments == []


@pytest.mark.parametrize("byte", [30, 64])
def test_broken_batch_is_refused_with_all_that_came_with_it(byte: int) -> None:
    desk = LogDesk()
    good, bad = desk.batch(b"a"), desk.batch(b"b", base_offset=1)
    bad[byte] ^= 1
    before = facts(desk)
    assert replicate(desk, good, bad) is ReplicaRefusal.CORRUPT
    assert facts(desk) == before


def test_batch_that_was_cut_off_on_the_way_is_refused() -> None:
    desk = LogDesk()
    assert replicate(desk, desk.batch(b"abc")[:-1]) is ReplicaRefusal.CORRUPT


def test_gap_is_refused_in_a_dense_log_whatever_the_leader_says() -> None:
    desk = LogDesk()
    before = facts(desk)
    assert replicate(desk, desk.batch(b"a"), desk.batch(b"c", base_offset=2), may_skip=True) is ReplicaRefusal.GAP
    assert facts(desk) == before


def test_gap_is_refused_in_a_compacted_log_unless_the_leader_says_so() -> None:
    desk = LogDesk(config=COMPACTED)
    assert replicate(desk, desk.batch(b"c", base_offset=2)) is ReplicaRefusal.GAP
    assert desk.log.log_end == 0


def test_gap_of_a_compacted_log_is_filled_and_survives_a_restart() -> None:
    desk = LogDesk(config=COMPACTED)
    sent = desk.batch(b"c", base_offset=5, leader_epoch=2)
    assert replicate(desk, sent, epoch=2, may_skip=True) is None
    desk.sync()
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert [(header.base_offset, header.record_count) for _, header in walk_headers(desk.read(0))] == [(0, 0), (5, 1)]
    assert (desk.read(5), desk.log.epochs.entries()) == (bytes(sent), [(2, 0)])


def test_gap_wider_than_a_segment_is_refused() -> None:
    desk = LogDesk(config=COMPACTED)
    assert replicate(desk, desk.batch(b"c", base_offset=1 << 33), may_skip=True) is ReplicaRefusal.GAP


def test_rest_of_a_filler_that_the_leader_made_of_several_batches_is_taken() -> None:
    desk = LogDesk(config=COMPACTED)
    replicate(desk, desk.batch(b"a"), desk.batch(b"b", base_offset=1))
    filler = filler_batch(base_offset=1, next_offset=5, leader_epoch=0)
    assert replicate(desk, filler, desk.batch(b"f", base_offset=5)) is None
    desk.sync()
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.offsets(desk.read(0)) == [0, 1, 2, 5]


@pytest.mark.parametrize("base_offset", [0, 1])
def test_batch_that_is_there_already_is_refused(base_offset: int) -> None:
    desk = LogDesk()
    replicate(desk, desk.batch(b"a", b"b"))
    before = facts(desk)
    assert replicate(desk, desk.batch(b"x", b"y", base_offset=base_offset)) is ReplicaRefusal.OVERLAP
    assert facts(desk) == before


def test_filler_of_what_is_there_already_is_refused() -> None:
    desk = LogDesk(config=COMPACTED)
    replicate(desk, desk.batch(b"a", b"b"))
    assert replicate(desk, filler_batch(base_offset=0, next_offset=2, leader_epoch=0)) is ReplicaRefusal.OVERLAP


def test_leader_epochs_do_not_fall() -> None:
    desk = LogDesk()
    assert replicate(desk, desk.batch(b"a", leader_epoch=4), epoch=5) is None
    assert replicate(desk, desk.batch(b"b", base_offset=1, leader_epoch=3), epoch=5) is ReplicaRefusal.EPOCH_FELL
    falling = (desk.batch(b"b", base_offset=1, leader_epoch=5), desk.batch(b"c", base_offset=2, leader_epoch=4))
    assert replicate(desk, *falling, epoch=5) is ReplicaRefusal.EPOCH_FELL
    assert (desk.log.log_end, desk.log.epochs.entries()) == (1, [(4, 0)])


def test_epoch_past_the_leaders_own_is_refused() -> None:
    desk = LogDesk()
    assert replicate(desk, desk.batch(b"a", leader_epoch=6), epoch=5) is ReplicaRefusal.EPOCH_AHEAD
    assert desk.log.epochs.entries() == []


def test_full_disk_leaves_a_follower_as_it_was() -> None:
    desk = LogDesk(FaultyFiles())
    replicate(desk, desk.batch(b"a"))
    before = facts(desk)
    assert isinstance(desk.files, FaultyFiles)
    desk.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(StorageError):
        replicate(desk, desk.batch(b"b", base_offset=1))
    assert facts(desk) == before


# --- what is given on ------------------------------------------------------------------------------------------------


def test_replicas_read_past_the_readable_end_and_nobody_else_does() -> None:
    desk = LogDesk(config=LogConfig(segment_bytes=100))
    first = desk.append(b"a" * 40)
    desk.sync()
    second = desk.append(b"b" * 40)
    assert desk.log.plan_read(1, bytes_max=1 << 20) is None
    assert read_as_replica(desk, 0) == first
    assert read_as_replica(desk, 1) == second
    assert desk.log.plan_read(2, bytes_max=1 << 20, is_replica=True) is None


# --- epochs ----------------------------------------------------------------------------------------------------------


def test_epoch_that_begins_is_known_before_its_first_batch() -> None:
    desk = LogDesk()
    desk.append(b"a", leader_epoch=3)
    desk.log.note_epoch(5)
    assert (desk.log.end_of_epoch(3), desk.log.end_of_epoch(5)) == ((3, 1), (5, 1))
    desk.append(b"b", leader_epoch=5)
    assert (desk.log.end_of_epoch(3), desk.log.end_of_epoch(4), desk.log.end_of_epoch(5)) == ((3, 1), (3, 1), (5, 2))
    assert desk.log.end_of_epoch(6) == (-1, -1)


def test_epochs_end_where_the_log_does_and_not_where_it_is_readable() -> None:
    desk = LogDesk()
    desk.append(b"a", leader_epoch=3)
    assert desk.log.readable_end == 0
    assert desk.log.end_of_epoch(3) == (3, 1)


@pytest.mark.parametrize("clean", [True, False])
def test_epoch_without_a_batch_is_forgotten_by_a_restart(clean: bool) -> None:
    desk = LogDesk()
    desk.append(b"a", leader_epoch=3)
    desk.sync()
    desk.log.note_epoch(5)
    desk.store.checkpoint_now(every_log=True)
    desk.restart(clean=clean)
    assert desk.log.epochs.entries() == [(3, 0)]


# --- the start -------------------------------------------------------------------------------------------------------


def test_start_follows_the_leaders_and_takes_the_head_along() -> None:
    desk = LogDesk(config=LogConfig(segment_bytes=100))
    for _ in range(5):
        desk.append(b"a" * 40)
    desk.sync()
    removal = desk.log.follow_log_start(3)
    assert removal is not None
    removal.run()
    # Segments wait for a checkpoint that knows their producers; then the same word takes them.
    assert (desk.log.log_start, len(desk.log.segments)) == (3, 5)
    desk.store.checkpoint_now()
    removal = desk.log.follow_log_start(3)
    assert removal is not None
    removal.run()
    assert (desk.log.log_start, [segment.base_offset for segment in desk.log.segments]) == (3, [3, 4])
    assert desk.log.follow_log_start(3) is None
    desk.restart(clean=False)
    assert (desk.log.log_start, desk.log.log_end) == (3, 5)


def test_start_follows_no_further_than_what_is_readable() -> None:
    desk = LogDesk()
    desk.append(b"a")
    desk.sync()
    desk.append(b"b")
    removal = desk.log.follow_log_start(2)
    assert removal is not None
    assert desk.log.log_start == desk.log.readable_end == 1


def test_start_never_goes_back() -> None:
    desk = LogDesk()
    desk.append(b"a")
    desk.sync()
    desk.log.delete_before(1).run()
    assert desk.log.follow_log_start(0) is None
    assert desk.log.log_start == 1
