"""Replicas compared over all nodes, a stretch of one log at a time: what `penstock cluster verify` asks for.

    describe on every replica ─► what all have below the watermark ─► checksums of it on every replica ─► differences

Rules:
- Who does not answer, or cannot read its log, is named: an answer that leaves it out would look whole.
- A difference is told when two looks have found it: between the two, retention or compaction may have been at work.
- One comparison at a time asks the other nodes from here, by a lane that nothing else waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from penstock.broker.replication.group import KINDS, log_names
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import companion_settings
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.domain.config.topic import make_topic_config
from penstock.domain.replication.comparison import Difference, Span, common_span, differences, seen_twice
from penstock.domain.replication.exchange import (
    CHECKSUMS_MAX,
    DescribeReplica,
    LogName,
    ReplicaDescription,
    ReplicaProblem,
)
from penstock.domain.replication.progress import GroupLog
from penstock.net.errors import PeerError

STEP_OFFSETS: Final = 10_000
# Of one question: a second or two of reading where messages are large.
RANGES_AT_ONCE: Final = 10
# A compacted log is compared as a whole, in one go.
TIMEOUT_MS: Final = 60_000

_EMPTY: Final = ReplicaDescription(log_start=0, log_end=0, durable_end=0, high_watermark=0)


class LogCompared(msgspec.Struct, frozen=True, kw_only=True):
    log: GroupLog
    from_offset: int
    # Compared below it.
    to_offset: int
    # Where to go on; None: that was all.
    next_offset: int | None
    is_compacted: bool
    nodes: list[int]
    differences: list[Difference]
    # Those that could not be compared, and why.
    missing: dict[int, str]


class Describer(Protocol):
    async def describe(self, asked: DescribeReplica, /) -> ReplicaDescription: ...


class RemoteDescriber(Protocol):
    async def describe(self, node_id: int, asked: DescribeReplica, /, *, timeout_ms: int) -> ReplicaDescription: ...


class ReplicaVerifier:
    def __init__(self, broker: Broker, topics: TopicCatalog) -> None:
        self._broker = broker
        self._topics = topics
        self._own: Describer | None = None
        self._others: RemoteDescriber | None = None
        self._turn = asyncio.Lock()

    def talk_by(self, own: Describer, others: RemoteDescriber) -> None:
        """Of a node with an internal door. Without one there are no other replicas."""
        self._own = own
        self._others = others

    async def compare(
        self, topic_id: bytes, index: int, logs: Iterable[GroupLog] = tuple(GroupLog), *, from_offset: int = 0
    ) -> list[LogCompared]:
        """Each of these logs, a stretch from the offset on."""
        names = log_names(topic_id, index)
        async with self._turn:
            return [await self._compare(topic_id, index, log, names[log], from_offset) for log in logs]

    async def _compare(
        self, topic_id: bytes, index: int, log: GroupLog, name: LogName, from_offset: int
    ) -> LogCompared:
        stated = self._topics.state(topic_id, index)
        replicas = () if stated is None else tuple(sorted(stated.state.replicas))
        missing: dict[int, str] = {}
        is_compacted = self._is_compacted(topic_id, log)
        if stated is None or len(replicas) < 2 or self._own is None:
            return _compared(log, Span(0, 0), is_compacted=is_compacted, nodes=replicas, missing=missing)
        found = await self._ask(replicas, DescribeReplica(log=name), missing)
        span = common_span(found, stated.state.in_sync)
        part, step = _part_of(Span(max(span.start, from_offset), span.end), is_compacted=is_compacted)
        if part.start >= part.end:
            return _compared(log, part, is_compacted=is_compacted, nodes=found, missing=missing)
        asked = DescribeReplica(log=name, from_offset=part.start, to_offset=part.end, step_offsets=step)
        differing = await self._differences(asked, found, missing, is_compacted=is_compacted)
        if differing:
            differing = seen_twice(differing, await self._differences(asked, found, missing, is_compacted=is_compacted))
        return _compared(
            log,
            part,
            is_compacted=is_compacted,
            nodes=[node for node in found if node not in missing],
            missing=missing,
            differing=differing,
            next_offset=part.end if part.end < span.end else None,
        )

    async def _differences(
        self,
        asked: DescribeReplica,
        found: dict[int, ReplicaDescription],
        missing: dict[int, str],
        *,
        is_compacted: bool,
    ) -> list[Difference]:
        # What a compacted log comes to depends on all of it.
        able = [node for node, each in found.items() if not is_compacted or each.high_watermark >= asked.to_offset]
        summed = await self._ask(able, asked, missing)
        return differences({node: each.checksums for node, each in summed.items()})

    async def _ask(
        self, nodes: Iterable[int], asked: DescribeReplica, missing: dict[int, str]
    ) -> dict[int, ReplicaDescription]:
        """Those that answered, in the order of nodes."""
        wanted = [node for node in nodes if node not in missing]
        answers = await asyncio.gather(*(self._ask_one(node, asked) for node in wanted))
        found: dict[int, ReplicaDescription] = {}
        for node, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, str):
                missing[node] = answer
            else:
                found[node] = answer
        return found

    async def _ask_one(self, node: int, asked: DescribeReplica) -> ReplicaDescription | str:
        assert self._own is not None, "whoever has no internal door has no other replicas"
        assert self._others is not None
        if node == self._broker.node_id:
            answer = await self._own.describe(asked)
        else:
            try:
                answer = await self._others.describe(node, asked, timeout_ms=TIMEOUT_MS)
            except PeerError as error:
                return str(error)
        if answer.problem is ReplicaProblem.UNKNOWN_LOG and not asked.wants_checksums:
            # A companion that nobody ever wrote to there.
            return _EMPTY
        return answer if answer.problem is None else answer.detail or answer.problem.name.lower()

    def _is_compacted(self, topic_id: bytes, log: GroupLog) -> bool:
        served = self._broker.topic_by_id(topic_id)
        if log is GroupLog.DATA:
            return served is not None and served.config.is_compacted
        settings = companion_settings(KINDS[log], traced_ms=self._broker.config.trace_horizon_ms)
        return make_topic_config(settings, {}).is_compacted


def _part_of(span: Span, *, is_compacted: bool) -> tuple[Span, int]:
    """What one question is about, and how many offsets a checksum stands for."""
    if is_compacted:
        return span, max(STEP_OFFSETS, -((span.start - span.end) // CHECKSUMS_MAX))
    return Span(span.start, min(span.end, span.start + RANGES_AT_ONCE * STEP_OFFSETS)), STEP_OFFSETS


def _compared(
    log: GroupLog,
    part: Span,
    *,
    is_compacted: bool,
    nodes: Iterable[int],
    missing: dict[int, str],
    differing: list[Difference] | None = None,
    next_offset: int | None = None,
) -> LogCompared:
    return LogCompared(
        log=log,
        from_offset=part.start,
        to_offset=part.end,
        next_offset=next_offset,
        is_compacted=is_compacted,
        nodes=sorted(nodes),
        differences=differing or [],
        missing=missing,
    )
