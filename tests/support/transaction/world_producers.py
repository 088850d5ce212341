"""Transactional producers of the simulated world: they repeat what got no answer, give up, die, and come back while
their predecessors are still alive.

One that speaks version 1 has its requests to each node delivered in order, as one connection does; with version 2
they may be late, repeated and out of order. Both wait for an answer before they ask the next thing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerReady,
    Refused,
    TransactionCommand,
    TransactionEnded,
    TransactionProblem,
)
from penstock.domain.transaction.partition import TransactionOpen
from penstock.domain.transaction.state import NO_EPOCH, NO_PRODUCER_ID, VERSION_TWO, TopicPartition
from support.transaction.world_nodes import NO_SEQUENCE, Asker, Produce, Stored, width_of

if TYPE_CHECKING:
    from support.transaction.world import World

# How often one that waits for an answer asks again instead.
IMPATIENCE: Final = 0.05

Answer = Callable[[object], None]


class Doing(Enum):
    BEGINNING = "asks for a producer id"
    IDLE = "between transactions"
    WRITING = "in a transaction"
    ENDING = "asked for the end"
    DEAD = "gone"


class SimProducer:
    def __init__(self, world: World, transactional_id: str, *, incarnation: int, version: int) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.incarnation = incarnation
        self.version = version
        self.doing = Doing.BEGINNING
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_EPOCH
        self.transaction = -1
        self.is_commit = False
        # A batch was given up without an answer: with version 1 its sequence may come late, so the epoch must go.
        self.must_begin_again = False
        self._added: set[TopicPartition] = set()
        self._sequences: dict[TopicPartition, int] = {}
        self._to_write: list[tuple[TopicPartition, str]] = []
        self._asked: Callable[[], None] | None = None
        self._attempt = 0

    @property
    def is_waiting(self) -> bool:
        return self._asked is not None

    def act(self) -> None:
        """Asks what is next, or again what got no answer."""
        if self._asked is None:
            self._go_on()
        elif self.world.rng.random() < IMPATIENCE:
            self._send()

    def _go_on(self) -> None:
        if self.doing is Doing.BEGINNING:
            command = InitProducer(self.transactional_id, self.world.timeout_ms, self.producer_id, self.epoch)
            self._ask_coordinator(command, self._on_ready)
        elif self.doing is Doing.IDLE:
            self._begin()
        elif self.doing is Doing.WRITING and self._to_write:
            self._write_next()
        elif self.doing is not Doing.DEAD:
            self.end(is_commit=self.is_commit)

    def _begin(self) -> None:
        world = self.world
        self.transaction = world.next_transaction()
        self.is_commit = world.rng.random() < 0.7
        names = [name for name in world.partitions if self.version >= VERSION_TWO or not world.holds_positions(name)]
        self._to_write = [
            (world.rng.choice(names), f"{self.transaction}/{number}") for number in range(world.rng.randint(1, 5))
        ]
        self._added = set()
        self.doing = Doing.WRITING

    def _write_next(self) -> None:
        name, value = self._to_write[0]
        if self.version < VERSION_TWO and name not in self._added:
            command = AddPartitions(self.transactional_id, self.producer_id, self.epoch, (name,))
            self._ask_coordinator(command, self._on_added)
            return
        sequence = NO_SEQUENCE if self.world.holds_positions(name) else self._sequences.setdefault(name, 0)
        produce = Produce(
            self.transactional_id, self.producer_id, self.epoch, sequence, value, self.version, self._asker()
        )
        self.world.ledger.note_value(self.transaction, value, sequence=sequence)
        partition = self.world.partitions[name]
        self._ask(str(name), lambda reply: partition.on_produce(produce, reply), self._on_produced)

    def end(self, *, is_commit: bool) -> None:
        self.doing = Doing.ENDING
        self.is_commit = is_commit
        command = EndTransaction(self.transactional_id, self.producer_id, self.epoch, is_commit, version=self.version)
        self._ask_coordinator(command, self._on_ended)

    def give_up(self) -> None:
        """The application aborts, whatever is still under way."""
        if self.doing is Doing.WRITING:
            self.must_begin_again = self._asked is not None and self.version < VERSION_TWO
            self._to_write = []
            self.end(is_commit=False)

    def begin_again(self) -> None:
        """Takes up its own id with a new epoch, in the middle of a transaction or between two (KIP-360)."""
        if self.doing in (Doing.WRITING, Doing.IDLE) and self._asked is None:
            self._to_write = []
            self.doing = Doing.BEGINNING

    # --- answers -------------------------------------------------------------------------------------------------

    def _on_ready(self, answer: object) -> None:
        if isinstance(answer, ProducerReady):
            self._take(answer.producer_id, answer.producer_epoch)
            self.must_begin_again = False
            self.doing = Doing.IDLE
        else:
            self._on_problem(answer)

    def _on_added(self, answer: object) -> None:
        if isinstance(answer, PartitionsAdded):
            self._added.add(self._to_write[0][0])
        else:
            self._on_problem(answer)

    def _on_produced(self, answer: object) -> None:
        if isinstance(answer, Stored):
            name, value = self._to_write.pop(0)
            if name in self._sequences:
                self._sequences[name] += width_of(value)
        else:
            self._on_problem(answer)

    def _on_ended(self, answer: object) -> None:
        if not isinstance(answer, TransactionEnded):
            self._on_problem(answer)
            return
        self.world.ledger.told_ended(self.transaction, is_commit=self.is_commit)
        if self.version >= VERSION_TWO:
            self._take(answer.producer_id, answer.producer_epoch)
        self.doing = Doing.BEGINNING if self.must_begin_again else Doing.IDLE

    def _on_problem(self, answer: object) -> None:
        if answer == Refused(TransactionProblem.CONCURRENT_TRANSACTIONS) or isinstance(answer, TransactionOpen):
            return
        if self.doing is Doing.WRITING and not isinstance(answer, Refused):
            # Kafka's clients abort when a batch is refused, and learn from the coordinator whether they are fenced.
            self.must_begin_again = self.version < VERSION_TWO
            self._to_write = []
            self.is_commit = False
        else:
            self.doing = Doing.DEAD

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = producer_id, epoch
            self._sequences = {}

    # --- asking --------------------------------------------------------------------------------------------------

    def _asker(self) -> Asker:
        return Asker(self.incarnation, self.transaction)

    def _ask_coordinator(self, command: TransactionCommand, on_answer: Answer) -> None:
        asker = self._asker()
        self._ask("coordinator", lambda reply: self.world.coordinator.submit(command, reply, asker), on_answer)

    def _ask(self, target: str, deliver: Callable[[Answer], None], on_answer: Answer) -> None:
        channel = f"{self.incarnation} to {target}" if self.version < VERSION_TWO else None

        def send() -> None:
            self._attempt += 1
            attempt = self._attempt

            def answered(answer: object) -> None:
                # An answer to an earlier attempt comes over a connection that was given up; a second one, to a
                # request that was repeated on its way, would not be listened to.
                if attempt == self._attempt and self.doing is not Doing.DEAD:
                    self._asked = None
                    self._attempt += 1
                    on_answer(answer)

            reply = self.world.answering("answer", answered)
            self.world.send("request", lambda: deliver(reply), channel=channel, may_repeat=channel is None)

        self._asked = send
        self._send()

    def _send(self) -> None:
        assert self._asked is not None
        self._asked()
