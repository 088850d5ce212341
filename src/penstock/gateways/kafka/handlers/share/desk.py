"""What ShareFetch and ShareAcknowledge have in common: the sessions, finding a partition, settling, letting go.

Everything decided here for one request is made durable by one wait at its end (`touched`), before the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.share.delivery import let_go, settle
from penstock.broker.share.node import ShareGroups
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere, unsure
from penstock.codec.kafka import ErrorCode
from penstock.domain.queue.commands import Outcome
from penstock.domain.queue.definition import QueueDefinition, QueueName
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.share.session import (
    CLOSING_EPOCH,
    OPENING_EPOCH,
    SharePartitionKey,
    ShareSession,
    ShareSessionProblem,
    ShareSessions,
    update,
)
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES
from penstock.gateways.kafka.handlers.share.acknowledge import AcknowledgementBatch, read_acknowledgements

# group.share.max.share.sessions
SESSIONS_MAX: Final = 2_000
# Of all of them together, whether they exist or not: 30 MB.
PARTITIONS_MAX: Final = 200_000
SESSION_CODES: Final = {problem: ErrorCode[problem.name] for problem in ShareSessionProblem}


class ShareProblem(msgspec.Struct, frozen=True):
    code: ErrorCode
    message: str


class SharePlace(msgspec.Struct, frozen=True):
    """A partition, with its queues and the one of the group."""

    partition: PartitionShell
    shell: QueueShell
    definition: QueueDefinition


class ShareDesk:
    partitions_max = PARTITIONS_MAX

    def __init__(self, broker: Broker, shares: ShareGroups, admission: Admission) -> None:
        self.broker = broker
        self._shares = shares
        self._admission = admission
        self._sessions = ShareSessions(SESSIONS_MAX)

    def problem(self, group: str | None, member_id: str | None, context: RequestContext) -> ShareProblem | None:
        if not group or not member_id:
            return ShareProblem(ErrorCode.INVALID_REQUEST, "a group id and a member id are needed")
        if not self._admission.may(context.caller, Operation.READ, access.group(group)):
            return ShareProblem(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed to read with this group")
        return None

    # Sessions

    def begin(self, group: str, member_id: str, epoch: int, context: RequestContext) -> ShareSession | ShareProblem:
        if epoch != OPENING_EPOCH:
            session = self._sessions.step(group, member_id, epoch)
            return session if isinstance(session, ShareSession) else _refused(session)
        before = self._sessions.get(group, member_id)
        if before is not None:
            # What it holds it keeps, as with Kafka.
            self._sessions.end(before)
        else:
            # From before the node was started again: it has lost the right to settle that.
            self.end(ShareSession(group, member_id, None), is_counted=False)
        connection = context.connection
        is_known = self._sessions.knows(connection)
        opened = self._sessions.open(group, member_id, connection)
        if isinstance(opened, ShareSessionProblem):
            return _refused(opened)
        if not is_known and connection is not None:
            connection.when_closed(partial(self._on_closed, connection))
        return opened

    def take_up(
        self, session: ShareSession, added: Sequence[SharePartitionKey], forgotten: Iterable[SharePartitionKey]
    ) -> ShareProblem | None:
        """What the member fetches from, from now on. Sessions that name more than there is room for end."""
        new_count = sum(key not in session.partitions for key in added)
        # Counted only where there are new ones, which is seldom.
        if new_count and self._sessions.partition_count + new_count > self.partitions_max:
            self.end(session, is_counted=False)
            return _refused(ShareSessionProblem.SHARE_SESSION_LIMIT_REACHED)
        update(session, added, forgotten)
        return None

    def is_closing(self, epoch: int) -> bool:
        return epoch == CLOSING_EPOCH

    def end(self, session: ShareSession, *, is_counted: bool) -> list[QueueShell]:
        """What the member holds is free for others. Nobody has to wait until that is durable: if it never is, the
        locks run out by themselves.

        Counted as Kafka counts it: what makes its consumer give up, or brings it down, must not do so for ever.
        """
        self._sessions.end(session)
        shells = self._shells_held_by(session)
        for shell in shells:
            let_go(shell, session.group, session.member_id, is_counted=is_counted)
        return shells

    def _shells_held_by(self, session: ShareSession) -> list[QueueShell]:
        """Also of partitions that the member has stopped fetching from."""
        return [
            shell
            for shell in self._shares.queues.loaded_shells()
            if (queue := shell.queue(session.group)) is not None and queue.holds_any(session.member_id)
        ]

    def _on_closed(self, connection: object) -> None:
        for session in self._sessions.end_connection(connection):
            # A node that stops was not brought down by a message, and its members come back.
            if not self.broker.is_stopping:
                self.end(session, is_counted=True)

    # Partitions

    async def find(
        self, key: SharePartitionKey, session: ShareSession, context: RequestContext
    ) -> SharePlace | ShareProblem:
        topic = self.broker.topic_by_id(key[0])
        if topic is None:
            return ShareProblem(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic of this id")
        if not self._admission.may(context.caller, Operation.READ, topic.resource):
            return ShareProblem(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to read this topic")
        partition = topic.find(key[1])
        if isinstance(partition, NotHere):
            return ShareProblem(ABSENCE_CODES[partition.why], partition.detail)
        name = QueueName(topic.name, session.group)
        definition = self._shares.queues.get(name)
        if definition is None:
            # Members had it made when they were assigned; whoever is none does not make queues by guessing names.
            if not self._shares.is_member(session.group, session.member_id):
                return ShareProblem(ErrorCode.GROUP_ID_NOT_FOUND, "not a member of the share group")
            definition = await self._shares.queue(name)
        if definition is None:
            return ShareProblem(ErrorCode.KAFKA_STORAGE_ERROR, "the group's state cannot be made now")
        return SharePlace(partition, await self._shares.queues.shell_for(definition, partition), definition)

    # Settling

    def lock_ms(self, group: str) -> int:
        """What a reply tells of the time that a member has for what it got."""
        return self._shares.lock_ms(group)

    def settle(
        self, place: SharePlace, session: ShareSession, batches: Iterable[AcknowledgementBatch], *, is_renewing: bool
    ) -> ShareProblem | None:
        items = read_acknowledgements(batches, may_renew=is_renewing)
        if isinstance(items, str):
            return ShareProblem(ErrorCode.INVALID_REQUEST, items)
        if is_renewing and not self._shares.may_renew(session.group):
            return ShareProblem(ErrorCode.INVALID_RECORD_STATE, "the group does not renew locks")
        outcome = settle(place.shell, session.group, session.member_id, items)
        if outcome is not Outcome.DONE and not place.partition.may_look:
            # What is refused is not written: another node may have given these records to this member since.
            return ShareProblem(ErrorCode.NOT_LEADER_OR_FOLLOWER, unsure(place.partition))
        if outcome is None:
            return ShareProblem(ErrorCode.INVALID_REQUEST, "records that nobody was ever given")
        if isinstance(outcome, QueueUnavailable):
            return unavailable_problem(outcome)
        if outcome is not Outcome.DONE:
            return ShareProblem(ErrorCode.INVALID_RECORD_STATE, "the member does not hold all of these records")
        return None


def unavailable_problem(unavailable: QueueUnavailable) -> ShareProblem:
    """CORRUPT_MESSAGE ends a client's poll with an error; for the other one it asks again, for ever."""
    code = ErrorCode.CORRUPT_MESSAGE if unavailable.is_damaged else ErrorCode.KAFKA_STORAGE_ERROR
    return ShareProblem(code, unavailable.reason)


async def all_durable(touched: Iterable[QueueShell]) -> set[int]:
    """By `id`, the shells whose journal the disk did not take: nothing decided there since counts."""
    shells = list({id(shell): shell for shell in touched}.values())
    if len(shells) == 1:
        return set() if await shells[0].is_durable() else {id(shells[0])}
    outcomes = await asyncio.gather(*(shell.is_durable() for shell in shells))
    return {id(shell) for shell, is_durable in zip(shells, outcomes, strict=True) if not is_durable}


def _refused(problem: ShareSessionProblem) -> ShareProblem:
    return ShareProblem(SESSION_CODES[problem], problem.value)


NOT_DURABLE: Final = ShareProblem(ErrorCode.KAFKA_STORAGE_ERROR, "the disk did not take the queue's journal")
