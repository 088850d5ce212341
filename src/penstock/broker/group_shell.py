"""The groups of one partition of `__consumer_offsets`: the pure table, its journal, its alarm and who waits.

    submit: decide ─► apply ─► journal ─► (durable) ─► reply, and the answers of others that this decision released

There is no `await` between deciding and applying, so commands never interleave. A reply waits for everything that it
may have seen, also when it has nothing to store itself: otherwise a repeated commit would be confirmed before the first
one is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import cast, get_args

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.journal import Journal, JournalLostError
from penstock.broker.partition_shell import PartitionShell
from penstock.codec.records import StoredRecord
from penstock.domain.group_commands import Answer, Decision, GroupCommand, GroupReply, Join, Refused, Sync
from penstock.domain.group_description import GroupDescription, describe
from penstock.domain.group_records import GroupRecord, RecordKey, Removed, TransactionEnded
from penstock.domain.group_table import GroupTable
from penstock.domain.group_values import GroupConfig, GroupError, TopicFacts

log = get_logger("groups")

_encode = msgspec.msgpack.Encoder().encode
# The group, then the record's own key; a decoder cannot choose between tuples, so the key is made one afterwards.
_decode_key = msgspec.msgpack.Decoder(tuple[str, list[str | int]]).decode
# A tombstone and a control batch stand for the two that are never stored as values.
_stored_kinds = [kind for kind in get_args(GroupRecord) if kind not in (Removed, TransactionEnded)]
_decode_value: Callable[[bytes], GroupRecord] = msgspec.msgpack.Decoder(reduce(or_, _stored_kinds)).decode


class GroupShell:
    def __init__(
        self, partition: PartitionShell, *, config: GroupConfig, topics: TopicFacts, clock: Clock, steady: Clock
    ) -> None:
        self._partition = partition
        self._config = config
        self._topics = topics
        self._clock = clock
        # Sessions are measured with it: the wall clock may jump, and must not expire a hundred members at once.
        self._steady = steady
        self._loop = asyncio.get_running_loop()
        self._table = GroupTable(config, topics)
        self._journal = Journal(partition, clock)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._tickets: dict[int, asyncio.Future[GroupReply]] = {}
        self.is_loaded = False
        self.replayed_records = 0

    # Life

    async def load(self) -> None:
        """Rebuilds the table from the journal. What fails leaves the shell unloaded, to be tried again."""
        table = GroupTable(self._config, self._topics)
        journal = Journal(self._partition, self._clock)
        count = 0
        async for records in journal.replay():
            count += len(records)
            for record in records:
                _replay(table, record)
        self._table, self._journal = table, journal
        self.replayed_records = count
        self.is_loaded = True
        for group_id, decision in table.load(self._steady.now_ms()):
            self._carry_out(group_id, decision)
        self._arm()

    def close(self) -> None:
        """The node stops: whoever waits is told to look for the coordinator."""
        self.is_loaded = False
        if self._alarm is not None:
            self._alarm.cancel()
        for _, decision in self._table.unload(self._steady.now_ms()):
            self._release(decision.answers, is_durable=True)
        for future in self._tickets.values():
            if not future.done():
                future.set_result(_unavailable())
        self._tickets.clear()

    @property
    def is_lost(self) -> bool:
        return self.is_loaded and self._journal.is_lost

    # Commands

    async def submit(self, group_id: str, command: GroupCommand) -> GroupReply:
        if not self.is_loaded or self._journal.is_lost:
            return _unavailable()
        decision = self._table.decide(group_id, command, self._steady.now_ms())
        waiting: asyncio.Future[GroupReply] | None = None
        if decision.reply is None:
            assert isinstance(command, Join | Sync), "only joins and syncs are answered later"
            waiting = self._tickets[command.ticket] = self._loop.create_future()
        self._carry_out(group_id, decision)
        self._arm()
        if waiting is not None:
            return await waiting
        assert decision.reply is not None
        return decision.reply if await self._is_durable() else _unavailable()

    async def describe(self, group_id: str) -> GroupDescription:
        await self._is_durable()
        return describe(self._table.get(group_id))

    def group_ids(self) -> list[str]:
        return list(self._table)

    def submit_to_all(self, command: GroupCommand) -> None:
        """A sweep over every group of the partition; nobody waits for it."""
        if self.is_loaded and not self._journal.is_lost:
            for group_id in self.group_ids():
                self._carry_out(group_id, self._table.decide(group_id, command, self._steady.now_ms()))

    # Inside

    def _carry_out(self, group_id: str, decision: Decision) -> None:
        entries: list[tuple[bytes, bytes | None]] = []
        for record in decision.records:
            self._table.apply(group_id, record)
            assert not isinstance(record, TransactionEnded), "a control batch stands for it"
            value = None if isinstance(record, Removed) else _encode(record)
            entries.append((_encode((group_id, record.key)), value))
        self._journal.append(entries)
        if decision.answers:
            answers = decision.answers
            self._journal.when_durable(lambda is_durable: self._release(answers, is_durable=is_durable))

    def _release(self, answers: tuple[Answer, ...], *, is_durable: bool) -> None:
        for answer in answers:
            future = self._tickets.pop(answer.ticket, None)
            if future is not None and not future.done():
                future.set_result(answer.reply if is_durable else _unavailable())

    async def _is_durable(self) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self._journal.when_durable(partial(_resolve, future))
        return await future

    def _arm(self) -> None:
        """One alarm for the earliest deadline. One that rings too early finds nothing due and sets the next."""
        deadline_ms = self._table.next_deadline_ms()
        if deadline_ms is None or (self._alarm is not None and self._alarm_ms <= deadline_ms):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        delay_ms = max(0, deadline_ms - self._steady.now_ms())
        self._alarm_ms = deadline_ms
        self._alarm = self._loop.call_later(delay_ms / 1000, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        if self.is_loaded and not self._journal.is_lost:
            for group_id, decision in self._table.tick(self._steady.now_ms()):
                self._carry_out(group_id, decision)
            self._arm()


def _resolve(future: asyncio.Future[bool], is_durable: bool) -> None:
    if not future.done():
        future.set_result(is_durable)


def _unavailable() -> Refused:
    return Refused(GroupError.COORDINATOR_NOT_AVAILABLE)


def _replay(table: GroupTable, stored: StoredRecord) -> None:
    try:
        group_id, parts = _decode_key(stored.key or b"")
        key = cast(RecordKey, tuple(parts))
        record: GroupRecord = Removed(key) if stored.value is None else _decode_value(stored.value)
    except msgspec.DecodeError as error:
        raise JournalLostError(f"record at offset {stored.offset} is not a group's: {error}") from error
    table.apply(group_id, record)
