"""Fetches from one leader in one lane: one request under way, for all logs that follow this leader in this lane.

    name what is new or has moved ─► fetch ─► each answer into its log ─► the disk has it ─► and again

    synced     what counts when the disk has it: the next fetch leaves when the turn has ended that covers what came
    fast       what counts when the kernel has it: the next fetch leaves at once
    catch-up   what is far behind and not in sync: nobody waits for it, so it must not hold up the others

Rules:
- Of a session the leader is told only what has changed: a log that got something, or was refused, is named again.
- What takes longer (cutting off an end, beginning anew, opening a companion) is done beside the lane, one thing at a
  time for each log, and the log is named again afterwards.
- A log that cannot be followed rests, and so does the lane when its leader is out of reach: nobody is asked in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.replication.followed import (
    LOG_BYTES_MAX,
    Asked,
    Failure,
    FollowedLog,
    Open,
    Outcome,
    Refused,
    Stale,
    Taken,
)
from penstock.domain.replication.exchange import LogFetch, LogFetched, LogName, ReplicaFetch, ReplicaFetched
from penstock.domain.replication.truncation import BeginAnew, Cut
from penstock.net.errors import PeerError
from penstock.net.peers import Lane
from penstock.storage.errors import StorageError
from penstock.storage.log.removal import LogRemoval

log_events = get_logger("replication")

# As long as a log that has just got this leader may wait for the fetch before to come back.
WAIT_MS: Final = 200
REPLY_BYTES_MAX: Final = 8 * 1024 * 1024
# A leader that is out of reach, or has no answer for a log. Elections take a multiple of it.
REST_MS: Final = 100
# Of a log that this node's own disk keeps from following.
FAILED_REST_MS: Final = 1_000
# So much in full answers, one after another, is far behind.
BEHIND_BYTES: Final = 64 * LOG_BYTES_MAX


class Calls(Protocol):
    """What is needed of `net/replica/calls`."""

    async def fetch(self, node_id: int, lane: Lane, fetch: ReplicaFetch) -> ReplicaFetched: ...


class FetcherListener(Protocol):
    """The node, as its fetchers tell it."""

    async def cut(self, log: FollowedLog, plan: Cut | BeginAnew) -> None: ...

    async def open(self, log: FollowedLog) -> None:
        """The companion is opened, and the log has its shell."""
        ...

    def on_failed(self, log: FollowedLog, failure: Failure) -> None:
        """Before anything else the replica takes itself out of the set."""
        ...

    def on_behind(self, log: FollowedLog) -> None: ...

    def on_caught_up(self, log: FollowedLog) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Who fetches, the same for all of a node's lanes."""

    node_id: int
    # Its broker epoch, as it is now.
    life: Callable[[], int]
    clock: Clock
    tasks: TaskSupervisor
    # Of what is far behind, from one leader.
    catch_up_bytes_per_second: int


