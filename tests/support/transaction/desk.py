"""A coordinator's shell over real logs, on a disk that can lose power, and producers that use it.

Everything happens on the test's loop, the syncs too: `steps` loop turns after a start are the same in every run. A
crash ends whatever was under way, and the next life begins with what the disk kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from penstock.base.clock import ManualClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.comeback import come_back
from penstock.broker.partition.log_config import log_config
from penstock.broker.partition.outcome import Appended, AppendOutcome, AppendRefused, Refusal, VerificationNeeded
from penstock.broker.partition.role import ALONE
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.topic.not_here import NotHere, no_partition, no_topic
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.shell import TransactionShell
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch, read_records
from penstock.domain.config.topic import make_topic_config
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdNeeded,
    ProducerReady,
    Refused,
    TransactionEnded,
    TransactionProblem,
    TransactionReply,
    VerifyPartitions,
)
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.rules import TransactionSettings
from penstock.domain.transaction.state import VERSION_TWO, TopicPartition, TransactionState
from penstock.storage.config import StorageConfig
from penstock.storage.store import LogStore
from support.storage.faulty_files import CrashMode, FaultyFiles

ORDERS: Final = "orders"
PARTITIONS: Final = 2
TIMEOUT_MS: Final = 60_000
# Turns of the loop; whatever takes longer waits for a clock.
PATIENCE_TURNS: Final = 1000
POSITIONS: Final = TopicPartition(CONSUMER_OFFSETS, 0)

Result = TypeVar("Result")


class JobsOnTheLoop:
    """Syncs, each in a turn of its own."""

    def __init__(self) -> None:
        self.is_dead = False

    def run(self, work: Callable[[], Result], then: Callable[[Result], object]) -> None:
        asyncio.get_running_loop().call_soon(self._run, lambda: then(work()))

    def close(self) -> None:
        return None

    def _run(self, job: Callable[[], object]) -> None:
        if not self.is_dead:
            job()


class DeskGroups:
    """Stands for the groups' coordinator: it is told of ends, if it is there."""

    def __init__(self) -> None:
        self.is_there = True
        self.ended: list[tuple[int, bool]] = []

    async def end_transaction(self, _partition: int, end: TransactionEnd) -> bool:
        if self.is_there:
            self.ended.append((end.producer_id, end.is_commit))
        return self.is_there


class DeskSchedules:
    """Nothing was ever delayed here."""

    async def end_transaction(self, _partition: PartitionShell, _end: TransactionEnd) -> bool:
        return True


class TransactionDesk:
    def __init__(self, *, durability: str = "fsync", settings: TransactionSettings | None = None) -> None:
        self.files = FaultyFiles()
        self.clock = ManualClock()
        self.groups = DeskGroups()
        self._durability = durability
        self._settings = settings or TransactionSettings()
        self._next_producer_id = 1000
        self.topics: dict[str, list[PartitionShell]] = {}
        # Off for worlds in which nothing does: what takes long there never comes.
        self.waits_for_clocks = True

    # Lives

    async def start(self) -> None:
        self.begin()
        await self.shell.load()

    def begin(self) -> None:
        """Everything is opened; the shell is not loaded yet."""
        config = StorageConfig(free_bytes_min=0, sync_threads=1)
        # Not by a thread: then a crash after so many turns of the loop is the same crash in every run.
        self._jobs = JobsOnTheLoop()
        self.store = LogStore.open(self.files, "/data", config, self.clock, syncs=self._jobs)
        self.tasks = TaskSupervisor(get_logger("desk"))
        journal = self._open(TRANSACTION_STATE, 1, 0, "fsync")
        self.topics = {
            ORDERS: [self._open(ORDERS, 2, index, self._durability) for index in range(PARTITIONS)],
            CONSUMER_OFFSETS: [self._open(CONSUMER_OFFSETS, 3, 0, "fsync")],
        }
        self.journal = journal
        self.shell = TransactionShell(
            journal,
            journal.leadership,
            settings=self._settings,
            markers=MarkerWriter(
                cast(Any, self), cast(Any, self.groups), DelayedBatches(cast(Any, DeskSchedules()), clock=self.clock)
            ),
            clock=self.clock,
            steady=self.clock,
            tasks=self.tasks,
        )

    def _open(self, topic: str, number: int, index: int, durability: str) -> PartitionShell:
        config = make_topic_config({"durability": durability})
        log = self.store.open_log(topic, number.to_bytes(16, "big"), index, log_config(config))
        return PartitionShell(topic, index, log, store=self.store, clock=self.clock, config=config, role=ALONE)

    def find(self, topic: str, index: int) -> PartitionShell | NotHere:
        """As the broker does."""
        shells = self.topics.get(topic)
        if shells is None:
            return no_topic(topic)
        return shells[index] if index < len(shells) else no_partition(topic, index)

    async def crash(self, mode: CrashMode = CrashMode.KILL) -> None:
        self.shell.close()
        await self.tasks.stop()
        for log in self.store.logs:
            log.close()
        self._jobs.is_dead = True
        self.files.crash(mode)

    async def restart(self, mode: CrashMode = CrashMode.KILL) -> None:
        await self.crash(mode)
        await self.start()

    def recover_offline(self) -> None:
        """As upkeep does, which comes again when a log could not be read."""
        for _ in range(3):
            for shell in self.shells():
                with suppress(OSError):
                    if shell.is_offline:
                        come_back(shell, self.store.recover_log(shell.log))
        assert not any(shell.is_offline for shell in self.shells())

    async def close(self) -> None:
        await self.crash()

    # What there is to see

    def partition(self, index: int) -> PartitionShell:
        return self.topics[ORDERS][index]

    def shells(self) -> list[PartitionShell]:
        """Of all topics, the coordinator's journal too."""
        return [self.journal, *(shell for shells in self.topics.values() for shell in shells)]

    def values(self, index: int, *, is_committed_only: bool = True) -> list[bytes]:
        """What a reader sees that leaves out what it was told to."""
        shell = self.partition(index)
        read = shell.read(shell.log_start, bytes_max=1 << 20, is_committed_only=is_committed_only)
        aborted = {(entry.producer_id, entry.first_offset): entry.last_offset for entry in read.aborted}
        found: list[bytes] = []
        for position, header in walk_headers(read.records):
            is_left_out = any(
                header.is_transactional and header.producer_id == producer_id and first <= header.base_offset <= last
                for (producer_id, first), last in aborted.items()
            )
            if not header.is_control and not is_left_out:
                records = read_records(read.records, position)
                assert isinstance(records, list)
                found += [record.value or b"" for record in records]
        return found

    def is_stable(self) -> bool:
        return all(
            self.partition(index).last_stable_offset == self.partition(index).log.log_end for index in range(PARTITIONS)
        )

    def state_of(self, transactional_id: str) -> TransactionState | None:
        """As it was decided, which need not be durable."""
        found = self.shell._machine.describe(transactional_id)
        return None if found is None else found.state

    async def until(self, condition: Callable[[], bool]) -> None:
        turns = 0
        while not condition():
            turns += 1
            await self._wait(turns)

    async def _wait(self, turns: int) -> None:
        """Turns of the loop first, then of a clock: markers are tried again after a while."""
        await asyncio.sleep(0 if turns < PATIENCE_TURNS else 0.01)
        assert turns < (PATIENCE_TURNS * 2 if self.waits_for_clocks else PATIENCE_TURNS), "that never came"

    # Commands

    async def submit(
        self, command: InitProducer | AddPartitions | VerifyPartitions | EndTransaction
    ) -> TransactionReply:
        reply = await self.shell.submit(command)
        if isinstance(reply, ProducerIdNeeded):
            assert isinstance(command, InitProducer)
            self._next_producer_id += 1
            command = InitProducer(
                command.transactional_id, command.timeout_ms, spare_producer_id=self._next_producer_id
            )
            reply = await self.shell.submit(command)
        return reply

    async def submit_patiently(self, command: InitProducer | AddPartitions | EndTransaction) -> TransactionReply:
        """As clients do, who ask again while the transaction before is being ended."""
        turns = 0
        while (reply := await self.submit(command)) == Refused(TransactionProblem.CONCURRENT_TRANSACTIONS):
            turns += 1
            await self._wait(turns)
        return reply


