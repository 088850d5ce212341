"""Transactions of this node: which partition of `__transaction_state` an id belongs to, and its shell there.

The internal topic is created when the first client asks for a coordinator. A partition that this node leads is replayed
once, before its first answer, as soon as the leadership begins; of the others nothing is known here. One whose journal
was lost is replayed again as soon as its log is back. Of one that is damaged no transactional id is served: every
answer says so.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection
from typing import Final, cast

import msgspec

from penstock.base.clock import SteadyClock
from penstock.base.log_events import get_logger
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.rehearsals import Rehearsal, Subject
from penstock.broker.machine.residents import Residents, place_of
from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.broker.transaction.elsewhere import ClusterMarkers, TransactionLine, admit_elsewhere, sync_elsewhere
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.shell import NOT_COORDINATOR, UNAVAILABLE, TransactionShell, rehearse
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.topic_image import Change, TopicRemoved
from penstock.cluster.catalog.topics import AlreadyExists, Created, TopicCatalog
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.protocol import StoreError
from penstock.domain.replication.exchange import LogBarrier, LogName
from penstock.domain.topic_rules import TRANSACTION_STATE
from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdNeeded,
    Refused,
    TransactionListing,
    TransactionProblem,
    TransactionReply,
    VerifyPartitions,
)
from penstock.domain.transaction.state import VERSION_TWO, TopicPartition, TransactionMetadata, TransactionState
from penstock.net.replica.transactions import Admission

log = get_logger("transactions")

# Enough to spread ids over the nodes of a cluster; Kafka's 50 would be 50 files to sync on one node.
PARTITION_COUNT: Final = 8
# Of its partitions: each load computes for as long as it can.
LOADING_AT_ONCE: Final = 1
RELOAD_MS: Final = 2_000
SNAPSHOT_CHECK_MS: Final = 30_000
# Many turns of a slow disk, and less than any client's patience.
ENDING_MS_MAX: Final = 250
OVERRIDES: Final = {
    "cleanup.policy": "compact",
    # Whatever the node's default: an outcome that a crash takes back after its markers went out would be half of both.
    "durability": "fsync",
    # A record is a whole transaction, written some four times for each: compaction begins soon and replays stay short.
    "segment.bytes": str(16 * 1024 * 1024),
    # One decision is one batch: a sweep may end a thousand transactions, each of them with many partitions.
    "max.message.bytes": str(16 * 1024 * 1024),
}

_LOADING: Final = Refused(TransactionProblem.COORDINATOR_LOAD_IN_PROGRESS)
_ENDING: Final = Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)

CoordinatorCommand = InitProducer | AddPartitions | VerifyPartitions | EndTransaction


class TransactionCoordinators:
    def __init__(
        self,
        site: Site,
        broker: Broker,
        catalog: TopicCatalog,
        *,
        producer_ids: ProducerIds,
        markers: MarkerWriter,
    ) -> None:
        self.settings = site.config.transactions
        self._broker = broker
        self._catalog = catalog
        self._producer_ids = producer_ids
        self._markers = ClusterMarkers(broker, markers, site.tasks)
        self._clock = site.clock
        self._steady = SteadyClock(site.clock)
        self._tasks = site.tasks
        self._residents = Residents(
            Subject.TRANSACTIONS,
            self._make,
            tasks=site.tasks,
            barrier=lambda: broker.barrier,
            takeovers=broker.takeovers,
        )
        broker.rehearsals.add(Subject.TRANSACTIONS, self._rehearse)
        # The internal topic is there, and what was led here then has been loaded.
        self._is_ready = False
        self._loading: asyncio.Task[None] | None = None
        catalog.on_change(self._on_change, Part.TRANSACTIONS)
        broker.follow_roles(self, Part.TRANSACTIONS)
        broker.follow_journals(self.damages)

    # Life

    async def start(self) -> None:
        """Replays what there is, and finishes what was decided; without the internal topic there is nothing."""
        if self._has_any():
            await self._load()
        self._tasks.every(RELOAD_MS, "transaction reload", self._reload_lost)
        self._tasks.every(SNAPSHOT_CHECK_MS, "transaction snapshots", self._save_snapshots)

    async def stop(self) -> None:
        for shell in self._residents.close():
            shell.close()

    async def ready(self) -> bool:
        """The internal topic exists and has been replayed; False if it could not be created."""
        if not self._is_ready:
            if self._loading is None or self._loading.done():
                self._loading = self._tasks.start("transactions loading", self._create_and_load())
            await asyncio.shield(self._loading)
        return self._is_ready

    async def _create_and_load(self) -> None:
        if not self._has_any():
            outcome = await self._catalog.create_topic(TRANSACTION_STATE, PARTITION_COUNT, OVERRIDES)
            if not isinstance(outcome, Created | AlreadyExists):
                log.warning("internal topic not created", topic=TRANSACTION_STATE, why=outcome.reason)
                return
        await self._load()

    async def _load(self) -> None:
        topic = self._broker.topic(TRANSACTION_STATE)
        assert topic is not None
        await self._residents.load_all(topic.led(), at_once=LOADING_AT_ONCE)
        self._is_ready = True

    async def _make(self, partition: PartitionShell, leadership: Leadership) -> TransactionShell:
        return TransactionShell(
            partition,
            leadership,
            settings=self.settings,
            markers=self._markers,
            clock=self._clock,
            steady=self._steady,
            tasks=self._tasks,
        )

    @property
    def _shells(self) -> list[TransactionShell]:
        return self._residents.shells()

    async def _rehearse(self, rehearsal: Rehearsal) -> None:
        async with self._residents.rehearsal(rehearsal.partition):
            await rehearse(rehearsal.partition, self.settings, rehearsal.rest)

    async def _save_snapshots(self) -> None:
        for shell in self._shells:
            await shell.save_snapshot_if_due()

    async def _reload_lost(self) -> None:
        if not self._broker.is_stopping:
            await self._residents.reload_lost()

    def damages(self) -> list[JournalDamage]:
        return self._residents.damages()

    def talk_by(self, line: TransactionLine) -> None:
        """How coordinators and partitions on other nodes are asked, as soon as this node can talk to them."""
        self._markers.line = line

    @property
    def reaches_others(self) -> bool:
        """Markers go to partitions that other nodes lead."""
        return self._markers.line is not None

    # Roles

    def lead(self, partition: PartitionShell) -> None:
        if partition.topic == TRANSACTION_STATE:
            self._residents.begin(partition)

    def resign(self, partition: PartitionShell) -> None:
        if partition.topic == TRANSACTION_STATE:
            self._residents.resign(place_of(partition))

    # Commands

    async def submit(self, command: CoordinatorCommand) -> TransactionReply:
        """Never answers ProducerIdNeeded: it takes the id itself."""
        shell = await self._shell_of(command.transactional_id)
        if isinstance(shell, Refused):
            return shell
        if isinstance(command, EndTransaction) and command.is_commit and not await self._sync(shell, command):
            return UNAVAILABLE
        reply = await shell.submit(command)
        if isinstance(reply, ProducerIdNeeded):
            assert isinstance(command, InitProducer | EndTransaction)
            try:
                spare = await self._producer_ids.take()
            except StoreError as error:
                log.warning("no producer id", error=str(error))
                return UNAVAILABLE
            reply = await shell.submit(msgspec.structs.replace(command, spare_producer_id=spare))
        return reply

    async def _sync(self, shell: TransactionShell, command: EndTransaction) -> bool:
        """What a commit covers is on disk before the commit is, also where a topic promises less: after a power cut a
        transaction is there as a whole or not at all."""
        commitments: list[Commitment] = []
        elsewhere: list[tuple[int, LogBarrier]] = []
        for place in shell.partitions_of(command.transactional_id):
            partition = self._broker.find(place.topic, place.partition)
            if isinstance(partition, NotHere):
                topic = self._broker.topic(place.topic)
                # What such a topic has acknowledged is committed.
                if topic is not None and not partition.is_unknown and not topic.config.is_synced:
                    name = LogName(topic.topic_id, place.partition)
                    elsewhere.append((partition.leader, LogBarrier(name, partition.epoch)))
                continue
            commitment = partition.commit_if_unsynced()
            if commitment is not None:
                commitments.append(commitment)
            elif not partition.config.is_synced and not partition.may_look:
                # Whoever leads by now may have taken more.
                return False
        # Asked for before the first is waited for: they share a turn of the disk.
        for commitment in commitments:
            if not await commitment.kept():
                return False
        return await sync_elsewhere(self._markers.line, elsewhere)

    async def submit_patiently(self, command: CoordinatorCommand, *, wait_ms: int = ENDING_MS_MAX) -> TransactionReply:
        """The same, but the end of the transaction before is waited for.

        It is confirmed when it is decided, and its markers follow within a turn or two of the disk. Who begins the next
        one meanwhile would be told CONCURRENT_TRANSACTIONS: clients then come back after 20 to 500 ms, and kafkajs 2.2
        fails.
        """
        reply = await self.submit(command)
        if reply == _ENDING:
            shell = await self._shell_of(command.transactional_id)
            if isinstance(shell, Refused):
                return shell
            await shell.wait_until_ended(command.transactional_id, wait_ms)
            reply = await self.submit(command)
        return reply

    async def admit(
        self,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: tuple[TopicPartition, ...],
        version: int,
    ) -> PartitionsAdded | PartitionsVerified | Refused:
        """Before the first batch of a transaction comes into these partitions: with version 2 they are added to it,
        with version 1 they must be part of it already."""
        coordinator = self._broker.find(TRANSACTION_STATE, self.partition_of(transactional_id))
        if isinstance(coordinator, NotHere) and not coordinator.is_unknown:
            whose = (transactional_id, producer_id, producer_epoch)
            asked = Admission(*whose, partitions, is_verified_only=version < VERSION_TWO)
            return await admit_elsewhere(self._markers.line, coordinator, asked)
        kind = AddPartitions if version >= VERSION_TWO else VerifyPartitions
        command: AddPartitions | VerifyPartitions = kind(transactional_id, producer_id, producer_epoch, partitions)
        if isinstance(command, AddPartitions):
            command = msgspec.structs.replace(command, version=version)
        return cast("PartitionsAdded | PartitionsVerified | Refused", await self.submit_patiently(command))

    async def describe(self, transactional_id: str) -> TransactionMetadata | Refused | None:
        """None: nobody uses that id. Looking does not create the internal topic."""
        if not self._has_any():
            return None
        shell = await self._shell_of(transactional_id)
        return shell if isinstance(shell, Refused) else await shell.describe(transactional_id)

    async def list_transactions(
        self,
        *,
        states: Collection[TransactionState] | None = None,
        producer_ids: Collection[int] | None = None,
        longer_than_ms: int = -1,
        id_matches: Callable[[str], bool] | None = None,
    ) -> list[TransactionListing] | Refused:
        """Those of this node that pass every filter, by id; Refused if a part of them is not known just now."""
        if not self._has_any():
            return []
        if not await self.ready():
            return UNAVAILABLE
        if self._residents.is_any_loading:
            return _LOADING
        found: list[TransactionListing] = []
        for shell in self._shells:
            part = await shell.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, id_matches=id_matches
            )
            if isinstance(part, Refused):
                return part
            found += part
        return sorted(found, key=lambda listing: listing.transactional_id)

    def partition_of(self, transactional_id: str) -> int:
        # Not Python's hash, which differs from process to process.
        return zlib.crc32(transactional_id.encode()) % self.partition_count

    @property
    def partition_count(self) -> int:
        """Of the internal topic, on all nodes; also before there is one."""
        topic = self._broker.topic(TRANSACTION_STATE)
        return PARTITION_COUNT if topic is None else topic.partition_count

    # Metrics

    def open_ages_ms(self) -> list[int]:
        """For how long each transaction that is under way has been so."""
        now_ms = self._steady.now_ms()
        return [max(0, now_ms - since_ms) for shell in self._shells for since_ms in shell.open_since_ms()]

    @property
    def committed_count(self) -> int:
        return sum(shell.committed_count for shell in self._shells)

    @property
    def aborted_count(self) -> int:
        return sum(shell.aborted_count for shell in self._shells)

    # Inside

    def _on_change(self, change: Change) -> None:
        if isinstance(change, TopicRemoved) and change.topic.name == TRANSACTION_STATE:
            # By an operator: all that was known of producers is gone. The next one to ask begins anew.
            self._is_ready = False
            for shell in self._residents.forget(change.topic.topic_id):
                shell.close()

    def _has_any(self) -> bool:
        return self._broker.topic(TRANSACTION_STATE) is not None

    async def _shell_of(self, transactional_id: str) -> TransactionShell | Refused:
        if not await self.ready() or self._broker.is_stopping:
            return UNAVAILABLE
        partition = self._broker.find(TRANSACTION_STATE, self.partition_of(transactional_id))
        if isinstance(partition, NotHere):
            return UNAVAILABLE if partition.is_unknown else NOT_COORDINATOR
        return await self._residents.resident(partition) or _LOADING
