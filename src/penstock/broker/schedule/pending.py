"""The messages of one partition that wait for their time: to show them, to list them, to change them.

A message's row lies somewhere in the schedule's log; the machine knows where. What is read meanwhile may be over when
it is there, so every change asks the machine anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.base.clock import Clock
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.due_list import LISTED_AT_ONCE, LISTED_BYTES_MAX, DueList
from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.broker.schedule.mover import ScheduleMover
from penstock.broker.schedule.reader import CACHED_MS_MAX, RowReader
from penstock.broker.schedule.refusals import LOST, refuse_unreadable
from penstock.broker.schedule.values import ChangeOutcome, DueCursor, NotScheduled, PendingMessage, PendingPage
from penstock.domain.schedule.commands import (
    Accepted,
    Cancel,
    Decision,
    Refused,
    Reschedule,
    ScheduleCommand,
    ScheduleProblem,
)
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import NO_POSITION
from penstock.domain.schedule.records import Scheduled as ScheduledRow
from penstock.domain.schedule.rows import Row, read_message, write_row


class PendingShell(Protocol):
    """The shell whose messages they are."""

    partition: PartitionShell
    companion: PartitionShell
    reader: RowReader
    machine: PartitionSchedule
    journal: ScheduleJournal
    files: ScheduleFiles
    mover: ScheduleMover
    is_loaded: bool

    @property
    def is_lost(self) -> bool: ...

    @property
    def unavailable(self) -> NotScheduled: ...

    def refusal(self) -> NotScheduled | None: ...

    def decide(self, command: ScheduleCommand) -> Decision: ...

    def write(self, rows: Sequence[Row]) -> None: ...

    async def settle(self, reply: object) -> ChangeOutcome: ...

    def refuse_look(self) -> NotScheduled | None: ...

    def message_id(self, origin: int) -> str: ...


class PendingMessages:
    def __init__(self, shell: PendingShell, clock: Clock) -> None:
        self._shell = shell
        self._clock = clock

    # Changes

    async def cancel(self, origin: int) -> ChangeOutcome:
        row = await self._row_of(origin)
        if not isinstance(row, Row):
            return row
        refused = self._shell.refusal()
        if refused is not None:
            return refused
        decision = self._shell.decide(Cancel(origin))
        if decision.records:
            self._shell.write([write_row(record, entry=row.key) for record in decision.records])
        return await self._shell.settle(decision.reply)

    async def reschedule(self, origin: int, due_ms: int) -> ChangeOutcome:
        """Its id stays what it was. A time that is past is now."""
        row = await self._row_of(origin)
        if not isinstance(row, Row):
            return row
        refused = self._shell.refusal()
        if refused is not None:
            return refused
        record, message = read_message(row)
        message = msgspec.structs.replace(message, arrived_ms=message.arrived_ms or record.at_ms)
        decision = self._shell.decide(Reschedule(self._shell.journal.next_position, origin, due_ms))
        rows = [write_row(record, entry=row.key, message=message) for record in decision.records]
        if rows and isinstance(decision.reply, Accepted):
            if due_ms < self._clock.now_ms() + CACHED_MS_MAX:
                self._shell.reader.keep(decision.reply.position, rows[0])
            self._shell.write(rows)
            self._shell.mover.look()
        return await self._shell.settle(decision.reply)

    async def _row_of(self, origin: int) -> Row | Refused | NotScheduled:
        """The row of a message that waits: its key and the message itself stay what they are, whatever comes."""
        if not self._shell.is_loaded:
            return self._shell.unavailable
        position = self._shell.machine.place_of(origin)
        if position is None:
            return self._shell.refuse_look() or Refused(ScheduleProblem.NOT_PENDING)
        if self._shell.machine.is_being_released(origin):
            return self._shell.refuse_look() or Refused(ScheduleProblem.BEING_RELEASED)
        return await self._row_at(position) or refuse_unreadable(self._shell.companion)

    async def _row_at(self, position: int) -> Row | None:
        if position >= self._shell.companion.readable_end:
            await self._shell.journal.until_durable()
        try:
            row = (await self._shell.reader.rows([position])).get(position)
        except OSError:
            return None
        return None if row is None or row.value is None else row

    # Looking

    async def show(self, origin: int) -> PendingMessage | NotScheduled | None:
        if not self._shell.is_loaded:
            return self._shell.unavailable
        position = self._shell.machine.place_of(origin)
        if position is None:
            return self._shell.refuse_look()
        row = await self._row_at(position)
        if row is None:
            return refuse_unreadable(self._shell.companion)
        return self._shell.refuse_look() or self._message(position, row)

    def _message(self, position: int, row: Row) -> PendingMessage:
        record, message = read_message(row)
        assert isinstance(record, ScheduledRow)
        origin = record.origin if record.origin != NO_POSITION else position
        return PendingMessage(
            message_id=self._shell.message_id(origin),
            topic=self._shell.partition.topic,
            partition=self._shell.partition.index,
            origin=origin,
            position=position,
            due_ms=record.due_ms,
            arrived_ms=message.arrived_ms or record.at_ms,
            written_ms=message.written_ms,
            key=message.key,
            value=message.value,
            headers=message.headers,
            cron=record.cron,
            is_being_released=self._shell.machine.is_being_released(origin),
        )

    async def list_due(
        self, after: DueCursor | None, limit: int, *, bytes_max: int = LISTED_BYTES_MAX
    ) -> PendingPage | NotScheduled:
        if not self._shell.is_loaded:
            return self._shell.unavailable
        if (
            self._shell.companion.readable_end < self._shell.journal.next_position
            and not await self._shell.journal.until_durable()
        ):
            return LOST
        machine = self._shell.machine
        due_list = DueList(machine, self._shell.files, partition=self._shell.partition.index)
        try:
            entries, cursor = await due_list.page(after, limit)
        except OSError:
            return refuse_unreadable(self._shell.companion)
        if self._shell.is_lost or not self._shell.is_loaded or self._shell.machine is not machine:
            # Files are gone for another reason than that their time came, and the page may lack what was in them.
            return LOST if self._shell.is_loaded else self._shell.unavailable
        messages: list[PendingMessage] = []
        first, count = 0, LISTED_AT_ONCE
        while first < len(entries):
            some = entries[first : first + count]
            first += len(some)
            try:
                rows = await self._shell.reader.rows([position for _due_ms, position in some])
            except OSError:
                return refuse_unreadable(self._shell.companion)
            if self._shell.companion.log.damage is not None:
                # Some may be missing for no other reason: a page without them would look whole.
                return refuse_unreadable(self._shell.companion)
            messages += [
                self._message(position, row)
                for _due_ms, position in some
                if (row := rows.get(position)) is not None and row.value is not None
            ]
            size_bytes = sum(len(row.value or b"") for row in rows.values())
            bytes_max -= size_bytes
            if bytes_max <= 0 and first < len(entries):
                page = PendingPage(messages, DueCursor(some[-1][0], self._shell.partition.index, some[-1][1]))
                return self._shell.refuse_look() or page
            # As many as will fit, if they are as large as these.
            count = max(LISTED_AT_ONCE, bytes_max * len(some) // max(size_bytes, 1))
        return self._shell.refuse_look() or PendingPage(messages, cursor)
