"""A world of producers, a coordinator, partitions and readers, made from one seed.

Everything that happens is one of a list of events, drawn by the seed: a message arrives, is lost, or is repeated; a
disk catches up; somebody crashes; time passes. After the events comes quiet: nothing is lost any more, all producers
are gone, and what they left behind must end by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from penstock.domain.transaction.partition import PartitionTransactions
from penstock.domain.transaction.rules import TransactionSettings
from penstock.domain.transaction.state import (
    CLIENT_EPOCH_MAX,
    VERSION_ONE,
    VERSION_TWO,
    TopicPartition,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
)
from support.transaction.world_check import InvariantBrokenError, Ledger, Reader
from support.transaction.world_nodes import SimCoordinator, SimPartition
from support.transaction.world_producers import Doing, SimProducer

EVENTS: Final = 4000
# Each round of the quiet lets everything move once; a transaction takes fewer than ten, ids expire in one.
QUIET_ROUNDS: Final = 60
# Some messages take so long that whoever sent them has long gone on.
SLOWNESS: Final = 0.98
# What decides the most when it is late.
SLOW_KINDS: Final = {"verification": 4, "marker": 3}
# How many messages are tried before an event of the network is one in which nothing arrives.
PICKS: Final = 4
# Above it nothing is repeated: who has to wait for its turn among many copies gets nowhere.
MESSAGES_MAX: Final = 20
ONGOING: Final = TransactionState.ONGOING
POSITIONS: Final = "__consumer_offsets"


class Story(msgspec.Struct, frozen=True):
    """What a world is about."""

    # How much of each trouble there is; None: a share of all, as the seed says.
    troubles: dict[str, float] | None = None
    # Of the clients; None: as the seed says.
    version: int | None = None
    slow_shares: tuple[float, ...] = (0.01, 0.05, 0.1)
    # How many of the partitions' disks catch up when the network is silent.
    synced_share: float = 1
    # A coordinator that crashes comes up on another node, while what it sent is still under way.
    moves: bool | None = None


STORIES: Final = {
    "everything": Story(),
    "late answers": Story({"give up": 1.5, "repeat": 1, "lose": 1}, version=VERSION_ONE, slow_shares=(0.1,)),
    "late reports": Story({"repeat": 4, "coordinator": 0.3}, version=VERSION_ONE, slow_shares=(0.05,), moves=False),
    "moving coordinator": Story({"coordinator": 6, "repeat": 1}, version=VERSION_ONE, slow_shares=(0.1,), moves=True),
    "repeated messages": Story({"repeat": 3, "give up": 0.5, "lose": 1}, version=VERSION_TWO, slow_shares=(0.05,)),
    "short of time": Story({"time": 3, "repeat": 0.5, "lose": 1}, version=VERSION_TWO, slow_shares=(0.02,)),
    "disks": Story({"coordinator": 2, "partition": 4, "cut": 8, "lose": 1}, slow_shares=(0.01,), synced_share=0.3),
    "heirs": Story({"succeed": 2, "kill": 1, "begin again": 2, "repeat": 1}),
}


class Message(msgspec.Struct):
    kind: str
    run: Callable[[], None]
    # Messages of one channel arrive in their order; None: in any.
    channel: str | None
    may_repeat: bool
    lost: Callable[[], None]
    # How often it stays where it is when its turn comes.
    slowness: float = 0


class World:
    def __init__(self, seed: int, story: str) -> None:
        self.rng = Random(f"{story} {seed}")
        self.story = STORIES[story]
        self.now_ms = 1_000_000
        self.ledger = Ledger()
        self.messages: list[Message] = []
        self.is_quiet = False
        newest_version = self.story.version or self.rng.choice((VERSION_ONE, VERSION_TWO))
        self.settings = TransactionSettings(
            id_expiration_ms=60_000, version=max(newest_version, self.rng.choice((VERSION_ONE, VERSION_TWO)))
        )
        self.timeout_ms = self.rng.choice((5_000, 20_000))
        self._slow_share = self.rng.choice(self.story.slow_shares)
        self.producer_id_count = 0
        self._transaction = 0
        self.incarnation_count = 0
        names = [TopicPartition("topic", number) for number in range(self.rng.randint(1, 2))] + [
            TopicPartition(POSITIONS, 0)
        ]
        self.partitions = {name: SimPartition(self, name) for name in names}
        self.readers = [Reader(self, partition) for partition in self.partitions.values()]
        self.versions = {
            f"id-{number}": self.story.version or self.rng.choice((VERSION_ONE, newest_version))
            for number in range(self.rng.randint(1, 3))
        }
        self.coordinator = SimCoordinator(self, self._aged() if seed % 3 == 0 else [])
        self.producers: list[SimProducer] = []
        for transactional_id in self.versions:
            self.start_producer(transactional_id)

    def _aged(self) -> list[TransactionRecord]:
        """Transactional ids that have used up nearly all epochs of their producer id."""
        return [
            TransactionRecord(
                transactional_id,
                TransactionMetadata(
                    self.next_producer_id(),
                    CLIENT_EPOCH_MAX - self.rng.randint(0, 4),
                    TransactionState.EMPTY,
                    self.timeout_ms,
                    update_ms=self.now_ms,
                ),
            )
            for transactional_id in self.versions
        ]

    # --- what its people need ------------------------------------------------------------------------------------

    def next_producer_id(self) -> int:
        self.producer_id_count += 1
        return 100 + self.producer_id_count

    def next_transaction(self) -> int:
        self._transaction += 1
        return self._transaction

    def holds_positions(self, name: TopicPartition) -> bool:
        return name.topic == POSITIONS

    def start_producer(self, transactional_id: str) -> None:
        self.incarnation_count += 1
        version = self.versions[transactional_id]
        self.producers.append(SimProducer(self, transactional_id, incarnation=self.incarnation_count, version=version))

    def send(
        self,
        kind: str,
        run: Callable[[], None],
        *,
        channel: str | None = None,
        may_repeat: bool = False,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        slowness = SLOWNESS if self.rng.random() < self._slow_share * SLOW_KINDS.get(kind, 1) else 0
        self.messages.append(Message(kind, run, channel, may_repeat, lost, slowness))

    def answering(self, kind: str, answered: Callable[..., None]) -> Callable[[object], None]:
        """A way back over the network."""

        def answer(value: object) -> None:
            self.send(kind, lambda: answered(value))

        return answer

    def forget(self, kind: str) -> None:
        self.messages = [message for message in self.messages if message.kind != kind]

    def check(self, invariant: str, holds: bool) -> None:
        if not holds:
            raise InvariantBrokenError(invariant)

    def check_same_partition(
        self, partition: SimPartition, one: PartitionTransactions, other: PartitionTransactions
    ) -> None:
        is_same = (
            one.producers == other.producers
            and one.ongoing == other.ongoing
            and one.aborted == other.aborted
            and one.last_stable_offset == other.last_stable_offset
            and list(one.ongoing) == list(other.ongoing)
        )
        if not is_same:
            raise InvariantBrokenError("restart keeps a partition's state", str(partition.name))

    # --- what happens --------------------------------------------------------------------------------------------

    def run(self) -> None:
        events, weights = zip(*self._events(), strict=True)
        for event in self.rng.choices(events, weights, k=EVENTS):
            event()
            for reader in self.readers:
                reader.watch()
        self._quiet()

    def _events(self) -> list[tuple[Callable[[], None], float]]:
        pick = self.rng.choice
        partitions = list(self.partitions.values())
        ordinary: list[tuple[Callable[[], None], float]] = [
            (self._deliver, 600),
            (self._producer_acts, 500),
            (self.coordinator.commit, 60),
            (lambda: pick(partitions).commit(), 60),
            (self.coordinator.send_markers, 80),
            (lambda: pick(self.readers).fetch(), 30),
            (self._time_passes, 6),
            (self._delete, 2),
        ]
        troubles: dict[str, tuple[Callable[[], None], float]] = {
            "time": (self._time_passes, 10),
            "lose": (self._lose, 8),
            "repeat": (self._repeat, 50),
            "succeed": (self._succeed, 2),
            "give up": (lambda: self._of_living(SimProducer.give_up), 8),
            "begin again": (lambda: self._of_living(SimProducer.begin_again), 4),
            "kill": (self._kill, 2),
            "coordinator": (self.coordinator.crash, 5),
            "partition": (lambda: pick(partitions).crash(), 5),
            "cut": (lambda: pick(partitions).cut_back(), 4),
        }
        shares = self.story.troubles
        # Every world has troubles of its own: one with all of them at once gets nowhere.
        return ordinary + [
            (event, weight * (pick((0, 0.3, 1, 4)) if shares is None else shares.get(name, 0)))
            for name, (event, weight) in troubles.items()
        ]

    def _deliver(self) -> None:
        for _pick in range(min(PICKS, len(self.messages))):
            message = self.rng.choice(self.messages)
            if message.channel is not None:
                message = next(other for other in self.messages if other.channel == message.channel)
            if self.is_quiet or self.rng.random() >= message.slowness:
                self.messages.remove(message)
                message.run()
                return
        # The network is silent, so the disks catch up.
        self._sync_all()

    def _sync_all(self) -> None:
        self.coordinator.commit()
        for partition in self.partitions.values():
            if self.is_quiet or self.rng.random() < self.story.synced_share:
                partition.commit()

    def _lose(self) -> None:
        if self.messages:
            message = self.messages.pop(self.rng.randrange(len(self.messages)))
            message.lost()

    def _repeat(self) -> None:
        kinds = sorted({message.kind for message in self.messages if message.may_repeat})
        if kinds and len(self.messages) < MESSAGES_MAX:
            kind = self.rng.choice(kinds)
            message = self.rng.choice([other for other in self.messages if other.may_repeat and other.kind == kind])
            self.messages.append(msgspec.structs.replace(message, slowness=SLOWNESS))

    def _producer_acts(self) -> None:
        living = [producer for producer in self.producers if producer.doing is not Doing.DEAD]
        if living:
            ready = [producer for producer in living if not producer.is_waiting]
            self.rng.choice(ready if ready and self.rng.random() < 0.8 else living).act()
        for transactional_id in self.versions:
            if not any(producer.transactional_id == transactional_id for producer in living):
                self.start_producer(transactional_id)

    def _of_living(self, act: Callable[[SimProducer], None]) -> None:
        living = [producer for producer in self.producers if producer.doing is not Doing.DEAD]
        if living:
            act(self.rng.choice(living))

    def _succeed(self) -> None:
        """A new instance of a producer that may still be alive."""
        self.start_producer(self.rng.choice(list(self.versions)))

    def _kill(self) -> None:
        def die(producer: SimProducer) -> None:
            producer.doing = Doing.DEAD

        self._of_living(die)

    def _time_passes(self) -> None:
        self.now_ms += self.rng.randint(1, 4_000)
        self.coordinator.look_at_the_clock()
        for metadata in self.coordinator.machine.as_dict().values():
            is_late = metadata.start_ms + metadata.timeout_ms <= self.now_ms
            self.check("no transaction outlives its timeout", metadata.state is not ONGOING or not is_late)

    def _delete(self) -> None:
        reader = self.rng.choice(self.readers)
        reader.partition.delete_before(reader.position)

    # --- quiet ---------------------------------------------------------------------------------------------------

    def _quiet(self) -> None:
        self.is_quiet = True
        for producer in self.producers:
            producer.doing = Doing.DEAD
        for _round in range(QUIET_ROUNDS):
            self.coordinator.send_markers()
            while self.messages:
                self._deliver()
            self._sync_all()
            if not self.messages and not self.coordinator.pending:
                self.now_ms += self.timeout_ms
                self.coordinator.look_at_the_clock()
        for reader in self.readers:
            reader.watch()
            reader.fetch(all_there_is=True)
        self._check_ended()
        self.ledger.check_all_seen()

    def _check_ended(self) -> None:
        for transactional_id, metadata in self.coordinator.machine.as_dict().items():
            if metadata.is_prepared or metadata.state is ONGOING:
                raise InvariantBrokenError("every transaction ends", f"{transactional_id} is {metadata.state.label}")
        for name, partition in self.partitions.items():
            if partition.transactions.last_stable_offset != partition.log_end:
                raise InvariantBrokenError("every transaction ends", f"{name} holds {partition.transactions.ongoing}")


def run_world(seed: int, story: str) -> World:
    world = World(seed, story)
    try:
        world.run()
    except InvariantBrokenError as error:
        error.add_note(f"seed {seed} of {story}")
        raise
    return world
