"""Transactional producers that commit and abort, with offsets in the transaction, and readers of what is committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import committed_offsets
from penstock.client.kafka.offsets import offset_ranges
from penstock.client.kafka.producer import PartitionBatch
from penstock.client.kafka.transactional_producer import TransactionalProducer
from penstock.client.kafka.transactions import list_transactions
from penstock.client.patience import ask_patiently
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from support.sim.client import PARTITIONS, VALUE_BYTES_MAX, SimClient
from support.sim.invariants import READ_COMMITTED, WELL_AFTER_QUIET, check
from support.sim.ledger import Ledger, Message, Place, Register, Written
from support.sim.loads.load import TOPIC_SETTINGS, until
from support.sim.log_checks import check_position, check_read
from support.sim.reading import PATIENCE_MS, Everything, SimReader, read_everything
from support.sim.world import World

TOPIC: Final = "transfers"
PRODUCERS: Final = 2
BATCHES_MAX: Final = 3
RECORDS_MAX: Final = 2
ABORT_CHANCE: Final = 0.3
# Left open, and ended by whoever comes next with the same id, or by the coordinator.
LEAVE_CHANCE: Final = 0.1
TRANSACTION_MS: Final = 4_000
# Some are gone before they know how their commit has ended.
PATIENCES_MS: Final = (100, 300, 8_000)
ENDED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class End(Enum):
    """What became of a transaction, as its producer knows."""

    # Nobody has asked for its commit: it must never be seen.
    NOT_COMMITTED = "not committed"
    ASKED = "commit asked for"
    COMMITTED = "committed"


@dataclass(slots=True)
class Transaction:
    end: End = End.NOT_COMMITTED
    # The position that goes with it.
    written: Written | None = None
    # Confirmed to be in the transaction.
    values: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Books:
    ledger: Ledger = field(default_factory=Ledger)
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    # The position that a producer writes with each transaction, in a group of its own.
    positions: dict[str, Register] = field(default_factory=dict)

    def on_read(self, place: Place, value: bytes) -> None:
        check_read(self.ledger, place, value)
        end = self.transactions[value].end
        what = f"{value!r} at {place} was read: {end.value}"
        check(READ_COMMITTED, holds=end is not End.NOT_COMMITTED, what=what)

    def settle(self, transaction: Transaction, everything: Everything) -> None:
        """Whether it counts is seen by its records now, and must be so of its position."""
        written = transaction.written
        if written is None or written.confirmed_at is not None or everything.rotten:
            return
        if transaction.values[0] in everything.values.values():
            written.confirmed_at = written.asked_at
        else:
            for register in self.positions.values():
                register.written = [each for each in register.written if each is not written]


class TransactionLoad:
    rests_on = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})

    def __init__(self, world: World) -> None:
        self._world = world
        self._books = Books()

    async def prepare(self, client: ClusterClient) -> None:
        await create_topic(client, TOPIC, partitions=PARTITIONS, configs=TOPIC_SETTINGS)

    def clients(self) -> list[SimClient]:
        producers = [SimTransactor(f"teller-{number}", self._world, self._books) for number in range(PRODUCERS)]
        reader = SimReader("auditor", self._world, TOPIC, self._books.on_read, is_read_committed=True)
        return [*producers, reader]

    async def check(self, client: ClusterClient) -> None:
        await until(self._world, lambda: self._all_ended(client), "a transaction has not ended")
        everything = await read_everything(self._world, client, TOPIC, is_read_committed=True)
        for place, value in everything.values.items():
            self._books.on_read(place, value)
        for transaction in {id(each): each for each in self._books.transactions.values()}.values():
            _check_whole(transaction, everything)
            self._books.settle(transaction, everything)
        await self._check_stable(client)
        await self._check_positions(client)

    async def _all_ended(self, client: ClusterClient) -> bool:
        listed = await ask_patiently(lambda: list_transactions(client), patience_ms=PATIENCE_MS)
        return all(each.state in ENDED for each in listed)

    async def _check_stable(self, client: ClusterClient) -> None:
        """Nobody waits for the end of a transaction that has ended."""
        for partition in range(PARTITIONS):
            stable, end = [
                (await offset_ranges(client, TOPIC, [partition], is_read_committed=is_committed))[partition].end
                for is_committed in (True, False)
            ]
            what = f"{TOPIC}-{partition} ends at {end}, and {stable} is the last stable offset"
            check(WELL_AFTER_QUIET, holds=stable == end, what=what)

    async def _check_positions(self, client: ClusterClient) -> None:
        for group, register in sorted(self._books.positions.items()):
            asked_after = self._world.loop.time()
            found = await ask_patiently(partial(committed_offsets, client, group), patience_ms=PATIENCE_MS)
            check_position(register, found.get((TOPIC, 0), -1), asked_after=asked_after, what=f"group {group}")


def _check_whole(transaction: Transaction, everything: Everything) -> None:
    present = set(everything.values.values())
    found = [value for value in transaction.values if value in present]
    is_torn = bool(found) and len(found) < len(transaction.values) and not everything.rotten
    check(READ_COMMITTED, holds=not is_torn, what=f"{found!r} of {transaction.values!r} is all that is there")
    is_kept = transaction.end is not End.COMMITTED or len(found) == len(transaction.values) or everything.rotten
    check(READ_COMMITTED, holds=bool(is_kept), what=f"{transaction.values!r} was committed and is not there")


class SimTransactor(SimClient):
    def __init__(self, name: str, world: World, books: Books) -> None:
        super().__init__(name, world)
        self._books = books
        self._number = 0

    async def _work(self, client: ClusterClient) -> None:
        patience_ms = self._random.choice(PATIENCES_MS)
        producer = TransactionalProducer(
            client, self.name, transaction_timeout_ms=TRANSACTION_MS, patience_ms=patience_ms
        )
        await producer.start()
        while not self.is_stopping:
            transaction = Transaction()
            written = await self._fill(producer, transaction)
            await self._look(client)
            if self._random.random() < LEAVE_CHANCE:
                return
            if self._random.random() < ABORT_CHANCE:
                await producer.abort()
            else:
                await self._commit(producer, transaction, written)
            await self._rest()

    async def _fill(self, producer: TransactionalProducer, transaction: Transaction) -> int | None:
        """The position that goes with it, if one does."""
        first = self._random.randrange(PARTITIONS)
        for number in range(self._random.randint(1, BATCHES_MAX)):
            # Into all of them, or none could be left behind.
            partition = (first + number) % PARTITIONS
            values = [self._value(partition, transaction) for _ in range(self._random.randint(1, RECORDS_MAX))]
            batch = build_batch([Record(value=value) for value in values])
            await producer.send([PartitionBatch(TOPIC, partition, batch, len(values))])
            transaction.values += values
        if self._random.random() < 0.3:
            return None
        await producer.commit_offsets(self.name, {(TOPIC, 0): self._number})
        return self._number

    async def _commit(self, producer: TransactionalProducer, transaction: Transaction, position: int | None) -> None:
        transaction.end = End.ASKED
        if position is not None:
            transaction.written = self._books.positions.setdefault(self.name, Register()).ask(position, self._now())
        await producer.commit()
        transaction.end = End.COMMITTED
        if transaction.written is not None:
            transaction.written.confirmed_at = self._now()

    async def _look(self, client: ClusterClient) -> None:
        """Its own positions, with one of them perhaps in a transaction that is not over."""
        if self._random.random() < 0.3:
            asked_after = self._now()
            found = await committed_offsets(client, self.name)
            register = self._books.positions.get(self.name, Register())
            check_position(register, found.get((TOPIC, 0), -1), asked_after=asked_after, what=f"group {self.name}")

    def _value(self, partition: int, transaction: Transaction) -> bytes:
        self._number += 1
        value = f"{self.name}/{self._number}/".encode() + b"." * self._random.randrange(VALUE_BYTES_MAX)
        self._books.ledger.messages[value] = Message(self.name, self._number, partition, is_idempotent=True)
        self._books.transactions[value] = transaction
        return value
