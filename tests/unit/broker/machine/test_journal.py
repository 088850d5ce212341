from __future__ import annotations

import asyncio

import pytest

from penstock.broker.machine.journal import BATCH_BYTES_MAX, GATHERING_TURNS, Journal, _batches
from penstock.broker.machine.portions import JournalLostError
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.outcome import Appended, AppendRefused
from penstock.codec.batch.records import Record, build_batch
from penstock.storage.log.journal_snapshot import Entry
from support.group.shell_world import ShellWorld
from support.storage.gated_disk import GatedDisk


def decision(count: int, value_bytes: int, name: bytes) -> list[Record]:
    return [Record(value=bytes(value_bytes), key=name) for _ in range(count)]


def test_a_decision_is_never_cut_in_two() -> None:
    decisions = [decision(3, BATCH_BYTES_MAX // 4, b"%d" % number) for number in range(5)]
    batches = _batches(decisions)
    assert [record for batch in batches for record in batch] == [record for each in decisions for record in each]
    for each in decisions:
        assert sum(any(record is each[0] for record in batch) for batch in batches) == 1
        (holder,) = [batch for batch in batches if any(record is each[0] for record in batch)]
        assert all(any(record is other for other in holder) for record in each)


def test_a_decision_larger_than_a_batch_stays_whole() -> None:
    (small, large, last) = _batches(
        [decision(1, 10, b"a"), decision(9, BATCH_BYTES_MAX // 4, b"b"), decision(1, 10, b"c")]
    )
    assert [len(small), len(large), len(last)] == [1, 9, 1]


def test_small_decisions_share_a_batch() -> None:
    assert [len(batch) for batch in _batches([decision(2, 10, b"k") for _ in range(100)])] == [200]


async def test_replay_reads_many_records_as_it_reads_few() -> None:
    world = ShellWorld()
    journal = Journal(world.partition, world.clock)
    written: list[Entry] = [
        (b"key %d" % (number % 700), None if number % 11 == 0 else b"value %d" % number) for number in range(5_000)
    ]
    for start in range(0, len(written), 100):
        journal.append(written[start : start + 100])
        if start % 1_000 == 0:
            journal.flush()
    await is_durable(journal)
    found = [entry async for entries in Journal(world.partition, world.clock).replay_entries() for entry in entries]
    assert found == written
    records = [each async for portion in Journal(world.partition, world.clock).replay() for each in portion]
    assert [(record.key, record.value) for record in records] == written


async def test_replay_does_not_begin_before_everything_that_was_written_can_be_read() -> None:
    """A journal that was lost may have written something before: it comes, and must not be missed."""
    disk, world, journal = await during_a_sync()
    with pytest.raises(JournalLostError, match="not readable to its end"):
        await anext(Journal(world.partition, world.clock).replay_entries())
    disk.open_gate()
    await is_durable(journal)
    assert await anext(Journal(world.partition, world.clock).replay_entries()) == [(b"a", b"1")]


async def test_a_journal_whose_log_could_not_be_recovered_is_not_taken_for_an_empty_one() -> None:
    """It has no end and no batch then; whoever took it for new would say that no offset was ever committed."""
    world = ShellWorld()
    world.partition.log.fail("recovery: input/output error")
    with pytest.raises(JournalLostError, match="is offline: recovery"):
        assert [entries async for entries in Journal(world.partition, world.clock).replay_entries()] == []


async def test_what_cannot_wait_takes_along_what_can() -> None:
    world = ShellWorld()
    journal = Journal(world.partition, world.clock, flush_ms=3_600_000)
    journal.append([(b"a", b"1")], may_wait=True)
    journal.append([(b"b", b"2")], may_wait=True)
    await asyncio.sleep(0)
    assert world.partition.log.log_end == 0
    journal.append([(b"c", b"3")])
    await is_durable(journal)
    assert (world.partition.log.log_end, world.partition.log.unsaved_batches) == (3, 1)


async def test_what_comes_during_a_sync_shares_the_next_batch_with_who_is_back_at_once() -> None:
    loop = asyncio.get_running_loop()
    disk, world, journal = await during_a_sync()
    # The one whom the sync lets go on: his next request is there in a moment.
    journal.when_durable(lambda _: loop.call_soon(loop.call_soon, journal.append, [(b"c", b"4")]))
    for value in (b"2", b"3"):
        journal.append([(b"b", value)])
        await asyncio.sleep(0)
    assert world.partition.log.log_end == 1
    disk.open_gate()
    await is_durable(journal)
    assert (world.partition.log.log_end, world.partition.log.unsaved_batches) == (4, 2)


async def test_what_may_wait_is_not_hurried_by_the_end_of_a_sync() -> None:
    disk, world, journal = await during_a_sync(flush_ms=3_600_000)
    durable = asyncio.get_running_loop().create_future()
    journal.when_durable(durable.set_result)
    journal.append([(b"b", b"2")], may_wait=True)
    disk.open_gate()
    assert await asyncio.wait_for(durable, 5)
    for _ in range(2 * GATHERING_TURNS):
        await asyncio.sleep(0)
    assert world.partition.log.log_end == 1


async def test_a_full_batch_does_not_wait_for_the_one_before_it() -> None:
    disk, world, journal = await during_a_sync()
    journal.append([(b"b", bytes(BATCH_BYTES_MAX))])
    await asyncio.sleep(0)
    assert world.partition.log.log_end == 2
    disk.open_gate()
    await is_durable(journal)


async def test_full_batch_does_not_wait() -> None:
    world = ShellWorld()
    journal = Journal(world.partition, world.clock, flush_ms=3_600_000)
    journal.append([(b"a", bytes(BATCH_BYTES_MAX))], may_wait=True)
    durable = asyncio.get_running_loop().create_future()
    journal.when_durable(durable.set_result, may_wait=True)
    assert await asyncio.wait_for(durable, 5)


async def during_a_sync(*, flush_ms: int = 0) -> tuple[GatedDisk, ShellWorld, Journal]:
    """Of the journal's first record; it ends when the gate is opened."""
    disk = GatedDisk()
    world = ShellWorld(disk)
    journal = Journal(world.partition, world.clock, flush_ms=flush_ms)
    disk.close_gate()
    journal.append([(b"a", b"1")])
    await disk.wait_until_syncing()
    return disk, world, journal


async def is_durable(journal: Journal) -> None:
    durable = asyncio.get_running_loop().create_future()
    journal.when_durable(durable.set_result)
    assert await asyncio.wait_for(durable, 5)


async def test_what_was_decided_under_an_old_leadership_is_not_stored() -> None:
    world = ShellWorld()
    old = Leadership("__consumer_offsets", 0, world.partition.leadership.epoch - 1)
    journal = Journal(world.partition, world.clock, leadership=old)
    journal.append([(b"a", b"1")])
    assert not await journal.until_durable()
    assert journal.is_lost
    assert world.partition.log.log_end == 0


async def test_a_log_takes_nothing_from_another_leadership_than_its_own() -> None:
    partition = ShellWorld().partition
    own = partition.leadership
    batch = build_batch([Record(value=b"1", key=b"a")])
    for epoch in (own.epoch - 1, own.epoch + 1):
        outcome = partition.append_decided(memoryview(bytearray(batch)), Leadership(own.topic, 0, epoch))
        assert isinstance(outcome, AppendRefused)
        assert f"in epoch {epoch}" in outcome.reason
        assert isinstance(partition.append_released(bytearray(batch), Leadership(own.topic, 0, epoch)), AppendRefused)
    assert partition.log.log_end == 0
    assert isinstance(partition.append_decided(memoryview(bytearray(batch)), own), Appended)