class Fetcher:
    def __init__(
        self,
        leader: int,
        lane: Lane,
        calls: Calls,
        listener: FetcherListener,
        asking: Asking,
    ) -> None:
        self.leader = leader
        self.lane = lane
        self.fetched_bytes = 0
        # When the leader last had nothing more for this lane.
        self._even_ms = asking.clock.monotonic_ms()
        # Of logs whose leader has more committed than is here, how far.
        self._ahead: dict[LogName, int] = {}
        self._calls = calls
        self._listener = listener
        self._asking = asking
        self._tasks = asking.tasks
        self._logs: dict[LogName, FollowedLog] = {}
        # To be named in the next fetch, and to be left out of it from then on.
        self._named: dict[LogName, None] = {}
        self._forgotten: dict[LogName, None] = {}
        # As each log stood when it was last named: what the leader says is said of that.
        self._asked: dict[LogName, Asked] = {}
        # Named again when its work is done, or its rest is over.
        self._away: dict[LogName, FollowedLog] = {}
        self._session_id = self._session_epoch = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._logs)

    def start(self) -> None:
        self._task = self._tasks.start(f"fetch from node {self.leader}, {self.lane}", self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # Who is followed

    def add(self, log: FollowedLog) -> None:
        self._logs[log.name] = log
        self._forgotten.pop(log.name, None)
        owed = log.owes()
        if owed is None:
            self._name(log)
        else:
            self._away[log.name] = log
            owed.when_known(lambda _: self._come_back(log))

    def remove(self, log: FollowedLog) -> None:
        if self._logs.get(log.name) is log:
            del self._logs[log.name]
            self._asked.pop(log.name, None)
            self._named.pop(log.name, None)
            self._away.pop(log.name, None)
            self._forgotten[log.name] = None
            self._ahead.pop(log.name, None)

    # How far behind

    def lag_ms(self) -> int:
        """Since the leader had nothing more for this lane; a fetch that waits for more is no lag."""
        return max(0, self._asking.clock.monotonic_ms() - self._even_ms - WAIT_MS) if self._logs else 0

    def lag_bytes(self) -> int:
        """About: what is missing is counted in offsets, and as large as what is here."""
        return sum(_missing_bytes(log, end) for name, end in self._ahead.items() if (log := self._logs.get(name)))

    def ask_again(self, log: FollowedLog) -> None:
        """It is not what the leader was last told."""
        if self._logs.get(log.name) is log and log.name not in self._away:
            self._name(log)

    def _name(self, log: FollowedLog) -> None:
        self._named[log.name] = None
        self._wake.set()

    def _come_back(self, log: FollowedLog) -> None:
        if self._away.get(log.name) is log:
            del self._away[log.name]
            self._forgotten.pop(log.name, None)
            self._name(log)

    # Fetching

    async def _run(self) -> None:
        while True:
            if not self._logs:
                self._wake.clear()
                await self._wake.wait()
            try:
                is_answered = await self._fetch_once()
            except Exception as error:  # edge of a lane, which must not end with one log
                log_events.error("fetch failed", leader=self.leader, lane=self.lane, exc_info=error)
                self._begin_anew()
                is_answered = False
            if not is_answered:
                await asyncio.sleep(REST_MS / 1000)

    async def _fetch_once(self) -> bool:
        """False: the leader gives no answers for now."""
        try:
            reply = await self._calls.fetch(self.leader, self.lane, self._request())
        except PeerError:
            self._begin_anew()
            return False
        if reply.problem is not None:
            self._begin_anew()
            return False
        self._session_id, self._session_epoch = reply.session_id, self._session_epoch + 1
        if not any(len(answer.records) for answer in reply.logs):
            self._even_ms = self._asking.clock.monotonic_ms()
        before = self.fetched_bytes
        owing = [owed for answer in reply.logs if (owed := self._take(answer)) is not None]
        for log, commitment in owing:
            if await commitment.kept():
                self._look_at(log)
            elif commitment.loss is Loss.DISK:
                # Any other loss is that of the role: whoever is followed next asks the disk anew.
                self._fail(log, Failure.DISK_FAILED)
        if self.lane is Lane.CATCH_UP:
            # Nobody waits for it, and everybody else wants the leader's disk and the wire.
            await asyncio.sleep((self.fetched_bytes - before) / self._asking.catch_up_bytes_per_second)
        return True

    def _request(self) -> ReplicaFetch:
        named, self._named = self._named, {}
        wanted = [fetch for name in sorted(named) if (fetch := self._ask(name)) is not None]
        forgotten, self._forgotten = self._forgotten, {}
        return ReplicaFetch(
            node_id=self._asking.node_id,
            life=self._asking.life(),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            wait_ms=WAIT_MS,
            bytes_max=REPLY_BYTES_MAX,
            logs=wanted,
            forgotten=sorted(forgotten) if self._session_id else (),
        )

    def _ask(self, name: LogName) -> LogFetch | None:
        log = self._logs.get(name)
        if log is None:
            return None
        if not log.is_ready:
            self._rest(log, REST_MS)
            return None
        asked = self._asked[name] = log.asked()
        return log.wanted(asked)

    def _begin_anew(self) -> None:
        """Another session: the leader knows nothing of this lane, so everything is named."""
        self._session_id = self._session_epoch = 0
        self._forgotten.clear()
        for name in self._logs:
            if name not in self._away:
                self._named[name] = None

    # Answers

    def _take(self, answer: LogFetched) -> tuple[FollowedLog, Commitment] | None:
        log, asked = self._logs.get(answer.log), self._asked.get(answer.log)
        if log is None or asked is None or answer.log in self._away:
            return None
        outcome = log.take(answer, asked)
        if log.shell is not None and answer.high_watermark > log.shell.log.log_end:
            self._ahead[log.name] = answer.high_watermark
        else:
            self._ahead.pop(log.name, None)
        return self._follow_up(log, outcome)

    def _follow_up(self, log: FollowedLog, outcome: Outcome) -> tuple[FollowedLog, Commitment] | None:
        if isinstance(outcome, Taken):
            return self._taken(log, outcome)
        if isinstance(outcome, Stale):
            self._named[log.name] = None
        elif isinstance(outcome, Refused):
            self._rest(log, REST_MS)
        elif isinstance(outcome, Failure):
            self._fail(log, outcome)
        elif isinstance(outcome, Open):
            self._work(log, self._listener.open(log))
        else:
            self._work(log, self._listener.cut(log, outcome))
        return None

    def _taken(self, log: FollowedLog, taken: Taken) -> tuple[FollowedLog, Commitment] | None:
        if taken.removal is not None:
            self._tasks.start("log start follows", self._remove(log, taken.removal))
        if taken.size_bytes:
            self.fetched_bytes += taken.size_bytes
            self._named[log.name] = None
        if taken.commitment is not None:
            return log, taken.commitment
        self._look_at(log)
        return None

    def _look_at(self, log: FollowedLog) -> None:
        """All that came is what this replica can never lose."""
        if log.full_bytes >= BEHIND_BYTES:
            self._listener.on_behind(log)
        elif not log.full_bytes:
            self._listener.on_caught_up(log)

    def _fail(self, log: FollowedLog, failure: Failure) -> None:
        self._listener.on_failed(log, failure)
        self._rest(log, FAILED_REST_MS)

    def _rest(self, log: FollowedLog, rest_ms: int) -> None:
        # Not a task: when a leader is new, thousands of logs rest at once.
        self._leave_out(log)
        asyncio.get_running_loop().call_later(rest_ms / 1000, self._come_back, log)

    def _work(self, log: FollowedLog, work: Coroutine[object, object, None]) -> None:
        """Beside the lane; the log is not asked for meanwhile."""
        self._leave_out(log)
        self._tasks.start("work on a replica", self._finish(log, work))

    def _leave_out(self, log: FollowedLog) -> None:
        self._named.pop(log.name, None)
        self._away[log.name] = log
        # Or the leader would go on giving it.
        self._forgotten[log.name] = None

    async def _finish(self, log: FollowedLog, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except StorageError as error:
            log_events.error("replica not brought into line", log=repr(log), error=str(error))
            self._listener.on_failed(log, Failure.DISK_FAILED)
            await asyncio.sleep(FAILED_REST_MS / 1000)
        self._come_back(log)

    async def _remove(self, log: FollowedLog, removal: LogRemoval) -> None:
        try:
            await asyncio.to_thread(removal.run)
        except StorageError as error:
            log_events.error("log start not followed", log=repr(log), error=str(error))
            return
        # Whoever deleted records waits until this replica says where its log begins.
        if self._logs.get(log.name) is log and log.name not in self._away:
            self._named[log.name] = None


def _missing_bytes(log: FollowedLog, end: int) -> int:
    if log.shell is None:
        return 0
    held = log.shell.log
    return (end - held.log_end) * held.size_bytes // max(1, held.log_end - held.log_start)
