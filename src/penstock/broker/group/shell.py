"""The groups of one partition of `__consumer_offsets`: the pure table, its journal, its alarm and who waits.

    submit: decide ─► apply ─► journal ─► (durable) ─► reply, and the answers of others that this decision released

There is no `await` between deciding and applying, so commands never interleave. A reply waits for everything that it
may have seen, also when it has nothing to store itself: otherwise a repeated commit would be confirmed before the first
one is durable.

While the disk is full nothing is decided that would have to be stored, so the table stays true and positions can be
read. When there is room again everything is replayed: heartbeats were refused meanwhile, and nobody is to be missed for
that.

A shell is of one leadership. When that ends nothing is answered from its table any more, not even what was decided
before and is durable only now: whoever leads next may have decided otherwise. A reply that only looks is given while
the partition `may_look`: who was paused or cut off finds by that, at the reply, that another may lead by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from typing import Final, get_args

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork, Pace
from penstock.broker.group.share_shell import ShareShell, StoredShareRecord, is_share_key
from penstock.broker.machine.alarm import Alarm
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.journal import Journal
from penstock.broker.machine.journal_reader import SNAPSHOT_RECORDS_MIN, JournalReader, Rest
from penstock.broker.machine.portions import JournalLostError, UnreadableRecordsError, damaged
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.domain.group.commands import (
    Answer,
    CommitOffsets,
    Decision,
    EndTransaction,
    FetchOffsets,
    GroupCommand,
    GroupReply,
    Heartbeat,
    Join,
    Refused,
    Sync,
)
from penstock.domain.group.description import GroupDescription, GroupPosition, describe, position_of, summary
from penstock.domain.group.records import GroupRecord, OffsetStored, Removed
from penstock.domain.group.table import GroupTable
from penstock.domain.group.values import GroupConfig, GroupError, TopicFacts
from penstock.domain.share.machine import ShareEpochStored, ShareMemberStored, ShareRemoved, ShareTargetStored
from penstock.storage.log.journal_snapshot import Entry

log = get_logger("groups")

NOT_COORDINATOR: Final = Refused(GroupError.NOT_COORDINATOR)
# What is answered also while nothing can be stored.
READING: Final = (FetchOffsets, Heartbeat)
# Groups that are looked at before others may use the loop: a millisecond.
POSITIONS_AT_ONCE: Final = 1_000
# What a sweep takes of the loop at a time.
SWEEP_MS_MAX: Final = 2

_encode = msgspec.msgpack.Encoder().encode
# The group, then the record's own key, which is needed of tombstones only: the others say it in their value.
_decode_key = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode
_decode_record_key = msgspec.msgpack.Decoder(tuple[str, str, int]).decode
# A tombstone stands for the one that is never stored as a value.
_stored_kinds = [kind for kind in get_args(GroupRecord) if kind is not Removed]
_decode_value: Callable[[bytes], GroupRecord | StoredShareRecord] = msgspec.msgpack.Decoder(
    reduce(or_, [*_stored_kinds, *get_args(StoredShareRecord)])
).decode


class GroupContext(msgspec.Struct, frozen=True):
    """What all groups of a node have in common."""

    config: GroupConfig
    topics: TopicFacts
    clock: Clock
    # Sessions are measured with it: the wall clock may jump, and must not expire a hundred members at once.
    steady: Clock
    config_of: Callable[[str], GroupConfig] | None = None
    snapshot_records_min: int = SNAPSHOT_RECORDS_MIN


class GroupShell:
    def __init__(self, context: GroupContext, leadership: Leadership, partition: PartitionShell) -> None:
        self._context = context
        self._leadership = leadership
        self._partition = partition
        self._clock = context.clock
        self._steady = steady = context.steady
        self._loop = asyncio.get_running_loop()
        self._table = self._new_table()
        self._journal = self._new_journal()
        self._alarm = Alarm(steady, self._on_alarm)
        self._tickets: dict[int, asyncio.Future[GroupReply]] = {}
        self._is_held = False
        # Share groups live in the same partitions and in the same journal, and have their own machine.
        self.shares = ShareShell(self, context.topics, steady)
        self.is_loaded = False
        self._is_resigned = False
        # Why it cannot be loaded before somebody repairs its journal.
        self.damage = JournalDamage(partition)
        self.replayed_records = 0

    # Life

    async def load(self) -> None:
        """Rebuilds the table from the journal. What fails leaves the shell unloaded: JournalLostError."""
        with self.damage.noted():
            await self._load()

    async def _load(self) -> None:
        table = self._new_table()
        journal = self._new_journal()
        count = 0
        self.shares.clear()
        async for entries in journal.replay_entries():
            count += len(entries)
            unread = _replay(table, self.shares, entries)
            if unread is not None:
                self.shares.clear()
                raise await journal.unreadable(*unread)
        if self._is_resigned:
            return
        self._table, self._journal = table, journal
        self.replayed_records = count
        self.is_loaded = True
        self._is_held = False
        for group_id, decision in table.load(self._steady.now_ms()):
            self._carry_out(group_id, decision)
        self._alarm.set(table.next_deadline_ms())
        self.shares.start()

    def _new_table(self) -> GroupTable:
        return GroupTable(self._context.config, self._context.topics, self._context.config_of)

    def _new_journal(self) -> Journal:
        return Journal(
            self._partition,
            self._clock,
            leadership=self._leadership,
            flush_ms=self._context.config.offsets_flush_ms,
            snapshot_records_min=self._context.snapshot_records_min,
        )

    async def flush(self) -> None:
        """Returns when nothing is left that could be lost."""
        self._journal.flush()
        await self._journal.until_durable()

    async def save_snapshot_if_due(self) -> None:
        if self.is_loaded and self._journal.is_snapshot_due:
            try:
                await self._journal.save_snapshot()
            except JournalLostError as error:
                log.warning("snapshot not made", error=str(error))

    async def rehearse(self, rest: Rest) -> None:
        """Of a partition that another leads: the table is built of what is committed, the snapshot saved. It is not
        loaded by it, and answers nobody."""
        table = self._new_table()

        def look(entries: Sequence[Entry]) -> None:
            unread = _replay(table, self.shares, entries)
            if unread is not None:
                raise UnreadableRecordsError(unread[1])

        try:
            await JournalReader(self._partition).save_snapshot(look=look, rest=rest)
        except UnreadableRecordsError as error:
            raise damaged(self._partition, str(error)) from error

    def close(self) -> None:
        """The node stops: whoever waits is told to look for the coordinator."""
        self.is_loaded = False
        self.shares.close()
        self._alarm.cancel()
        for _, decision in self._table.unload(self._steady.now_ms()):
            self._release(decision.answers)
        for future in self._tickets.values():
            if not future.done():
                future.set_result(self.unavailable)
        self._tickets.clear()

    async def unload(self) -> None:
        """The journal is lost, or the disk was full for a while."""
        self.close()

    def resign(self) -> None:
        """Somebody else looks after these groups: whoever waits is told to look for the coordinator."""
        self._is_resigned = True
        self.close()

    async def leave(self) -> None:
        """Nothing is left to do: what has not been written is refused by the log."""

    def configure(self, group_id: str) -> None:
        self._table.configure(group_id)

    @property
    def index(self) -> int:
        return self._partition.index

    @property
    def is_lost(self) -> bool:
        """It is to be replayed, and can be."""
        is_over = self._is_held and not self._partition.log.context.is_full
        return self.is_loaded and (self._journal.is_lost or is_over)

    def _holds_writes(self) -> bool:
        if self._partition.log.context.is_full:
            self._is_held = True
        return self._is_held

    @property
    def unavailable(self) -> Refused:
        """What whoever asks is told while nothing can be read or stored. Never that there is no offset: a consumer
        would begin anew, or skip what it has not read."""
        if self._is_resigned:
            return NOT_COORDINATOR
        if self.damage.reason is None:
            return Refused(GroupError.COORDINATOR_NOT_AVAILABLE)
        return Refused(GroupError.UNKNOWN_SERVER_ERROR, detail=self.damage.reason)

    # Commands

    async def submit(self, group_id: str, command: GroupCommand) -> GroupReply:
        if not self.is_loaded or self._journal.is_lost:
            return self.unavailable
        if self._holds_writes() and type(command) not in READING:
            return self.unavailable
        if type(command) is not FetchOffsets and self.shares.get(group_id) is not None:
            is_join = type(command) is Join
            return Refused(GroupError.INCONSISTENT_GROUP_PROTOCOL if is_join else GroupError.GROUP_ID_NOT_FOUND)
        decision = self._table.decide(group_id, command, self._steady.now_ms())
        waiting: asyncio.Future[GroupReply] | None = None
        if decision.reply is None:
            assert isinstance(command, Join | Sync), "only joins and syncs are answered later"
            waiting = self._tickets[command.ticket] = self._loop.create_future()
        # Positions may wait for company; what others wait for may not.
        may_wait = type(command) is CommitOffsets
        self._carry_out(group_id, decision, may_wait=may_wait)
        self._alarm.set(self._table.next_deadline_ms())
        if waiting is not None:
            return await waiting
        assert decision.reply is not None
        return await self.refuse_reply(is_look=not decision.records, may_wait=may_wait) or decision.reply

    async def refuse_reply(self, *, is_look: bool, may_wait: bool = False) -> Refused | None:
        """Why a reply must not leave, when everything is durable that it may have seen; None: it may. One that rests on
        no write of its own is a look."""
        is_durable = await self._journal.until_durable(may_wait=may_wait)
        return self._refuse(is_durable=is_durable, is_look=is_look)

    def _refuse(self, *, is_durable: bool, is_look: bool) -> Refused | None:
        # Also if it is durable: it may have become so for whoever leads now.
        if not is_durable or self._is_resigned:
            return self.unavailable
        return NOT_COORDINATOR if is_look and not self._partition.may_look else None

    def refuse_look(self) -> Refused | None:
        """Of what is told at once, durable or not."""
        return self._refuse(is_durable=self.is_loaded, is_look=True)

    async def end_transaction(self, command: EndTransaction, pace: Pace | None = None) -> bool:
        """True once what follows from it is durable, also if nothing does. False: it is to be said again.

        Thousands of offsets are ended a portion at a time. Until the last of them whoever wants stable offsets is
        refused those that are left, and after a crash they wait: the coordinator says it again.
        """
        if not self.can_store:
            return False
        pace = pace or LongWork(self._clock.monotonic_seconds).pace()
        table = self._table
        for group_id, decision in table.end_transaction(command, self._steady.now_ms()):
            self._carry_out(group_id, decision)
            await pace.rest_if_due()
            if table is not self._table or not self.can_store:
                return False
        return await self._journal.until_durable() and not self._is_resigned

    @contextmanager
    def guard(self, producer_id: int) -> Iterator[int]:
        """Held while the transaction's coordinator is asked. A table that is rebuilt meanwhile knows nothing of it."""
        guards = self._table.guards
        guard = guards.begin(producer_id)
        try:
            yield guard
        finally:
            guards.finish(producer_id, guard)

    async def describe(self, group_id: str) -> GroupDescription | Refused:
        """As it is once everything that it may show is durable: what may still be lost is not told to anybody."""
        return await self._refuse_description() or describe(self._table.get(group_id))

    async def list_all(self, pace: Pace | None = None) -> list[tuple[str, GroupDescription]] | Refused:
        """Without their members, and each as it is when its turn comes: there may be a hundred thousand."""
        pace = pace or LongWork(self._clock.monotonic_seconds).pace()
        listed = []
        for group_id in [group_id for group_id, _ in self._table.items()]:
            group = self._table.get(group_id)
            if group is not None:
                listed.append((group_id, summary(group)))
            await pace.rest_if_due()
        # Afterwards, so that it holds for the last one too.
        return await self._refuse_description() or listed

    async def _refuse_description(self) -> Refused | None:
        # What was decided while this waited need not be durable yet. That a reader sees it a moment early is the same
        # as if it had asked a moment later, unless it is lost, which the journal knows then.
        is_durable = self.is_loaded and await self._journal.until_durable()
        return self._refuse(is_durable=is_durable and not self._journal.is_lost, is_look=True)

    def group_ids(self) -> list[str]:
        return list(self._table)

    def committed_offset(self, group_id: str, topic: str, partition: int) -> int | None:
        """None also while it is not known: the shell is being loaded."""
        group = self._table.get(group_id) if self.is_loaded else None
        stored = None if group is None else group.offsets.get(topic, partition)
        return None if stored is None else stored.offset

    def add_positions(self, found: list[tuple[str, str, int, int]], count_max: int) -> int:
        """Committed positions of some groups, until there are about so many; how many groups were left out."""
        if not self.is_loaded:
            return 0
        for number, (group_id, group) in enumerate(self._table.items()):
            if len(found) >= count_max or number >= count_max:
                return len(self._table) - number
            for (topic, partition), stored in group.offsets.as_dict().items():
                found.append((group_id, topic, partition, stored.offset))
        return 0

    async def positions_in(self, topic: str, topic_id: bytes, partition: int) -> list[GroupPosition]:
        """How the groups stand that read a partition; others get their turn meanwhile."""
        found: list[GroupPosition] = []
        for number, group_id in enumerate(self.group_ids() if self.is_loaded else ()):
            group = self._table.get(group_id)
            position = None if group is None else position_of(group_id, group, topic, topic_id, partition)
            if position is not None:
                found.append(position)
            if number % POSITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def snapshot_of(self, group_id: str) -> list[GroupRecord]:
        """Records that rebuild the group as it is now."""
        group = self._table.get(group_id)
        return [] if group is None else group.snapshot()

    def topic_names(self) -> list[str]:
        """The topics of which offsets are kept."""
        return self._table.topic_names()

    def submit_to_all(self, command: GroupCommand) -> None:
        """To every group of the partition, in one step; nobody waits for it."""
        for group_id in self.group_ids():
            self._submit_alone(group_id, command)

    async def sweep(self, command: GroupCommand, exceptions: Mapping[str, GroupCommand] | None = None) -> None:
        """The same in no hurry: others get their turn while thousands of groups are looked at. Some get another
        command.
        """
        others = exceptions or {}
        began_ms = self._clock.monotonic_ms()
        for group_id in self.group_ids():
            self._submit_alone(group_id, others.get(group_id, command))
            if self._clock.monotonic_ms() - began_ms >= SWEEP_MS_MAX:
                await asyncio.sleep(0)
                began_ms = self._clock.monotonic_ms()

    def _submit_alone(self, group_id: str, command: GroupCommand) -> None:
        is_ready = self.is_loaded and not self._journal.is_lost and not self._holds_writes()
        if is_ready and self._table.get(group_id) is not None:
            self._carry_out(group_id, self._table.decide(group_id, command, self._steady.now_ms()))

    # For the share groups

    @property
    def can_store(self) -> bool:
        return self.is_loaded and not self._journal.is_lost and not self._holds_writes()

    def store(self, entries: Sequence[Entry]) -> None:
        self._journal.append(entries)

    def has_other_group(self, group_id: str) -> bool:
        group = self._table.get(group_id)
        return group is not None and group.exists

    # Inside

    def _carry_out(self, group_id: str, decision: Decision, *, may_wait: bool = False) -> None:
        entries: list[tuple[bytes, bytes | None]] = []
        for record in decision.records:
            self._table.apply(group_id, record)
            value = None if isinstance(record, Removed) else _encode(record)
            entries.append((_encode((group_id, record.key)), value))
        self._journal.append(entries, may_wait=may_wait)
        if decision.answers:
            self._journal.when_durable(partial(self._release_unless_refused, decision))

    def _release_unless_refused(self, decision: Decision, is_durable: bool) -> None:
        refused = self._refuse(is_durable=is_durable, is_look=not decision.records)
        self._release(decision.answers, refused)

    def _release(self, answers: tuple[Answer, ...], refused: Refused | None = None) -> None:
        for answer in answers:
            future = self._tickets.pop(answer.ticket, None)
            if future is not None and not future.done():
                future.set_result(refused or answer.reply)

    def _on_alarm(self) -> None:
        if self.is_loaded and not self._journal.is_lost and not self._holds_writes():
            for group_id, decision in self._table.tick(self._steady.now_ms()):
                self._carry_out(group_id, decision)
            self._alarm.set(self._table.next_deadline_ms())


def _replay(table: GroupTable, shares: ShareShell, entries: Sequence[Entry]) -> tuple[Entry, str] | None:
    """A loop that a start may go through a million times. What it returns is not a group's: the entry, and why."""
    decode_key, decode_value, apply = _decode_key, _decode_value, table.apply
    key, value = b"", None
    try:
        for key, value in entries:
            group_id, record_key = decode_key(key)
            if value is None:
                removed = _decode_record_key(record_key)
                if is_share_key(removed):
                    shares.replay(group_id, ShareRemoved(removed))
                else:
                    apply(group_id, Removed(removed))
                continue
            record = decode_value(value)
            if type(record) is not OffsetStored and isinstance(
                record, ShareEpochStored | ShareMemberStored | ShareTargetStored
            ):
                shares.replay(group_id, record)
            else:
                apply(group_id, record)
    except msgspec.DecodeError as error:
        return (key, value), f"it is not a group's: {error}"
    return None
