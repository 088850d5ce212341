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

from penstock.broker.append_outcome import Refusal
from penstock.broker.partition_shell import PartitionShell
from penstock.broker.schedule_journal import ScheduleJournal
from penstock.broker.schedule_reader import RowReader
from penstock.broker.schedule_values import CronFacts, CronMessage, NotScheduled
from penstock.domain.schedule import PartitionSchedule
from penstock.domain.schedule_commands import (
    Decision,
    DefineCron,
    DeleteCron,
    FireCrons,
    ScheduleCommand,
    ScheduleReply,
)
from penstock.domain.schedule_records import CronDefined, Scheduled, entry_key
from penstock.domain.schedule_rows import Message, Row, read_message, write_row

_UNREADABLE: Final = NotScheduled(Refusal.OFFLINE, "the row of the definition cannot be read")


class CronShell(Protocol):
    """The shell whose schedules they are."""

    partition: PartitionShell
    companion: PartitionShell
    reader: RowReader
    machine: PartitionSchedule
    journal: ScheduleJournal
    may_fire: bool

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
        await self._learn([cron.position for cron in shell.machine.crons()])
        if shell.refusal() is not None or not shell.may_fire:
            return False
        crons = {cron.name: cron.position for cron in shell.machine.crons()}
        # Those that were replaced are not needed any more.
        self._messages = {place: message for place, message in self._messages.items() if place in crons.values()}
        if len(self._messages) < len(crons):
            return False
        decision = shell.decide(FireCrons(shell.journal.next_position))
        rows: list[Row] = []
        for record in decision.records:
            if isinstance(record, Scheduled):
                rows.append(self._row_of(record, self._messages[crons[record.cron]]))
                shell.reader.keep(record.position, rows[-1])
            else:
                rows.append(write_row(record))
        if rows:
            shell.write(rows)
        return True

    def _row_of(self, record: Scheduled, message: Message) -> Row:
        dated = msgspec.structs.replace(message, written_ms=record.at_ms)
        return write_row(record, entry=entry_key(record.position), message=dated)

    async def _learn(self, positions: Sequence[int]) -> None:
        unknown = [position for position in positions if position not in self._messages]
        if not unknown:
            return
        if max(unknown) >= self._shell.companion.readable_end:
            await self._shell.journal.until_durable()
        try:
            rows = await self._shell.reader.rows(unknown)
        except OSError:
            return
        for position, row in rows.items():
            if row.value is not None:
                self._messages[position] = read_message(row)[1]


def find_zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
