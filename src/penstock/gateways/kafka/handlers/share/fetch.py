"""ShareFetch and ShareAcknowledge (KIP-932): the messages of a share group's members.

    session step ─► settle what is acknowledged ─► take from the partitions in turn ─► nothing? park, and take again
                                                                                  ─► durable ─► answer

A reply has whole batches and beside them which of their records are the member's. Acknowledgements and what is taken
share one wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.broker.partition.waiting import Waiter
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.share.delivery import ShareTaken, let_go, take
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import share_acknowledge as acknowledged
from penstock.codec.kafka.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from penstock.codec.kafka.messages.share_fetch import (
    AcquiredRecords,
    FetchPartition,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.domain.share.session import CLOSING_EPOCH, OPENING_EPOCH, SharePartitionKey, ShareSession
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers.share.acknowledge import AcknowledgementBatch
from penstock.gateways.kafka.handlers.share.desk import (
    NOT_DURABLE,
    ShareDesk,
    SharePlace,
    ShareProblem,
    all_durable,
    unavailable_problem,
)

BATCH_OPTIMIZED: Final = 0
DELIVERY_COUNT_MAX: Final = 32_767
# However much other clients leave unread.
ROOM_BYTES_MIN: Final = 64 * 1024
# With an error clients believe the hint and would move the partition to a node 0; no error here has another leader.
UNKNOWN_LEADER: Final = LeaderIdAndEpoch(-1, -1)
UNKNOWN_LEADER_OF_ACKNOWLEDGED: Final = acknowledged.LeaderIdAndEpoch(-1, -1)


class _Answer:
    """What one partition will be told."""

    __slots__ = ("acknowledgement", "is_acknowledged", "problem", "shell", "taken")

    def __init__(self) -> None:
        self.problem: ShareProblem | None = None
        self.is_acknowledged = False
        self.acknowledgement: ShareProblem | None = None
        self.taken: ShareTaken | None = None
        self.shell: QueueShell | None = None

    @property
    def says_something(self) -> bool:
        return self.is_acknowledged or self.problem is not None or self.taken is not None


class _Limits(msgspec.Struct, frozen=True):
    count_max: int
    bytes_max: int
    wait_ms: int
    takes_whole_batches: bool


Answers = dict[SharePartitionKey, _Answer]


class ShareFetchHandler:
    def __init__(self, desk: ShareDesk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock

    # ShareFetch

    async def share_fetch(self, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
        partitions = [
            ((topic.topic_id, partition.partition_index), partition)
            for topic in request.topics
            for partition in topic.partitions
        ]
        problem = self._fetch_problem(request, [partition for _, partition in partitions], context)
        if problem is not None:
            return ShareFetchResponse(error_code=problem.code, error_message=problem.message)
        epoch = request.share_session_epoch
        session = self._desk.begin(request.group_id or "", request.member_id or "", epoch, context)
        if isinstance(session, ShareProblem):
            return ShareFetchResponse(error_code=session.code, error_message=session.message)
        forgotten = ((topic.topic_id, number) for topic in request.forgotten_topics_data for number in topic.partitions)
        crowded = self._desk.take_up(session, [key for key, _ in partitions], forgotten)
        if crowded is not None:
            return ShareFetchResponse(error_code=crowded.code, error_message=crowded.message)
        answers: Answers = {}
        given = [(key, partition.acknowledgement_batches) for key, partition in partitions]
        touched = await self._settle(session, given, answers, context, is_renewing=request.is_renew_ack)
        if epoch == CLOSING_EPOCH:
            touched += self._desk.end(session, is_counted=True)
        elif not request.is_renew_ack and request.max_records > 0:
            await self._take_or_wait(session, self._limits(request, context), answers, context)
        await self._make_durable(touched, answers)
        is_full = epoch == OPENING_EPOCH
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self._desk.lock_ms(session.group),
            responses=_responses(answers, session.partitions if is_full else ()),
        )

    def _fetch_problem(
        self, request: ShareFetchRequest, partitions: Sequence[FetchPartition], context: RequestContext
    ) -> ShareProblem | None:
        problem = self._desk.problem(request.group_id, request.member_id, context)
        if problem is not None:
            return problem
        if request.share_session_epoch == OPENING_EPOCH and any(each.acknowledgement_batches for each in partitions):
            return ShareProblem(ErrorCode.INVALID_REQUEST, "a session that is being opened has nothing to acknowledge")
        limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
        if request.is_renew_ack and any(limits):
            return ShareProblem(ErrorCode.INVALID_REQUEST, "a request that renews locks fetches nothing")
        return None

    def _limits(self, request: ShareFetchRequest, context: RequestContext) -> _Limits:
        config = self._desk.broker.config
        room = config.fetch_bytes_max if context.connection is None else context.connection.reply_room()
        return _Limits(
            count_max=request.max_records,
            bytes_max=min(request.max_bytes, config.fetch_bytes_max, max(room, ROOM_BYTES_MIN)),
            wait_ms=min(request.max_wait_ms, config.fetch_wait_ms_max),
            takes_whole_batches=request.share_acquire_mode == BATCH_OPTIMIZED,
        )

    async def _take_or_wait(
        self, session: ShareSession, limits: _Limits, answers: Answers, context: RequestContext
    ) -> None:
        deadline_ms = self._clock.monotonic_ms() + limits.wait_ms
        broker = self._desk.broker
        waiter = Waiter()
        try:
            while True:
                # Watched before it looks: what comes in between must wake it.
                waiter.watch((broker.stopping,))
                has_something = await self._take(session, limits, answers, context, waiter)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if has_something or left_ms <= 0 or session.is_over or broker.is_stopping:
                    return
                await waiter.wait(left_ms)
                waiter.leave()
        finally:
            waiter.leave()

    async def _take(
        self, session: ShareSession, limits: _Limits, answers: Answers, context: RequestContext, waiter: Waiter
    ) -> bool:
        """Whether there is anything to answer with."""
        count_left, bytes_left = limits.count_max, limits.bytes_max
        has_taken, has_places = False, False
        pace = context.pace()
        for key in session.in_turn():
            await pace.rest_if_due()
            if count_left <= 0 or bytes_left <= 0:
                break
            answer = answers.setdefault(key, _Answer())
            place = await self._desk.find(key, session, context)
            taken: ShareTaken | ShareProblem | None
            if isinstance(place, SharePlace):
                has_places = True
                waiter.watch((place.shell.room(session.group), place.partition.readers))
                taken = await self._take_from(place, session, limits, count_left, bytes_left)
            else:
                taken = place
            answer.problem = taken if isinstance(taken, ShareProblem) else None
            if isinstance(taken, ShareTaken) and isinstance(place, SharePlace):
                answer.taken, answer.shell, has_taken = taken, place.shell, True
                count_left -= taken.count
                bytes_left -= taken.size_bytes
        # A partition that cannot be read is no reason to hurry, or its client would ask again without a pause.
        return has_taken or not has_places

    async def _take_from(
        self, place: SharePlace, session: ShareSession, limits: _Limits, count_left: int, bytes_left: int
    ) -> ShareTaken | ShareProblem | None:
        taken = await take(
            place.shell,
            place.definition,
            member_id=session.member_id,
            count_max=count_left,
            bytes_max=bytes_left,
            takes_whole_batches=limits.takes_whole_batches,
        )
        if isinstance(taken, QueueUnavailable):
            return unavailable_problem(taken)
        if taken.acquired and session.is_over:
            # Its connection went while the log was being read: nobody would ever settle these.
            let_go(place.shell, session.group, session.member_id, is_counted=False)
            return None
        return taken if taken.acquired else None

    # ShareAcknowledge

    async def share_acknowledge(
        self, request: ShareAcknowledgeRequest, context: RequestContext
    ) -> ShareAcknowledgeResponse:
        problem = self._desk.problem(request.group_id, request.member_id, context)
        if problem is not None:
            return ShareAcknowledgeResponse(error_code=problem.code, error_message=problem.message)
        if request.share_session_epoch == OPENING_EPOCH:
            code = ErrorCode.INVALID_SHARE_SESSION_EPOCH
            return ShareAcknowledgeResponse(error_code=code, error_message="sessions are opened by ShareFetch")
        epoch = request.share_session_epoch
        session = self._desk.begin(request.group_id or "", request.member_id or "", epoch, context)
        if isinstance(session, ShareProblem):
            return ShareAcknowledgeResponse(error_code=session.code, error_message=session.message)
        answers: Answers = {}
        given = [
            ((topic.topic_id, partition.partition_index), partition.acknowledgement_batches)
            for topic in request.topics
            for partition in topic.partitions
        ]
        touched = await self._settle(session, given, answers, context, is_renewing=request.is_renew_ack)
        if epoch == CLOSING_EPOCH:
            touched += self._desk.end(session, is_counted=True)
        await self._make_durable(touched, answers)
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self._desk.lock_ms(session.group), responses=_acknowledged(answers)
        )

    # Both

    async def _settle(
        self,
        session: ShareSession,
        given: Iterable[tuple[SharePartitionKey, Sequence[AcknowledgementBatch]]],
        answers: Answers,
        context: RequestContext,
        *,
        is_renewing: bool,
    ) -> list[QueueShell]:
        touched: list[QueueShell] = []
        pace = context.pace()
        for key, batches in given:
            await pace.rest_if_due()
            if not batches:
                continue
            answer = answers.setdefault(key, _Answer())
            answer.is_acknowledged = True
            place = await self._desk.find(key, session, context)
            if isinstance(place, ShareProblem):
                answer.acknowledgement = place
                continue
            answer.acknowledgement = self._desk.settle(place, session, batches, is_renewing=is_renewing)
            answer.shell = place.shell
            touched.append(place.shell)
        return touched

    async def _make_durable(self, touched: list[QueueShell], answers: Answers) -> None:
        shells = touched + [answer.shell for answer in answers.values() if answer.shell is not None]
        lost = await all_durable(shells) if shells else set()
        for answer in answers.values() if lost else ():
            if answer.shell is not None and id(answer.shell) in lost:
                answer.taken = None
                answer.problem = NOT_DURABLE
                if answer.is_acknowledged:
                    answer.acknowledgement = answer.acknowledgement or NOT_DURABLE


def _responses(answers: Answers, everywhere: Iterable[SharePartitionKey]) -> list[ShareFetchableTopicResponse]:
    """The first reply of a session names all its partitions, later ones those that have something to say."""
    topics: dict[bytes, list[PartitionData]] = {}
    for key in everywhere:
        answers.setdefault(key, _Answer())
    is_full = bool(everywhere)
    for (topic_id, number), answer in answers.items():
        if is_full or answer.says_something:
            topics.setdefault(topic_id, []).append(_partition_data(number, answer))
    return [ShareFetchableTopicResponse(topic_id, data) for topic_id, data in topics.items()]


def _partition_data(number: int, answer: _Answer) -> PartitionData:
    problem, acknowledgement, taken = answer.problem, answer.acknowledgement, answer.taken
    return PartitionData(
        partition_index=number,
        error_code=0 if problem is None else problem.code,
        error_message=None if problem is None else problem.message,
        acknowledge_error_code=0 if acknowledgement is None else acknowledgement.code,
        acknowledge_error_message=None if acknowledgement is None else acknowledgement.message,
        current_leader=LeaderIdAndEpoch() if problem is None and acknowledgement is None else UNKNOWN_LEADER,
        # Never null: librdkafka takes null records for a malformed reply.
        records=[*taken.batches] if taken is not None else b"",
        acquired_records=[]
        if taken is None
        else [AcquiredRecords(each.first, each.last, min(each.count, DELIVERY_COUNT_MAX)) for each in taken.acquired],
    )


def _acknowledged(answers: Answers) -> list[acknowledged.ShareAcknowledgeTopicResponse]:
    topics: dict[bytes, list[acknowledged.PartitionData]] = {}
    for (topic_id, number), answer in answers.items():
        problem = answer.acknowledgement
        data = acknowledged.PartitionData(
            partition_index=number,
            error_code=0 if problem is None else problem.code,
            error_message=None if problem is None else problem.message,
            current_leader=acknowledged.LeaderIdAndEpoch() if problem is None else UNKNOWN_LEADER_OF_ACKNOWLEDGED,
        )
        topics.setdefault(topic_id, []).append(data)
    return [acknowledged.ShareAcknowledgeTopicResponse(topic_id, data) for topic_id, data in topics.items()]
