"""Named schedules of one partition: what they send each time, and when.

The message of a definition lies in its row; it is kept in memory from its first time on, because a decision to fire
must have it at hand. Rows of what was fired come as pairs: the message, and the word that this time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.broker.schedule.reader import RowReader
from penstock.broker.schedule.values import CronFacts, CronMessage, NotScheduled
from penstock.domain.schedule.commands import (
    Decision,
    DefineCron,
    DeleteCron,
    FireCrons,
    NoteFired,
    ScheduleCommand,
    ScheduleReply,
)
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import CronDefined, Scheduled, StoredCron, entry_key
from penstock.domain.schedule.rows import Message, Row, read_message, write_row

log = get_logger("schedules")

_UNREADABLE: Final = NotScheduled(Refusal.OFFLINE, "the row of the definition cannot be read")


class CronShell(Protocol):
    """The shell whose schedules they are."""

    partition: PartitionShell
    companion: PartitionShell
    reader: RowReader
    machine: PartitionSchedule
    journal: ScheduleJournal

    def fires(self, cron: StoredCron) -> bool: ...

    def refusal(self) -> NotScheduled | None: ...

    def decide(self, command: ScheduleCommand) -> Decision: ...

    def write(self, rows: Sequence[Row]) -> None: ...


class ScheduleCrons:
    def __init__(self, shell: CronShell) -> None:
        self._shell = shell
        # By the place of the definition.
        self._messages: dict[int, Message] = {}

    def define(self, command: DefineCron, message: CronMessage) -> ScheduleReply:
        decision = self._shell.decide(command)
        for record in decision.records:
            assert isinstance(record, CronDefined)
            whole = Message(message.key, message.value, message.headers, written_ms=record.at_ms)
            self._messages[record.position] = whole
            self._shell.write([write_row(record, message=whole)])
        return decision.reply

    def delete(self, name: str) -> ScheduleReply:
        decision = self._shell.decide(DeleteCron(name))
        if decision.records:
            self._shell.write([write_row(record) for record in decision.records])
        return decision.reply

    def facts(self, now_ms: int) -> list[CronFacts]:
        shell = self._shell
        return [
            CronFacts(
                name=cron.name,
                topic=shell.partition.topic,
                partition=shell.partition.index,
                expression=cron.expression,
                zone=cron.zone,
                missed=cron.missed,
                fired_ms=cron.fired_ms,
                next_ms=shell.machine.next_due_ms(cron.name, now_ms),
            )
            for cron in shell.machine.crons()
        ]

    async def message(self, name: str) -> CronMessage | NotScheduled | None:
        cron = self._shell.machine.cron(name)
        if cron is None:
            return None
        await self._learn([cron.position])
        message = self._messages.get(cron.position)
        return _UNREADABLE if message is None else CronMessage(message.key, message.value, message.headers)

    async def fire(self) -> bool:
        """Those whose time has come. False: something is in the way, and it is to be tried again."""
        shell = self._shell
        lost = await self._learn([cron.position for cron in shell.machine.crons()])
        if shell.refusal() is not None:
            return False
        self._delete_lost(lost)
        crons = {cron.name: cron.position for cron in shell.machine.crons()}
        # Those that were replaced are not needed any more.
        self._messages = {place: message for place, message in self._messages.items() if place in crons.values()}
        if len(self._messages) < len(crons):
            return False
        # By what is known at this very moment.
        held = frozenset(cron.name for cron in shell.machine.crons() if not shell.fires(cron))
        decision = shell.decide(FireCrons(shell.journal.next_position, held))
        rows: list[Row] = []
        for record in decision.records:
            if isinstance(record, Scheduled):
                rows.append(self._row_of(record, self._messages[crons[record.cron]]))
                shell.reader.keep(record.position, rows[-1])
            else:
                rows.append(write_row(record))
        if rows:
            shell.write(rows)
        return not held

    def note_fired(self, name: str, fired_ms: int) -> ScheduleReply:
        decision = self._shell.decide(NoteFired(name, fired_ms))
        if decision.records:
            self._shell.write([write_row(record) for record in decision.records])
        return decision.reply

    def _row_of(self, record: Scheduled, message: Message) -> Row:
        dated = msgspec.structs.replace(message, written_ms=record.at_ms)
        return write_row(record, entry=entry_key(record.position), message=dated)

    def _delete_lost(self, places: frozenset[int]) -> None:
        """What they were to send was in the part of the log that a repair took out: nobody can fire them, and they
        must not hold up the others."""
        for cron in [cron for cron in self._shell.machine.crons() if cron.position in places]:
            topic, partition = self._shell.partition.topic, self._shell.partition.index
            log.error("schedule lost its message and is deleted", topic=topic, partition=partition, name=cron.name)
            self.delete(cron.name)

    async def _learn(self, positions: Sequence[int]) -> frozenset[int]:
        """Those that the log does not hold any more."""
        unknown = [position for position in positions if position not in self._messages]
        if not unknown:
            return frozenset()
        if max(unknown) >= self._shell.companion.readable_end:
            await self._shell.journal.until_durable()
        readable_end = self._shell.companion.readable_end
        try:
            rows = await self._shell.reader.rows(unknown)
        except OSError:
            return frozenset()
        for position, row in rows.items():
            if row.value is not None:
                self._messages[position] = read_message(row)[1]
        return frozenset(position for position in unknown if position < readable_end and position not in rows)


def find_zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
