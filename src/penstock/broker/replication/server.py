"""What other nodes ask this one about its logs: the internal door's `ReplicaServer`, in values.

fetch       by a follower, of the feed
barrier     by whoever must not go on before something is committed
describe    by whoever compares replicas
forward     work that must be done by who leads a partition, under the leadership that is named or not at all; who does
            it is told by `serve`
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor

from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.replication.checksums import NotSummedError, checksums_of
from penstock.broker.replication.feed import LeaderFeed, WhoLeads
from penstock.domain.replication.exchange import (
    CHECKSUMS_MAX,
    Barrier,
    DescribeReplica,
    EpochStart,
    Forward,
    Forwarded,
    LogBarrier,
    LogName,
    LogPassed,
    ReplicaDescription,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaProblem,
)

FindLog = Callable[[LogName], PartitionShell | None]
# Of a partition that is led here: the leadership that it is to be done under, and what is to be done. The answer.
Work = Callable[[PartitionShell, Leadership, bytes], Awaitable[bytes]]
# Of doors, for several partitions at once: whoever does it looks at their leaderships itself. `object`: who asks.
DoorWork = Callable[[Forward, object], Awaitable[Forwarded]]


class NodeReplicas:
    """`find`: every log that this node has a replica of, if it is open."""

    def __init__(self, feed: LeaderFeed, find: FindLog, who_leads: WhoLeads, readers: Executor) -> None:
        self._feed = feed
        self._find = find
        self._who_leads = who_leads
        self._readers = readers
        self._works: dict[int, Work] = {}
        self._door_works: dict[int, DoorWork] = {}

    def serve_doors(self, kinds: Iterable[int], work: DoorWork) -> None:
        self._door_works.update(dict.fromkeys(kinds, work))

    def serve(self, kind: int, work: Work) -> None:
        self._works[kind] = work

    async def fetch(self, fetch: ReplicaFetch, _asking: object) -> ReplicaFetched:
        return await self._feed.fetch(fetch)

    # Forward

    async def forward(self, forward: Forward, asking: object) -> Forwarded:
        of_doors = self._door_works.get(forward.kind)
        if of_doors is not None:
            return await of_doors(forward, asking)
        work, shell = self._works.get(forward.kind), self._find(forward.log)
        if work is None:
            return Forwarded(problem=ReplicaProblem.UNKNOWN_KIND)
        problem = ReplicaProblem.UNKNOWN_LOG if shell is None else _not_led(shell, forward.leader_epoch)
        if shell is None or problem is not None:
            return Forwarded(problem=problem, leader=self._who_leads(forward.log))
        try:
            async with asyncio.timeout(forward.timeout_ms / 1000):
                return Forwarded(body=await work(shell, shell.leadership, forward.body))
        except TimeoutError:
            # It may be done all the same, now or later.
            return Forwarded(problem=ReplicaProblem.TIMED_OUT)

    # Barrier

    async def barrier(self, barrier: Barrier) -> Sequence[LogPassed]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + barrier.timeout_ms / 1000
        # Asked for before the first is waited for: what each log holds now is what counts.
        return await asyncio.gather(*(self._pass(each, deadline) for each in barrier.logs))

    async def _pass(self, asked: LogBarrier, deadline: float) -> LogPassed:
        shell = self._find(asked.log)
        problem = ReplicaProblem.UNKNOWN_LOG if shell is None else _not_led(shell, asked.leader_epoch)
        if shell is None or problem is not None:
            return LogPassed(log=asked.log, problem=problem, leader=self._who_leads(asked.log))
        commitment = shell.commit_unless_kept()
        if commitment is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    is_kept = await commitment.kept()
            except TimeoutError:
                return LogPassed(log=asked.log, problem=ReplicaProblem.TIMED_OUT)
            if not is_kept:
                problem = _not_led(shell, asked.leader_epoch) or ReplicaProblem.STORAGE_FAILED
                return LogPassed(log=asked.log, problem=problem, leader=self._who_leads(asked.log))
        elif not shell.may_look:
            # Whoever leads by now may have taken more.
            return LogPassed(log=asked.log, problem=ReplicaProblem.NOT_LEADER)
        return LogPassed(log=asked.log, high_watermark=shell.readable_end)

    # Describe

    async def describe(self, asked: DescribeReplica) -> ReplicaDescription:
        shell = self._find(asked.log)
        if shell is None:
            return ReplicaDescription(problem=ReplicaProblem.UNKNOWN_LOG)
        if asked.range_count > CHECKSUMS_MAX:
            return ReplicaDescription(problem=ReplicaProblem.INVALID, detail=f"more than {CHECKSUMS_MAX} ranges")
        log = shell.log
        try:
            checksums = await checksums_of(log, asked, self._readers) if asked.wants_checksums else []
        except NotSummedError as error:
            return ReplicaDescription(problem=ReplicaProblem.STORAGE_FAILED, detail=str(error))
        return ReplicaDescription(
            log_start=log.log_start,
            log_end=log.log_end,
            durable_end=log.durable_end,
            high_watermark=log.readable_end,
            epochs=[EpochStart(epoch, start) for epoch, start in log.epochs.entries()],
            checksums=checksums,
        )


def _not_led(shell: PartitionShell, leader_epoch: int) -> ReplicaProblem | None:
    if leader_epoch > shell.role.epoch:
        return ReplicaProblem.UNKNOWN_EPOCH
    if 0 <= leader_epoch < shell.role.epoch:
        return ReplicaProblem.FENCED_EPOCH
    return None if shell.is_leading else ReplicaProblem.NOT_LEADER
