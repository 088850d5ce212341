"""What a node does for the doors of others, with the partitions that it leads: the other end of `broker/relay`.

    Forward ─► who asks has not been asked itself ─► every partition is led here, in the epoch that is named
                                                          └─ one is not ─► nothing is done, and who leads is told
            ─► the work of its kind ─► answer

Rules:
- Nothing here forwards. What was forwarded before is refused.
- Whoever does not know the topic, the queue or the epoch yet waits a moment for the metadata that the other has seen.
- The caller was authorised at its own door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.relay.envelope import FIRST_HOP, Envelope, read_envelope
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.replication.exchange import Forward, Forwarded, ForwardKind, KnownLeader, ReplicaProblem
from penstock.domain.security.caller import Caller

log = get_logger("doors")

# For metadata that another node has seen already.
NEWS_MS_MAX: Final = 1_000

SECOND_HOP: Final = "it was forwarded before, and nobody forwards it again: ask the node that leads"


@runtime_checkable
class Asking(Protocol):
    @property
    def is_gone(self) -> bool: ...


class Served(msgspec.Struct, frozen=True):
    """A request of another node's door, for partitions that are led here."""

    topic: ServedTopic
    partitions: tuple[PartitionShell, ...]
    caller: Caller | None
    body: bytes
    # For the work of this request.
    timeout_ms: int
    asking: Asking | None

    @property
    def is_gone(self) -> bool:
        """Nobody waits for the answer any more."""
        return self.asking is not None and self.asking.is_gone


class NotKnownYetError(Exception):
    """What is asked for is not in this node's metadata: perhaps it is in a moment."""


Job = Callable[[Served], Awaitable[bytes]]


class DoorWork:
    def __init__(self, broker: Broker, topics: TopicCatalog) -> None:
        self._broker = broker
        self._topics = topics
        self._jobs: dict[int, Job] = {}

    @property
    def kinds(self) -> list[int]:
        return list(self._jobs)

    def serve(self, kind: ForwardKind, job: Job) -> None:
        self._jobs[kind] = job

    async def do(self, forward: Forward, asking: object) -> Forwarded:
        job = self._jobs.get(forward.kind)
        if job is None:
            return Forwarded(problem=ReplicaProblem.UNKNOWN_KIND)
        try:
            envelope = read_envelope(forward.body)
        except msgspec.DecodeError as error:
            return Forwarded(problem=ReplicaProblem.INVALID, detail=f"not an envelope: {error}")
        if envelope.hop != FIRST_HOP:
            return Forwarded(problem=ReplicaProblem.INVALID, detail=SECOND_HOP)
        try:
            async with asyncio.timeout(forward.timeout_ms / 1000):
                return await self._do(job, forward, envelope, asking)
        except TimeoutError:
            # It may be done all the same.
            return Forwarded(problem=ReplicaProblem.TIMED_OUT)

    async def _do(self, job: Job, forward: Forward, envelope: Envelope, asking: object) -> Forwarded:
        try:
            done = await self._try(job, forward, envelope, asking)
            if done.problem is not None and await self._has_news(envelope.revision):
                done = await self._try(job, forward, envelope, asking)
            return done
        except msgspec.DecodeError as error:
            return Forwarded(problem=ReplicaProblem.INVALID, detail=f"kind {forward.kind}: {error}")
        except (StoreUnavailableError, JournalDamagedError) as error:
            return Forwarded(problem=ReplicaProblem.STORAGE_FAILED, detail=str(error))
        except Exception as error:  # edge of a request
            log.error("work for another node failed", kind=forward.kind, error=repr(error), exc_info=error)
            return Forwarded(problem=ReplicaProblem.FAILED)

    async def _try(self, job: Job, forward: Forward, envelope: Envelope, asking: object) -> Forwarded:
        found = self._find(forward, envelope)
        if isinstance(found, Forwarded):
            return found
        served = Served(*found, envelope.caller, envelope.body, forward.timeout_ms, _asking(asking))
        try:
            return Forwarded(body=await job(served))
        except NotKnownYetError as error:
            return Forwarded(problem=ReplicaProblem.UNKNOWN_LOG, detail=str(error))

    def _find(self, forward: Forward, envelope: Envelope) -> tuple[ServedTopic, tuple[PartitionShell, ...]] | Forwarded:
        topic = self._broker.topic_by_id(forward.log.topic_id)
        if topic is None:
            return Forwarded(problem=ReplicaProblem.UNKNOWN_LOG, detail="there is no such topic")
        partitions: list[PartitionShell] = []
        for index, epoch in envelope.places:
            found = topic.find(index)
            if isinstance(found, NotHere):
                leader = KnownLeader(found.leader, found.epoch) if index == forward.log.partition else None
                return Forwarded(problem=ReplicaProblem.NOT_LEADER, detail=found.detail, leader=leader)
            if found.role.epoch != epoch:
                is_older = epoch < found.role.epoch
                problem = ReplicaProblem.FENCED_EPOCH if is_older else ReplicaProblem.UNKNOWN_EPOCH
                return Forwarded(problem=problem, leader=KnownLeader(self._broker.node_id, found.role.epoch))
            partitions.append(found)
        return topic, tuple(partitions)

    async def _has_news(self, revision: int) -> bool:
        """Whether this node had not seen what the other has, and has seen it now."""
        if self._topics.revision >= revision:
            return False
        try:
            async with asyncio.timeout(NEWS_MS_MAX / 1000):
                await self._topics.wait_for(revision)
        except (TimeoutError, StoreUnavailableError):
            return False
        return True


def _asking(asking: object) -> Asking | None:
    """None: this node itself."""
    return asking if isinstance(asking, Asking) else None
