"""A partition's shell and its transactions: what is taken, what is read, and by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal, VerificationNeeded
from penstock.broker.partition.read import PartitionRead, ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import VERSION_TWO
from support.transaction.desk import DeskProducer, TransactionDesk


@pytest.fixture
async def desk() -> AsyncIterator[TransactionDesk]:
    made = TransactionDesk()
    await made.start()
    yield made
    await made.close()


def mark(shell: PartitionShell, producer: DeskProducer, *, is_commit: bool) -> Appended | AppendRefused:
    """As a coordinator of version 2 does, whose epoch is the one after the transaction's."""
    return write_marker(
        shell,
        TransactionEnd(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch + 1,
            coordinator_epoch=1,
            is_commit=is_commit,
            version=VERSION_TWO,
        ),
    )


async def test_batch_that_comes_after_its_transaction_begins_no_other(desk: TransactionDesk) -> None:
    """The coordinator said yes, the transaction ended, and only then did the batch arrive."""
    producer = await DeskProducer(desk).begin()
    shell = desk.partition(0)
    needed = shell.append(producer.batch(b"late"))
    assert isinstance(needed, VerificationNeeded)
    guard = shell.begin_verification(needed.header, version=VERSION_TWO)
    assert isinstance(mark(shell, producer, is_commit=True), Appended)
    refused = shell.append(producer.batch(b"late"), guard=guard)
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.PRODUCER_FENCED
    assert not shell.log.transactions.ongoing


async def test_guard_of_a_transaction_that_has_ended_opens_nothing(desk: TransactionDesk) -> None:
    """With version 1 the epoch stays, so that only the guard tells the two transactions apart."""
    producer = await DeskProducer(desk, version=1).begin()
    shell = desk.partition(0)
    needed = shell.append(producer.batch(b"late"))
    assert isinstance(needed, VerificationNeeded)
    guard = shell.begin_verification(needed.header, version=1)
    write_marker(
        shell,
        TransactionEnd(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=1,
            is_commit=True,
        ),
    )
    refused = shell.append(producer.batch(b"late"), guard=guard)
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.NOT_VERIFIED
    assert shell.log.log_end == 1


async def test_batch_without_a_producer_is_in_no_transaction(desk: TransactionDesk) -> None:
    lone = build_batch([Record(b"a", timestamp_ms=desk.clock.now_ms())], is_transactional=True)
    refused = desk.partition(0).append(memoryview(lone))
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.INVALID


async def test_marker_that_is_stored_already_is_confirmed_when_it_is_durable(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    shell = desk.partition(0)
    first = mark(shell, producer, is_commit=True)
    again = mark(shell, producer, is_commit=True)
    assert isinstance(first, Appended)
    assert isinstance(again, Appended)
    assert first.base_offset == again.base_offset
    assert again.commitment is not None
    await again.commitment.kept()
    later = mark(shell, producer, is_commit=True)
    assert isinstance(later, Appended)
    assert later.commitment is None


@pytest.mark.parametrize("is_commit", [True, False])
async def test_transaction_is_stable_when_its_marker_is_readable_and_not_before(
    desk: TransactionDesk, is_commit: bool
) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    shell = desk.partition(0)
    marked = mark(shell, producer, is_commit=is_commit)
    assert isinstance(marked, Appended)
    assert marked.commitment is not None
    assert shell.last_stable_offset == 0
    await marked.commitment.kept()
    assert shell.last_stable_offset == 2


async def aborted_on_disk(desk: TransactionDesk) -> PartitionRead:
    """Two aborted transactions, and a reader of the first that has to wait for the disk."""
    producer = await DeskProducer(desk).begin()
    for value in (b"lost", b"lost too"):
        await producer.send(value, 0)
        await producer.end(is_commit=False)
        await desk.until(desk.is_stable)
    desk.files.uncached_chance = 1.0
    read = desk.partition(0).read(0, bytes_max=1, is_committed_only=True)
    assert read.cold is not None
    return read


async def test_reader_who_waited_for_the_disk_is_told_of_aborts_too(desk: TransactionDesk) -> None:
    read = await aborted_on_disk(desk)
    assert read.cold is not None
    fresh = desk.partition(0).take_loaded(read, read.cold.load(), bytes_max=1)
    assert [entry.first_offset for entry in fresh.aborted] == [0]


async def test_records_that_were_deleted_while_they_were_read_are_not_given(desk: TransactionDesk) -> None:
    """With them went the knowledge that they were aborted."""
    read = await aborted_on_disk(desk)
    assert read.cold is not None
    loaded = read.cold.load()
    shell = desk.partition(0)
    shell.log.delete_before(2)
    fresh = shell.take_loaded(read, loaded, bytes_max=1)
    assert (fresh.problem, fresh.records) == (ReadProblem.OUT_OF_RANGE, b"")


async def test_records_whose_segment_was_cleaned_while_they_were_read_are_read_again(desk: TransactionDesk) -> None:
    read = await aborted_on_disk(desk)
    assert read.cold is not None
    loaded = read.cold.load()
    shell = desk.partition(0)
    # As after a cleaning: other files, and nothing is left of what the first marker aborted.
    shell.log.adopt(desk.store.recover_log(_failed(shell)))
    shell.log.transactions.forget_aborts([1])
    fresh = shell.take_loaded(read, loaded, bytes_max=1)
    assert fresh.cold is not None, "what was loaded is of the segment before"


def _failed(shell: PartitionShell):  # type: ignore[no-untyped-def]
    shell.log.fail("to be read again")
    return shell.log


async def test_reader_past_the_stable_offset_finds_nothing_yet(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    shell = desk.partition(0)
    assert shell.read(0, bytes_max=1000, is_committed_only=True) == PartitionRead()
    assert shell.read(1, bytes_max=1000, is_committed_only=True) == PartitionRead()
    assert shell.read(2, bytes_max=1000, is_committed_only=True).problem is ReadProblem.OUT_OF_RANGE
    assert shell.read(0, bytes_max=1000).size_bytes > 0
