"""Work of a door for partitions that other nodes lead: one hop, one request for each leader.

    partitions ─► by leader ─► Forward to each ─► answers
                     ▲               └─ not the leader, nobody there ─► the next try, with the leader that was named
                     └───────────────────────────────────┘               or when this node hears of another

Rules:
- At most three tries within the time of the caller. What may have been done is tried again only if doing it twice is
  the same as doing it once.
- A partition that this node leads by now is asked in the same way, without a wire.
- Nobody forwards what was forwarded: whoever answers does it with what it leads, or says who leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.role import NO_EPOCH, NO_LEADER
from penstock.broker.relay.envelope import FIRST_HOP, Envelope, write_envelope
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.domain.replication.exchange import Forward, Forwarded, ForwardKind, KnownLeader, LogName, ReplicaProblem
from penstock.domain.security.caller import Caller
from penstock.net.errors import PeerError, PeerUnreachableError
from penstock.net.peers import Lane

TRIES_MAX: Final = 3
# A little less than the five seconds after which the most impatient clients give up.
ASK_MS_MAX: Final = 4_000
# Between two tries this node waits for news about the leader, looking so often, and no longer than an election takes.
NEWS_MS: Final = 20
NEWS_MS_MAX: Final = 1_500

# Nothing was done: the leader is another, or does not know what this node knows.
_NOT_DONE: Final = frozenset(
    {
        ReplicaProblem.NOT_LEADER,
        ReplicaProblem.FENCED_EPOCH,
        ReplicaProblem.UNKNOWN_EPOCH,
        ReplicaProblem.UNKNOWN_LOG,
        ReplicaProblem.STOPPING,
    }
)

BodyOf = Callable[[Sequence[int]], bytes]
Place = tuple[int, int]


class Unanswered(msgspec.Struct, frozen=True):
    reason: str
    # It may have been done all the same.
    is_unsure: bool = False
    # Another try may go better.
    is_passing: bool = True


class Answer(msgspec.Struct, frozen=True):
    # NO_LEADER: nobody leads these partitions.
    node_id: int
    partitions: tuple[int, ...]
    body: bytes | Unanswered


class ForwardLine(Protocol):
    """By which other nodes are asked: `net.replica.calls.ReplicaCalls`. PeerError: no answer."""

    async def forward(self, node_id: int, forward: Forward, lane: Lane) -> Forwarded: ...


Work = Callable[[Forward, object], Awaitable[Forwarded]]


class Relay:
    """`work`: what this node does for others, and for itself where it leads. `revision`: of the metadata, as far as
    this node has seen them."""

    def __init__(
        self, broker: Broker, line: ForwardLine, work: Work, *, tasks: TaskSupervisor, revision: Callable[[], int]
    ) -> None:
        self.broker = broker
        # Of what goes on when nobody waits for it any more.
        self.tasks = tasks
        self._line = line
        self._work = work
        self._revision = revision

    def leaders(self, topic_id: bytes, partitions: Iterable[int]) -> dict[int, list[Place]]:
        """By node, this one too; NO_LEADER: of nobody."""
        topic = self.broker.topic_by_id(topic_id)
        found: dict[int, list[Place]] = {}
        for index in partitions:
            shell = None if topic is None else topic.find(index)
            if shell is None:
                found.setdefault(NO_LEADER, []).append((index, NO_EPOCH))
            elif isinstance(shell, NotHere):
                found.setdefault(shell.leader, []).append((index, shell.epoch))
            else:
                found.setdefault(self.broker.node_id, []).append((index, shell.role.epoch))
        return found

    async def spread(
        self,
        kind: ForwardKind,
        topic_id: bytes,
        partitions: Iterable[int],
        body_of: BodyOf,
        *,
        by: Caller | None = None,
        is_repeatable: bool = True,
        tries: int = TRIES_MAX,
        timeout_ms: int = ASK_MS_MAX,
    ) -> list[Answer]:
        """All leaders of these partitions at once. Every partition is in one of the answers."""
        deadline = self._now() + timeout_ms / 1000
        answers: list[Answer] = []
        groups = self.leaders(topic_id, partitions)
        for number in range(tries):
            asked = await asyncio.gather(
                *(
                    self.ask(kind, topic_id, node_id, places, body_of, by=by, deadline=deadline)
                    for node_id, places in groups.items()
                )
            )
            is_last = number == tries - 1 or self._now() >= deadline
            again: list[Place] = []
            told: dict[int, KnownLeader] = {}
            for (node_id, places), (body, leader) in zip(groups.items(), asked, strict=True):
                if is_last or not _is_worth_a_try(body, is_repeatable=is_repeatable):
                    answers.append(Answer(node_id, tuple(index for index, _ in places), body))
                    continue
                again += places
                if leader is not None and leader.epoch > places[0][1]:
                    told[places[0][0]] = leader
            if not again:
                break
            groups = await self._regroup(topic_id, again, told, deadline)
        return answers

    async def ask(
        self,
        kind: ForwardKind,
        topic_id: bytes,
        node_id: int,
        places: Sequence[Place],
        body_of: BodyOf,
        *,
        by: Caller | None = None,
        deadline: float,
        lane: Lane = Lane.DOORS,
    ) -> tuple[bytes | Unanswered, KnownLeader | None]:
        """One node, once. With it the leader that the other one names."""
        name = self._name(topic_id, places[0][0])
        if node_id == NO_LEADER:
            return Unanswered(f"{name} has no leader"), None
        indexes = [index for index, _ in places]
        envelope = Envelope(FIRST_HOP, by, self._revision(), tuple(places), body_of(indexes))
        forward = Forward(
            kind=kind,
            log=LogName(topic_id, places[0][0]),
            leader_epoch=places[0][1],
            timeout_ms=max(1, int((deadline - self._now()) * 1000)),
            body=write_envelope(envelope),
        )
        who = f"{name} is led by node {node_id}, in epoch {places[0][1]}"
        try:
            answer = await self._send(node_id, forward, lane)
        except PeerUnreachableError as error:
            return Unanswered(f"{who}, which cannot be reached: {error}"), None
        except PeerError as error:
            return Unanswered(f"{who}, which gave no answer: {error}", is_unsure=True), None
        return _read(answer, who), answer.leader

    async def _send(self, node_id: int, forward: Forward, lane: Lane) -> Forwarded:
        if node_id == self.broker.node_id:
            return await self._work(forward, None)
        return await self._line.forward(node_id, forward, lane)

    async def _regroup(
        self, topic_id: bytes, again: Sequence[Place], told: dict[int, KnownLeader], deadline: float
    ) -> dict[int, list[Place]]:
        """When there is something new, or it has been long enough."""
        until = min(deadline, self._now() + NEWS_MS_MAX / 1000)
        indexes, before = [index for index, _ in again], set(again)
        groups = self.leaders(topic_id, indexes)
        while not told and self._now() < until and _is_known(groups, before):
            await asyncio.sleep(NEWS_MS / 1000)
            groups = self.leaders(topic_id, indexes)
        for index, leader in told.items():
            groups = _moved(groups, index, leader)
        return groups

    def _name(self, topic_id: bytes, index: int) -> str:
        topic = self.broker.topic_by_id(topic_id)
        return f"{topic_id.hex() if topic is None else topic.name}-{index}"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_worth_a_try(body: bytes | Unanswered, *, is_repeatable: bool) -> bool:
    return isinstance(body, Unanswered) and body.is_passing and (is_repeatable or not body.is_unsure)


def _read(answer: Forwarded, who: str) -> bytes | Unanswered:
    problem = answer.problem
    if problem is None:
        return answer.body
    reason = answer.detail or f"{who}, which says: {problem.value}"
    if problem in _NOT_DONE:
        return Unanswered(reason)
    if problem is ReplicaProblem.TIMED_OUT:
        return Unanswered(reason, is_unsure=True)
    return Unanswered(reason, is_unsure=problem is ReplicaProblem.FAILED, is_passing=False)


def _is_known(groups: dict[int, list[Place]], before: set[Place]) -> bool:
    """All of it was tried already, or is led by nobody."""
    return all(node_id == NO_LEADER or place in before for node_id, places in groups.items() for place in places)


def _moved(groups: dict[int, list[Place]], index: int, leader: KnownLeader) -> dict[int, list[Place]]:
    """Where this node knows of an earlier leader than the one that was named."""
    moved: dict[int, list[Place]] = {}
    for node_id, places in groups.items():
        for place in places:
            is_older = place[0] == index and place[1] < leader.epoch
            target, epoch = (leader.node_id, leader.epoch) if is_older else (node_id, place[1])
            moved.setdefault(target, []).append((place[0], epoch))
    return moved