class DeskProducer:
    def __init__(
        self, desk: TransactionDesk, transactional_id: str = "payments", *, version: int = VERSION_TWO
    ) -> None:
        self._desk = desk
        self._version = version
        self._sequences: dict[int, int] = {}
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.producer_epoch = -1

    async def begin(self) -> DeskProducer:
        reply = await self._desk.submit_patiently(InitProducer(self.transactional_id, TIMEOUT_MS))
        assert isinstance(reply, ProducerReady), reply
        self._go_on(reply.producer_id, reply.producer_epoch)
        return self

    async def add(self, partitions: Iterable[TopicPartition]) -> TransactionReply:
        return await self._desk.submit_patiently(
            AddPartitions(
                self.transactional_id, self.producer_id, self.producer_epoch, tuple(partitions), self._version
            )
        )

    async def send(self, value: bytes, *indexes: int) -> None:
        """Into each of the partitions, and as durable as they promise."""
        for index in indexes or (0,):
            if self._version < VERSION_TWO:
                assert await self.add((TopicPartition(ORDERS, index),)) == PartitionsAdded()
            outcome = await self.append(value, index)
            while isinstance(outcome, AppendRefused) and outcome.refusal is Refusal.TRANSACTION_OPEN:
                await asyncio.sleep(0)
                outcome = await self.append(value, index)
            assert isinstance(outcome, Appended), outcome
            if outcome.commitment is not None:
                assert await outcome.commitment.kept()

    async def append(self, value: bytes, index: int = 0) -> AppendOutcome:
        """With the coordinator's word, if the partition wants it."""
        shell = self._desk.partition(index)
        outcome = shell.append(self.batch(value, index))
        if isinstance(outcome, VerificationNeeded):
            guard = shell.begin_verification(outcome.header, version=self._version)
            partitions = (TopicPartition(ORDERS, index),)
            if self._version >= VERSION_TWO:
                assert await self.add(partitions) == PartitionsAdded()
            else:
                verify = VerifyPartitions(self.transactional_id, self.producer_id, self.producer_epoch, partitions)
                assert await self._desk.submit(verify) == PartitionsVerified()
            outcome = shell.append(self.batch(value, index), guard=guard)
        if isinstance(outcome, Appended):
            self._sequences[index] = self._sequences.get(index, 0) + 1
        return outcome

    def batch(self, value: bytes, index: int = 0) -> memoryview:
        return memoryview(
            build_batch(
                [Record(value, timestamp_ms=self._desk.clock.now_ms())],
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self._sequences.get(index, 0),
                is_transactional=True,
            )
        )

    async def end(self, *, is_commit: bool) -> TransactionReply:
        command = EndTransaction(self.transactional_id, self.producer_id, self.producer_epoch, is_commit, self._version)
        reply = await self._desk.submit_patiently(command)
        if isinstance(reply, TransactionEnded):
            self._go_on(reply.producer_id, reply.producer_epoch)
        return reply

    def _go_on(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self._sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
