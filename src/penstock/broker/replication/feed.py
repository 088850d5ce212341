"""What a leader gives its followers: each fetch is told what has changed since the one before, or waits for it.

    fetch ─► who asks, in which epoch? ─► where do the logs part? ─► counted in the book ─► data, news or a wait

Rules:
- A fetch counts by the rules alone (`domain/replication`): of a replica, in this very epoch, of the life that is
  registered and admitted. One that diverges counts for nothing.
- Everything that is in the log is given, whether or not it is committed or on this disk: syncs of leader and followers
  run side by side.
- News of a watermark alone wait for company: a turn of the disk moves hundreds of them one after another.
- What is not in memory is read in threads of the feed's own, so that a follower that fetches yesterday's data takes no
  thread from consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final

from penstock.base.clock import Clock
from penstock.broker.replication.group import LedLog
from penstock.broker.replication.session import FeedSession, Position
from penstock.domain.replication import fetch as fetch_rules
from penstock.domain.replication import truncation
from penstock.domain.replication.exchange import (
    EpochEnd,
    KnownLeader,
    LogFetch,
    LogFetched,
    LogName,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaProblem,
)
from penstock.domain.replication.truncation import Behind
from penstock.domain.replication.view import View
from penstock.storage.errors import Damage, OutOfRange
from penstock.storage.log.read_plan import ReadPlan

# Of one log in a reply: one read of a consumer's size.
LOG_BYTES_MAX: Final = 1024 * 1024
REPLY_BYTES_MAX: Final = 8 * 1024 * 1024
WAIT_MS_MAX: Final = 5_000
# Within which most watermarks of one turn of the disk have moved.
NEWS_WAIT_MS: Final = 10
# A node has three lanes; more come from lives before this one.
SESSIONS_OF_NODE_MAX: Final = 8

_PROBLEMS: Final[Mapping[fetch_rules.Refusal, ReplicaProblem]] = {
    fetch_rules.Refusal.NOT_A_REPLICA: ReplicaProblem.UNKNOWN_LOG,
    fetch_rules.Refusal.OLD_EPOCH: ReplicaProblem.FENCED_EPOCH,
    fetch_rules.Refusal.NEW_EPOCH: ReplicaProblem.UNKNOWN_EPOCH,
    fetch_rules.Refusal.STALE_LIFE: ReplicaProblem.STALE_LIFE,
}

# Who leads a log that is not led here, as far as this node knows; None: it knows of no such log.
WhoLeads = Callable[[LogName], KnownLeader | None]


class LeaderFeed:
    """`led`: every log that this node leads for others. `view`: the nodes as they stand in the catalog."""

    def __init__(
        self,
        led: Mapping[LogName, LedLog],
        view: Callable[[], View],
        who_leads: WhoLeads,
        *,
        readers: Executor,
        clock: Clock,
    ) -> None:
        self._led = led
        self._view = view
        self._who_leads = who_leads
        self._readers = readers
        self._clock = clock
        self._sessions: dict[int, FeedSession] = {}
        self._next_id = 1
        self._is_stopping = False

    async def fetch(self, fetch: ReplicaFetch) -> ReplicaFetched:
        """A problem is an answer. Cancelled when the follower hangs up."""
        if self._is_stopping:
            return ReplicaFetched(problem=ReplicaProblem.STOPPING)
        session = self._session_of(fetch)
        if isinstance(session, ReplicaProblem):
            return ReplicaFetched(problem=session)
        session.begin_fetch((wanted.log for wanted in fetch.logs), self._clock.monotonic_ms())
        for name in fetch.forgotten:
            session.forget(name)
        view = self._view()
        for wanted in fetch.logs:
            self._take(session, wanted, view)
        await self._wait(session, min(fetch.wait_ms, WAIT_MS_MAX))
        answers = await self._answers(session, min(fetch.bytes_max, REPLY_BYTES_MAX))
        session.end_fetch(self._clock.monotonic_ms())
        return ReplicaFetched(session_id=session.id, logs=answers)

    def stop(self) -> None:
        """Whoever waits is answered with what there is, and nobody is from now on."""
        self._is_stopping = True
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()

    def forget_node(self, node_id: int, life: int) -> None:
        """Sessions of its other lives: nobody asks for them any more."""
        for session in [each for each in self._sessions.values() if each.node_id == node_id and each.life != life]:
            self._drop(session)

    # Sessions

    def _session_of(self, fetch: ReplicaFetch) -> FeedSession | ReplicaProblem:
        if fetch.session_id == 0:
            return self._begin(fetch)
        session = self._sessions.get(fetch.session_id)
        if session is None or (session.node_id, session.life) != (fetch.node_id, fetch.life):
            return ReplicaProblem.SESSION_UNKNOWN
        if session.epoch != fetch.session_epoch:
            return ReplicaProblem.SESSION_OUT_OF_STEP
        session.epoch += 1
        return session

    def _begin(self, fetch: ReplicaFetch) -> FeedSession:
        own = [session for session in self._sessions.values() if session.node_id == fetch.node_id]
        if len(own) >= SESSIONS_OF_NODE_MAX:
            # Of lanes whose connection broke: they have begun others since.
            self._drop(min(own, key=lambda session: session.asked_ms))
        session = FeedSession(self._next_id, fetch.node_id, fetch.life)
        self._sessions[session.id] = session
        self._next_id += 1
        return session

    def _drop(self, session: FeedSession) -> None:
        del self._sessions[session.id]
        session.close()

    # One log

    def _take(self, session: FeedSession, wanted: LogFetch, view: View) -> None:
        log = self._led.get(wanted.log)
        if log is None:
            leader = self._who_leads(wanted.log)
            problem = ReplicaProblem.UNKNOWN_LOG if leader is None else ReplicaProblem.NOT_LEADER
            session.refuse(LogFetched(log=wanted.log, problem=problem, leader=leader))
            return
        answer = _judge(session, log, wanted, view)
        if answer is not None:
            session.refuse(answer)
            return
        log.group.on_fetch(
            log, follower=session.node_id, life=session.life, offset=wanted.offset, log_start=wanted.log_start
        )
        session.place(log, wanted)

    # Answering

    async def _wait(self, session: FeedSession, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        news_deadline: float | None = None
        while not session.has_data:
            now = loop.time()
            if session.has_news and news_deadline is None:
                news_deadline = now + NEWS_WAIT_MS / 1000
            end = deadline if news_deadline is None else min(deadline, news_deadline)
            if now >= end or self._is_stopping:
                return
            await session.wait(end - now)

    async def _answers(self, session: FeedSession, bytes_max: int) -> list[LogFetched]:
        answers = {each.log: each for each in session.take_refused()}
        left = bytes_max
        while left > 0 and (position := session.next_data()) is not None:
            answer = await self._read(session, position, min(left, LOG_BYTES_MAX), is_first=left == bytes_max)
            if answer is None:
                session.put_back(position)
                break
            answers[answer.log] = answer
            left -= len(answer.records)
        for position in session.take_news():
            if position.wanted.log not in answers:
                answers[position.wanted.log] = _told(position)
        return [answers[name] for name in sorted(answers)]

    async def _read(
        self, session: FeedSession, position: Position, bytes_max: int, *, is_first: bool
    ) -> LogFetched | None:
        """None: it does not fit into what is left of the reply."""
        name, shell = position.wanted.log, position.log.shell
        assert shell is not None, "a log that is not there has no data"
        plan = shell.log.plan_read(position.wanted.offset, bytes_max=bytes_max, is_replica=True)
        if not isinstance(plan, ReadPlan):
            problem = ReplicaProblem.OFFSET_OUT_OF_RANGE if isinstance(plan, OutOfRange) else _failed(plan)
            session.forget(name)
            return LogFetched(log=name, problem=problem, log_start=position.log.log_start)
        plan.must_fit = not is_first
        loaded = plan.load_cached()
        if loaded is None:
            found = await asyncio.get_running_loop().run_in_executor(self._readers, plan.load)
            if isinstance(found, Damage):
                session.forget(name)
                return LogFetched(log=name, problem=ReplicaProblem.STORAGE_FAILED)
            loaded = found
            if shell.log.flaws.is_withheld:
                # By what was found behind it: nothing more is answered from here.
                session.forget(name)
                return LogFetched(log=name, problem=ReplicaProblem.STORAGE_FAILED)
        if not len(loaded):
            return None
        session.give(position)
        return _told(position, loaded)


def _failed(plan: object) -> ReplicaProblem:
    assert plan is not None, "what lies before the end can be read"
    return ReplicaProblem.STORAGE_FAILED


def _judge(session: FeedSession, log: LedLog, wanted: LogFetch, view: View) -> LogFetched | None:
    """Why the fetch does not count; None: it does."""
    state = log.group.progress.state
    refusal = fetch_rules.refuse(state, view, follower=session.node_id, life=session.life, epoch=wanted.leader_epoch)
    if refusal is not None:
        leader = KnownLeader(state.leader, state.epoch)
        return LogFetched(log=wanted.log, problem=_PROBLEMS[refusal], leader=leader)
    if log.shell is None:
        # Nothing was ever written to it, in no epoch.
        if wanted.offset == 0:
            return None
        return LogFetched(log=wanted.log, diverging=EpochEnd(-1, 0), high_watermark=0, log_start=0)
    if log.shell.log.flaws.is_troubled and (log.shell.log.lost_end is not None or log.shell.log.flaws.is_withheld):
        # Where it ends is not known: who has more must not be told that it has too much.
        return LogFetched(log=wanted.log, problem=ReplicaProblem.STORAGE_FAILED)
    parted = truncation.answer(
        log.shell.log.epochs,
        log_start=log.log_start,
        log_end=log.log_end,
        last_epoch=wanted.last_epoch,
        fetch_offset=wanted.offset,
    )
    if parted is None:
        return None
    if isinstance(parted, Behind):
        return LogFetched(
            log=wanted.log,
            problem=ReplicaProblem.OFFSET_OUT_OF_RANGE,
            log_start=parted.log_start,
            high_watermark=log.watermark,
        )
    return LogFetched(
        log=wanted.log,
        diverging=EpochEnd(parted.epoch, parted.end_offset),
        high_watermark=log.watermark,
        log_start=log.log_start,
    )


def _told(position: Position, records: memoryview | bytes = b"") -> LogFetched:
    log = position.log
    position.told_watermark, position.told_start = log.watermark, log.log_start
    return LogFetched(
        log=log.name,
        high_watermark=log.watermark,
        log_start=log.log_start,
        tombstone_horizon=0 if log.shell is None else log.shell.log.tombstone_horizon,
        records=records,
    )
