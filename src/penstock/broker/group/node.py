"""Consumer groups of this node: which partition of `__consumer_offsets` a group belongs to, and its shell there.

The internal topic is created when the first client asks for a group. A partition that this node leads is replayed once,
before its first answer, as soon as the leadership begins; of the others nothing is known here. One whose journal was
lost is replayed again as soon as its log is back. Of one that is damaged no group is served: every answer says so. The
topic is compacted, and nothing younger than the node's trace horizon goes: until then it tells when a group passed a
message.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from penstock.base.clock import SteadyClock
from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork
from penstock.broker.group.share_shell import ShareShell
from penstock.broker.group.shell import GroupContext, GroupShell
from penstock.broker.group.topics import BrokerTopics
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.machine.rehearsals import Rehearsal, Subject
from penstock.broker.machine.residents import Residents, place_of
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.topic_image import Change, GroupConfigChanged, Topic, TopicRemoved
from penstock.cluster.catalog.topics import AlreadyExists, Created, TopicCatalog
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.config.change import ConfigChange, ConfigOperation
from penstock.domain.group.commands import (
    CommitTransactionOffsets,
    EndTransaction,
    ExpireOffsets,
    ForgetTopics,
    GroupCommand,
    GroupReply,
    Refused,
)
from penstock.domain.group.description import NO_GROUP, GroupDescription, GroupPosition
from penstock.domain.group.settings import member_config
from penstock.domain.group.values import GroupConfig, GroupError
from penstock.domain.security.access import Authorizer
from penstock.domain.share.machine import ShareGroup, ShareGroupConfig, ShareRefused
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import TopicPartition

log = get_logger("groups")

Problem = TypeVar("Problem")

# Enough to spread groups over the nodes of a cluster; Kafka's 50 would be 50 files to sync on one node.
PARTITION_COUNT: Final = 8
# Of its partitions: each load computes for as long as it can.
LOADING_AT_ONCE: Final = 1
# A transaction that ends while it is asked about, so many times in a row, is not worth another question.
VERIFICATIONS_MAX: Final = 3
EXPIRY_CHECK_MS: Final = 600_000
RELOAD_MS: Final = 2_000
SNAPSHOT_CHECK_MS: Final = 30_000
MINIMUM_LAG: Final = "min.compaction.lag.ms"
OVERRIDES: Final = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # A group of thousands of members is one record, and one decision is one batch.
    "max.message.bytes": str(16 * 1024 * 1024),
    # Only sealed segments are compacted: one of 64 MiB would be half a million commits, and days old where few commit.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(6 * 3_600_000),
}

_LOADING: Final = Refused(GroupError.COORDINATOR_LOAD_IN_PROGRESS)


class GroupCoordinator:
    def __init__(self, site: Site, broker: Broker, catalog: TopicCatalog) -> None:
        self._broker = broker
        self._catalog = catalog
        self._config = site.config.groups
        self._clock = site.clock
        self._tasks = site.tasks
        self._work = LongWork(site.clock.monotonic_seconds)
        self._topics = BrokerTopics(broker)
        self._context = GroupContext(
            self._config, self._topics, self._clock, SteadyClock(site.clock), config_of=self._config_of
        )
        self._residents = Residents(
            Subject.GROUPS,
            self._make,
            tasks=site.tasks,
            on_loaded=self._on_loaded,
            barrier=lambda: broker.barrier,
            takeovers=broker.takeovers,
        )
        broker.rehearsals.add(Subject.GROUPS, self._rehearse)
        # The internal topic is there, and what was led here then has been loaded.
        self._is_ready = False
        self._loading: asyncio.Task[None] | None = None
        self._last_ticket = 0
        self._share_config_of: Callable[[str], ShareGroupConfig] = lambda _group_id: ShareGroupConfig()
        catalog.on_change(self._on_change, Part.GROUPS)
        broker.follow_roles(self, Part.GROUPS)
        broker.follow_journals(self.damages)

    # Life

    async def start(self) -> None:
        """Replays what there is; without the internal topic there is nothing."""
        if self._broker.topic(CONSUMER_OFFSETS) is not None:
            await self._load()
        self._tasks.every(EXPIRY_CHECK_MS, "offset expiry", self._expire)
        self._tasks.every(RELOAD_MS, "group reload", self._reload_lost)
        self._tasks.every(SNAPSHOT_CHECK_MS, "group snapshots", self._save_snapshots)

    async def stop(self) -> None:
        """Everything that was accepted is stored: what waited for company is written first."""
        shells = self._residents.close()
        for shell in shells:
            shell.close()
        await asyncio.gather(*(shell.flush() for shell in shells))

    async def ready(self) -> bool:
        """The internal topic exists and has been replayed; False if it could not be created."""
        if not self._is_ready:
            if self._loading is None or self._loading.done():
                self._loading = self._tasks.start("groups loading", self._create_and_load())
            await asyncio.shield(self._loading)
        return self._is_ready

    async def _create_and_load(self) -> None:
        if self._broker.topic(CONSUMER_OFFSETS) is None:
            outcome = await self._catalog.create_topic(CONSUMER_OFFSETS, PARTITION_COUNT, self._overrides())
            if not isinstance(outcome, Created | AlreadyExists):
                log.warning("internal topic not created", topic=CONSUMER_OFFSETS, why=outcome.reason)
                return
        await self._load()

    def _overrides(self) -> dict[str, str]:
        return {**OVERRIDES, MINIMUM_LAG: str(self._broker.config.trace_horizon_ms)}

    async def _settle_overrides(self, stored: Topic) -> None:
        """Of a topic that an earlier version created, or that another horizon was set for since. What somebody else
        has set stays as it is.
        """
        changes = [
            ConfigChange(name, ConfigOperation.SET, text)
            for name, text in self._overrides().items()
            if name not in stored.overrides or (name == MINIMUM_LAG and stored.overrides[name] != text)
        ]
        if changes:
            outcome = await self._catalog.change_config(CONSUMER_OFFSETS, changes)
            log.info("settings of the internal topic settled", topic=CONSUMER_OFFSETS, outcome=type(outcome).__name__)

    async def _load(self) -> None:
        stored = self._catalog.by_name(CONSUMER_OFFSETS)
        if stored is not None:
            await self._settle_overrides(stored)
        topic = self._broker.topic(CONSUMER_OFFSETS)
        assert topic is not None
        began_ms = self._clock.monotonic_ms()
        await self._residents.load_all(topic.led(), at_once=LOADING_AT_ONCE)
        self._is_ready = True
        shells = self._shells
        log.info(
            "groups loaded",
            groups=sum(len(shell.group_ids()) for shell in shells),
            records=sum(shell.replayed_records for shell in shells),
            milliseconds=self._clock.monotonic_ms() - began_ms,
        )

    async def _make(self, partition: PartitionShell, leadership: Leadership) -> GroupShell:
        shell = GroupShell(self._context, leadership, partition)
        shell.shares.config_of = self._share_config_of
        return shell

    def _on_loaded(self, shell: GroupShell) -> None:
        """Topics that were deleted while nobody was here to hear of it, or a moment before a crash, are forgotten."""
        gone = [name for name in shell.topic_names() if self._catalog.by_name(name) is None]
        if gone:
            shell.submit_to_all(ForgetTopics(tuple(gone)))

    @property
    def _shells(self) -> list[GroupShell]:
        return self._residents.shells()

    async def _save_snapshots(self) -> None:
        for shell in self._shells:
            await shell.save_snapshot_if_due()

    async def _rehearse(self, rehearsal: Rehearsal) -> None:
        async with self._residents.rehearsal(rehearsal.partition):
            shell = GroupShell(self._context, rehearsal.partition.leadership, rehearsal.partition)
            await shell.rehearse(rehearsal.rest)

    async def _reload_lost(self) -> None:
        if not self._broker.is_stopping:
            await self._residents.reload_lost()

    def damages(self) -> list[JournalDamage]:
        return self._residents.damages()

    def obey(self, authorizer: Authorizer) -> None:
        """Whoever subscribes by a regular expression is given only what it may see (KIP-848)."""
        self._topics.authorizer = authorizer

    # Roles

    def lead(self, partition: PartitionShell) -> None:
        if partition.topic == CONSUMER_OFFSETS:
            self._residents.begin(partition)

    def resign(self, partition: PartitionShell) -> None:
        if partition.topic == CONSUMER_OFFSETS:
            self._residents.resign(place_of(partition))

    # Commands

    def next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    async def submit(self, group_id: str, command: GroupCommand) -> GroupReply:
        shell = await self._shell_of(group_id)
        return shell if isinstance(shell, Refused) else await shell.submit(group_id, command)

    # Transactions

    async def commit_in_transaction(
        self,
        group_id: str,
        command: CommitTransactionOffsets,
        verify: Callable[[], Awaitable[Problem | None]],
    ) -> GroupReply | Problem:
        """TxnOffsetCommit. `verify` asks the transaction's coordinator whether the transaction is under way, or adds
        the partition to it; what it answers, unless it is None, is the reply.

        A transaction that ends between its answer and the commit makes the answer worthless, so it is asked again:
        what it says then is the truth, be it that the transaction is over or that the producer's next one has begun.
        """
        shell = await self._shell_of(group_id)
        if isinstance(shell, Refused):
            return shell
        if shell.damage.reason is not None:
            # Before the group becomes part of a transaction which could then never end.
            return shell.unavailable
        for _attempt in range(VERIFICATIONS_MAX):
            with shell.guard(command.producer_id) as guard:
                problem = await verify()
                if problem is not None:
                    return problem
                reply = await shell.submit(group_id, msgspec.structs.replace(command, guard=guard))
            if reply != Refused(GroupError.INVALID_TXN_STATE):
                break
        return reply

    async def end_transaction(self, partition: int, end: TransactionEnd) -> bool:
        """What a marker in this partition of `__consumer_offsets` would say; True once it is durable. It may be said
        any number of times. False: not now, say it again.
        """
        if not self.has_any():
            # Without the internal topic no offset waits, here or anywhere.
            return True
        if not await self.ready() or self._broker.is_stopping:
            return False
        if not 0 <= partition < self.partition_count:
            return True
        shell = await self._shell_at(partition)
        if isinstance(shell, Refused):
            return False
        log.debug(
            "transaction ends", partition=partition, producer=end.producer_id, coordinator_epoch=end.coordinator_epoch
        )
        return await shell.end_transaction(
            EndTransaction(end.producer_id, end.producer_epoch, end.is_commit, end.version), self._work.pace()
        )

    def offsets_partition_of(self, group_id: str) -> TopicPartition:
        """Where the group's offsets are, or will be: what AddOffsetsToTxn adds to a transaction."""
        return TopicPartition(CONSUMER_OFFSETS, self.partition_of(group_id))

    def refusal(self, group_id: str) -> Refused | None:
        """Why nothing of the group can be read or stored before an operator has repaired its journal; None also where
        another node has it."""
        shell = self._known_shell(group_id)
        return None if shell is None or shell.damage.reason is None else shell.unavailable

    # Looking

    async def describe(self, group_id: str) -> GroupDescription | Refused:
        if not self.has_any():
            return NO_GROUP
        shell = await self._shell_of(group_id)
        return shell if isinstance(shell, Refused) else await shell.describe(group_id)

    async def list_groups(self) -> list[tuple[str, GroupDescription]] | Refused:
        """Those of this node, without their members: clients ask every node."""
        if not self.has_any():
            return []
        if not await self.ready():
            return Refused(GroupError.COORDINATOR_NOT_AVAILABLE)
        if self._residents.is_any_loading:
            return _LOADING
        found: list[tuple[str, GroupDescription]] = []
        pace = self._work.pace()
        for shell in self._shells:
            listed = await shell.list_all(pace)
            if isinstance(listed, Refused):
                return listed
            found += listed
        return found

    async def positions_in(self, topic: str, topic_id: bytes, partition: int) -> list[GroupPosition]:
        """How every group stands that reads a partition; none while groups are not available. JournalDamagedError: what
        some of them know is damaged."""
        if not self.has_any() or not await self.ready():
            return []
        damage = next((shell.damage.reason for shell in self._shells if shell.damage.reason is not None), None)
        if damage is not None:
            raise JournalDamagedError(damage)
        found = [each for shell in self._shells for each in await shell.positions_in(topic, topic_id, partition)]
        if any(shell.refuse_look() is not None for shell in self._shells if shell.is_loaded):
            raise StoreUnavailableError("other nodes may look after the groups of this one by now")
        return found

    def committed_offset(self, group_id: str, topic: str, partition: int) -> int | None:
        """At once, for retention: None also while the group is not available, or looked after elsewhere."""
        shell = self._known_shell(group_id)
        return None if shell is None else shell.committed_offset(group_id, topic, partition)

    def some_positions(self, count_max: int) -> tuple[list[tuple[str, str, int, int]], int]:
        """Group, topic, partition and offset of about so many committed positions, and how many groups are left out."""
        found: list[tuple[str, str, int, int]] = []
        untold = 0
        for shell in self._shells:
            untold += shell.add_positions(found, count_max)
        return found, untold

    def has_any(self) -> bool:
        """False: no group was ever asked for. Looking must not create the internal topic."""
        return self._broker.topic(CONSUMER_OFFSETS) is not None

    def partition_of(self, group_id: str) -> int:
        # Not Python's hash, which differs from process to process.
        return zlib.crc32(group_id.encode()) % self.partition_count

    @property
    def partition_count(self) -> int:
        """Of the internal topic, on all nodes; also before there is one."""
        topic = self._broker.topic(CONSUMER_OFFSETS)
        return PARTITION_COUNT if topic is None else topic.partition_count

    def coordinates(self, group_id: str) -> bool:
        """This node leads the group's partition."""
        return not isinstance(self._broker.find(CONSUMER_OFFSETS, self.partition_of(group_id)), NotHere)

    async def _shell_of(self, group_id: str) -> GroupShell | Refused:
        if not await self.ready() or self._broker.is_stopping:
            return Refused(GroupError.COORDINATOR_NOT_AVAILABLE)
        return await self._shell_at(self.partition_of(group_id))

    async def _shell_at(self, index: int) -> GroupShell | Refused:
        partition = self._broker.find(CONSUMER_OFFSETS, index)
        if isinstance(partition, NotHere):
            is_known = not partition.is_unknown
            return Refused(GroupError.NOT_COORDINATOR if is_known else GroupError.COORDINATOR_NOT_AVAILABLE)
        return await self._residents.resident(partition) or _LOADING

    def _known_shell(self, group_id: str) -> GroupShell | None:
        """At once: None also while it is being made."""
        partition = self._broker.find(CONSUMER_OFFSETS, self.partition_of(group_id))
        return None if isinstance(partition, NotHere) else self._residents.get(place_of(partition))

    # Share groups

    async def shares_of(self, group_id: str) -> ShareShell | ShareRefused:
        """Where the share group of that id is or would be."""
        shell = await self._shell_of(group_id)
        return ShareRefused(shell.error, shell.detail) if isinstance(shell, Refused) else shell.shares

    def share_shells(self) -> list[ShareShell]:
        return [shell.shares for shell in self._shells]

    def share_group(self, group_id: str) -> ShareGroup | None:
        shell = self._known_shell(group_id)
        return None if shell is None else shell.shares.get(group_id)

    def configure_shares(self, config_of: Callable[[str], ShareGroupConfig]) -> None:
        """The settings of each share group, also of those that are loaded later."""
        self._share_config_of = config_of
        for shell in self.share_shells():
            shell.config_of = config_of
            for group_id in shell.group_ids():
                shell.configure(group_id)

    async def _expire(self) -> None:
        for shell in self._shells:
            await shell.sweep(ExpireOffsets(), self._archive_sweeps())

    def _archive_sweeps(self) -> dict[str, ExpireOffsets]:
        """For the groups by which topics know how far they are archived."""
        kept: dict[str, set[str]] = {}
        for topic in self._broker.topics():
            if topic.config.retention_after_archive:
                kept.setdefault(topic.config.retention_archive_group, set()).add(topic.name)
        return {group_id: ExpireOffsets(frozenset(names)) for group_id, names in kept.items()}

    def _config_of(self, group_id: str) -> GroupConfig:
        return member_config(self._config, self._catalog.group_config(group_id))

    def _on_change(self, change: Change) -> None:
        if isinstance(change, TopicRemoved) and change.topic.name == CONSUMER_OFFSETS:
            # By an operator: all that was known of groups is gone. The next one to ask begins anew.
            self._is_ready = False
            for shell in self._residents.forget(change.topic.topic_id):
                shell.close()
        elif isinstance(change, TopicRemoved):
            for shell in self._shells:
                shell.submit_to_all(ForgetTopics((change.topic.name,)))
        elif isinstance(change, GroupConfigChanged):
            known = self._known_shell(change.group)
            if known is not None:
                known.configure(change.group)
