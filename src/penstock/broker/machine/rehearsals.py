"""Rehearsals: whoever follows a journal makes, from time to time, what it would begin with if it led.

    a fetch brings rows ─► many since the last saved start ─► in line ─► its machine is built from what is committed,
                                                                         saved as its leader does, and dropped

So a takeover replays a bounded tail of the journal and not all of it, and every follower has proved that it could lead.

Rules:
- What comes is counted where it is written, journal by journal; nobody goes over all of them by the clock.
- One at a time on a node, with rests as long as the work. What is built is built in turns with requests.
- Not while this node is behind, and never in the way of a new lead, of a cut or of a log that is begun anew: it is
  ended by the first (`Residents.rehearsal`) and ends itself for the others, at the next portion.
- Saved files are made of committed records alone, so that no cut but an unclean one touches what they say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.journal_reader import committed_end
from penstock.broker.machine.portions import JournalLostError
from penstock.broker.machine.tallies import Tallies
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.errors import StorageError
from penstock.storage.log.derived import known_end

log = get_logger("rehearsals")

# After each it rests for so many times as long as it took. With the rests between portions rehearsals have a quarter of
# a processor, or a bit more, however much is written and however large what is saved has become. Four times was tried:
# after a burst that filled three journals the last one of them was due for half a minute.
REST_FACTOR: Final = 1
# While the node is behind: as long as it takes until it may have caught up, or a lead that has just gone has settled.
BEHIND_REST_MS: Final = 1_000
# Between two portions, as long as the one before took, and not longer than this.
PORTION_REST_MS_MAX: Final = 50


class Subject(StrEnum):
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    QUEUES = "queues"
    SCHEDULE = "schedule"


class RehearsalSettings(msgspec.Struct, frozen=True):
    """What a journal has to have got since its last saved start. A takeover replays about as much: rows cost a machine
    ten microseconds each, bytes cost the disk and the decoding."""

    rows: int = 50_000
    size_bytes: int = 64 * 1024 * 1024


class DisturbedError(Exception):
    """Something that must not wait for a rehearsal has come between. It is taken up again when more has come."""


class Rehearsal:
    """One that is under way."""

    def __init__(
        self,
        partition: PartitionShell,
        journal: PartitionShell,
        *,
        clock: Clock,
        may_go_on: Callable[[], bool],
    ) -> None:
        # Of which the machine is, and the log that it is made of.
        self.partition = partition
        self.journal = journal
        self.end = committed_end(journal)
        self._clock = clock
        self._may_go_on = may_go_on
        self._since = clock.monotonic_seconds()

    async def rest(self) -> None:
        """Between two portions: others go first."""
        if self.journal.log.maintenance.is_wanted or not self._may_go_on():
            raise DisturbedError
        took = self._clock.monotonic_seconds() - self._since
        await asyncio.sleep(min(took, PORTION_REST_MS_MAX / 1000))
        self._since = self._clock.monotonic_seconds()


# Returns when the start is saved. JournalLostError, StorageError, OSError: it is not, and the one before counts.
Rehearse = Callable[[Rehearsal], Awaitable[None]]
# The topic's id, the partition's number, and what is made of the journal.
_Name = tuple[bytes, int, Subject]


class Tail:
    """What has come to one followed journal since its last saved start, as far as is known."""

    __slots__ = ("_rehearsals", "is_current", "journal", "name", "partition", "rows", "size_bytes")

    def __init__(
        self,
        rehearsals: Rehearsals,
        subject: Subject,
        partition: PartitionShell,
        journal: PartitionShell,
        is_current: Callable[[], bool],
    ) -> None:
        self._rehearsals = rehearsals
        self.name = (partition.log.home.topic_id, partition.index, subject)
        self.partition = partition
        self.journal = journal
        # Whether it is followed still, and in the same role.
        self.is_current = is_current
        self.rows = self.size_bytes = 0

    @property
    def subject(self) -> Subject:
        return self.name[2]

    def note(self, rows: int, size_bytes: int) -> None:
        """Of every answer that brought some."""
        self.rows += rows
        self.size_bytes += size_bytes
        self._rehearsals.look_at(self)


class Rehearsals:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._settings = RehearsalSettings()
        self._rehearse: dict[Subject, Rehearse] = {}
        self._is_behind: Callable[[PartitionShell], bool] = lambda _: False
        self._tasks: TaskSupervisor | None = None
        self._line: dict[Tail, None] = {}
        self._more = asyncio.Event()
        # How far each was rehearsed in this process, or tried to be.
        self._ends: dict[_Name, int] = {}
        self.done = Tallies()
        self.failed_count = 0

    def add(self, subject: Subject, rehearse: Rehearse) -> None:
        self._rehearse[subject] = rehearse

    def start(
        self, settings: RehearsalSettings, tasks: TaskSupervisor, is_behind: Callable[[PartitionShell], bool]
    ) -> None:
        """When this node follows others; `tasks` end it. `is_behind`: this node, where that partition is concerned."""
        self._settings, self._tasks, self._is_behind = settings, tasks, is_behind
        tasks.start("rehearsals", self._run(tasks))

    def follow(
        self, subject: Subject, partition: PartitionShell, journal: PartitionShell, is_current: Callable[[], bool]
    ) -> Tail:
        """From now on what comes to the journal is counted. What came before this process has looked at it may be a
        whole log, or nothing: the file is looked at when it may matter."""
        tail = Tail(self, subject, partition, journal, is_current)
        end = self._ends.get(tail.name)
        tail.rows = journal.log.log_end - (journal.log.log_start if end is None else end)
        tail.size_bytes = journal.log.size_bytes if end is None else 0
        self.look_at(tail)
        return tail

    def forget(self, topic_id: bytes, index: int) -> None:
        """The partition is gone."""
        for subject in Subject:
            self._ends.pop((topic_id, index, subject), None)

    def look_at(self, tail: Tail) -> None:
        if self._tasks is not None and self._is_due(tail):
            self._line[tail] = None
            self._more.set()

    def _is_due(self, tail: Tail) -> bool:
        return tail.rows >= self._settings.rows or tail.size_bytes >= self._settings.size_bytes

    # One after the other

    async def _run(self, tasks: TaskSupervisor) -> None:
        while True:
            await self._more.wait()
            while self._line:
                tail = next(iter(self._line))
                while tail.is_current() and self._must_wait(tail):  # noqa: ASYNC110  nobody tells
                    await asyncio.sleep(BEHIND_REST_MS / 1000)
                del self._line[tail]
                began = self._clock.monotonic_seconds()
                # A task of its own: whoever begins to lead ends it, and this goes on.
                await asyncio.wait([tasks.start(f"rehearsal of {tail.subject}", self._take(tail))])
                await asyncio.sleep(REST_FACTOR * (self._clock.monotonic_seconds() - began))
            self._more.clear()

    def _must_wait(self, tail: Tail) -> bool:
        """Also for those who make the machines: a node follows before it has its queues."""
        return tail.subject not in self._rehearse or self._is_behind(tail.partition)

    async def _take(self, tail: Tail) -> None:
        maintenance = tail.journal.log.maintenance
        if (
            tail.subject not in self._rehearse
            or not tail.is_current()
            or not await self._is_truly_due(tail)
            or not maintenance.join()
        ):
            return
        try:
            await self._take_now(tail)
        finally:
            maintenance.leave()

    async def _is_truly_due(self, tail: Tail) -> bool:
        """By the file, where nothing is known of it but that it may be old."""
        partition_log = tail.journal.log
        if tail.name not in self._ends:
            found = await asyncio.to_thread(known_end, partition_log.context.files, partition_log.home.directory)
            saved = min(max(found, partition_log.log_start), partition_log.log_end)
            whole = max(1, partition_log.log_end - partition_log.log_start)
            self._ends[tail.name] = saved
            tail.rows = partition_log.log_end - saved
            tail.size_bytes = partition_log.size_bytes * tail.rows // whole
        return self._is_due(tail) and tail.is_current()

    async def _take_now(self, tail: Tail) -> None:
        began = self._clock.monotonic_seconds()
        rehearsal = Rehearsal(
            tail.partition,
            tail.journal,
            clock=self._clock,
            may_go_on=lambda: tail.is_current() and not self._is_behind(tail.partition),
        )
        where = {"subject": tail.subject, "topic": tail.partition.topic, "partition": tail.partition.index}
        try:
            await self._rehearse[tail.subject](rehearsal)
        except DisturbedError:
            log.debug("rehearsal not finished", **where)
            return
        except (JournalLostError, StorageError, OSError) as error:
            # Not at once again, which would read the same; when as much has come once more.
            self.failed_count += 1
            log.error("rehearsal failed", **where, error=str(error))
        else:
            seconds = self._clock.monotonic_seconds() - began
            self.done.add(tail.subject, seconds)
            log.info("rehearsed", **where, offset=rehearsal.end, milliseconds=round(1000 * seconds))
        self._ends[tail.name] = rehearsal.end
        tail.rows = tail.journal.log.log_end - rehearsal.end
        tail.size_bytes = 0
