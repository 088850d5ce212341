"""Fetch: batches from partitions to a client, now or as soon as there are enough.

    begin session ─► read what is cached ─► enough? ─► answer at once, without a task
                                              │ no
                                              ▼
                       park (waiting) or read from disk in a thread ─► read again ─► answer

The first pass runs on the loop and touches only bytes that the kernel holds in memory, so a consumer near the end of
the log costs neither a task nor a thread; a fetch of very many partitions is read and answered in slices. Records are
sent as they lie on disk; a reader of committed records is told which transactions were aborted, and leaves theirs out
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.long_work import Steps, all_at_once
from penstock.broker.partition.read import PartitionRead, ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.partition.waiting import Waiter
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.domain.log.fetch_session import (
    FetchContext,
    FetchPartition,
    FetchSessionProblem,
    FetchSessions,
    PartitionKey,
)
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import READ_CODES

TOPIC_IDS_FROM: Final = 13
READ_COMMITTED: Final = 1
# A partition is not read for less: what is left over from the others seldom holds a batch, and finding that out of 64
# partitions cost more than the whole reply.
SHARE_BYTES_MIN: Final = 64 * 1024

# A session with more partitions that are not there, or not for its client, is none: each of them is looked for and told
# of at every fetch, so that sixty bytes could ask for seconds of work again and again.
UNKNOWN_MAX: Final = 1_000

# From this version on a fetch as a whole can fail; before, each of its partitions does.
ERRORS_FROM: Final = 7

# Partitions that are read at once: two milliseconds.
AT_ONCE_MAX: Final = 256

# What one turn of the loop reads for all clients together before the next fetch waits for another turn: with what
# sending costs some 3 ms. Hundreds of large fetches that come at once keep nobody else waiting for their sum.
TURN_BYTES_MAX: Final = 8 * 1024 * 1024
# Less is not counted: counting would cost more than reading.
COUNTED_BYTES_MIN: Final = 256 * 1024

SESSION_CODES: Final = {
    FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    FetchSessionProblem.INVALID_FETCH_SESSION_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    FetchSessionProblem.FETCH_SESSION_TOPIC_ID_ERROR: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


class _Limits(msgspec.Struct, frozen=True, gc=False):
    bytes_min: int
    bytes_max: int
    wait_ms: int
    is_committed_only: bool


class _Pass:
    """One reading of all partitions of a fetch."""

    __slots__ = ("bytes_left", "bytes_read", "cold", "has_problem", "is_committed_only", "reads")

    def __init__(self, limits: _Limits, room_bytes: int) -> None:
        self.is_committed_only = limits.is_committed_only
        self.reads: list[tuple[FetchPartition, PartitionShell | None, PartitionRead]] = []
        self.bytes_read = 0
        # What was read and what will be loaded from the disk have no claim on it any more.
        self.bytes_left = min(limits.bytes_max, room_bytes)
        self.has_problem = False
        # Which of the reads wait for the disk, each with its share of the limit.
        self.cold: list[tuple[int, int]] = []

    def is_enough(self, limits: _Limits) -> bool:
        return (
            self.bytes_read >= limits.bytes_min
            or self.has_problem
            # Full, as far as partitions are read for what is left.
            or (self.bytes_read > 0 and self.bytes_left < SHARE_BYTES_MIN)
            or self._ends_with_a_segment()
        )

    def _ends_with_a_segment(self) -> bool:
        """A read does not go beyond its segment: who has more to read in the next one asks again, and need not wait."""
        return any(
            read.size_bytes > 0
            and shell is not None
            and shell.has_later_segment(partition.fetch_offset, is_committed_only=self.is_committed_only)
            for partition, shell, read in self.reads
        )

    @property
    def is_empty(self) -> bool:
        return self.bytes_read == 0 and not self.cold

    def add(self, partition: FetchPartition, shell: PartitionShell | None, read: PartitionRead, share: int) -> None:
        if read.cold is not None:
            self.cold.append((len(self.reads), share))
            self.bytes_left -= share
        if read.problem is not None:
            self.has_problem = True
        self.bytes_read += read.size_bytes
        self.bytes_left -= read.size_bytes
        self.reads.append((partition, shell, read))


class FetchHandler:
    def __init__(
        self, broker: Broker, admission: Admission, clock: Clock, sessions: FetchSessions, readers: Executor
    ) -> None:
        self._broker = broker
        self._admission = admission
        self._clock = clock
        self._sessions = sessions
        # Threads for bytes that are not in memory; bounded, so a scan of old data cannot take every thread.
        self._readers = readers
        # Read in this turn of the loop.
        self._turn_bytes = 0

    def fetch(
        self, request: FetchRequest, context: RequestContext
    ) -> FetchResponse | Steps[FetchResponse] | Coroutine[object, object, FetchResponse]:
        if request.replica_state.replica_id >= 0 or request.replica_id >= 0:
            return _refuse_replica(request, context)
        if sum(len(topic.partitions) for topic in request.topics) > AT_ONCE_MAX:
            return self._fetch_many(request, context)
        opened = self._begin(request, context, all_at_once(_wanted(request, context)))
        if isinstance(opened, FetchSessionProblem):
            return FetchResponse(error_code=SESSION_CODES[opened])
        limits = self._limits(request)
        if self._turn_bytes >= TURN_BYTES_MAX:
            return self._wait_for_a_turn(opened, limits, context)
        if len(opened.partitions) > AT_ONCE_MAX:
            return self._wait(opened, None, limits, context, Waiter())
        done = self._read_all(opened, limits, context)
        if not done.cold and (done.is_enough(limits) or limits.wait_ms <= 0 or not opened.partitions):
            return all_at_once(self._answer(opened, done, context))
        # Entered before the task has its first step: what is appended in between must wake it.
        waiter = Waiter()
        self._watch(waiter, done)
        return self._wait(opened, done, limits, context, waiter)

    async def _wait_for_a_turn(self, opened: FetchContext, limits: _Limits, context: RequestContext) -> FetchResponse:
        await context.work.turn()
        return await self._wait(opened, None, limits, context, Waiter())

    async def _fetch_many(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        opened = self._begin(request, context, await context.work.run(_wanted(request, context)))
        if isinstance(opened, FetchSessionProblem):
            return FetchResponse(error_code=SESSION_CODES[opened])
        return await self._wait(opened, None, self._limits(request), context, Waiter())

    def _limits(self, request: FetchRequest) -> _Limits:
        config = self._broker.config
        return _Limits(
            bytes_min=request.min_bytes,
            bytes_max=min(request.max_bytes, config.fetch_bytes_max),
            wait_ms=min(request.max_wait_ms, config.fetch_wait_ms_max),
            is_committed_only=request.isolation_level == READ_COMMITTED,
        )

    def _begin(
        self, request: FetchRequest, context: RequestContext, partitions: Sequence[FetchPartition]
    ) -> FetchContext | FetchSessionProblem:
        by_id = context.api_version >= TOPIC_IDS_FROM
        forgotten: list[PartitionKey] = [
            (topic.topic_id if by_id else topic.topic, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        return self._sessions.begin(
            session_id=request.session_id,
            epoch=request.session_epoch,
            partitions=partitions,
            forgotten=forgotten,
            by_id=by_id,
            now_ms=self._clock.monotonic_ms(),
        )

    # Reading

    def _read_all(self, opened: FetchContext, limits: _Limits, context: RequestContext) -> _Pass:
        done = _Pass(limits, _room(context, limits))
        for partition in opened.partitions:
            shell, read = self._find(partition, context)
            self._read(done, partition, shell, read)
        self._count(done)
        return done

    def _read_in_steps(
        self, opened: FetchContext, limits: _Limits, context: RequestContext, waiter: Waiter
    ) -> Steps[_Pass]:
        """The same for very many. Each is watched before it is read: what comes while the others are read must wake."""
        done = _Pass(limits, _room(context, limits))
        waiter.watch((self._broker.stopping,))
        for partition in opened.partitions:
            shell, read = self._find(partition, context)
            if shell is not None:
                waiter.watch((shell.readers,))
            self._read(done, partition, shell, read)
            yield
        self._count(done)
        return done

    def _count(self, done: _Pass) -> None:
        if done.bytes_read < COUNTED_BYTES_MIN:
            return
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._turn_bytes += done.bytes_read

    def _begin_turn(self) -> None:
        self._turn_bytes = 0

    def _read(self, done: _Pass, partition: FetchPartition, shell: PartitionShell | None, read: PartitionRead) -> None:
        share = max(0, min(partition.bytes_max, done.bytes_left))
        # At least one batch even if it is larger than what was asked for, or a large message would stop its
        # consumer for ever; but only for the first partition that has something.
        if shell is not None and (share >= min(SHARE_BYTES_MIN, partition.bytes_max) or done.is_empty):
            read = shell.read(
                partition.fetch_offset,
                bytes_max=share,
                must_fit=not done.is_empty,
                leader_epoch=partition.leader_epoch,
                is_committed_only=done.is_committed_only,
            )
        # Of a cold read only its bound is known: the others must not count on what it may bring.
        done.add(partition, shell, read, 0 if shell is None else min(share, shell.size_bytes))

    def _find(self, partition: FetchPartition, context: RequestContext) -> tuple[PartitionShell | None, PartitionRead]:
        if context.api_version >= TOPIC_IDS_FROM:
            topic = self._broker.topic_by_id(partition.topic_id)
            if topic is None:
                return None, _UNKNOWN_ID
            resource = topic.resource
        else:
            topic = self._broker.topic(partition.topic)
            resource = access.topic(partition.topic) if topic is None else topic.resource
        if not self._admission.may(context.caller, Operation.READ, resource):
            return None, _FORBIDDEN
        if topic is None:
            return None, _UNKNOWN
        found = topic.find(partition.partition)
        if isinstance(found, NotHere):
            return None, PartitionRead(problem=found.read_problem(partition.leader_epoch))
        return found, _NOTHING

    async def _wait(
        self, opened: FetchContext, done: _Pass | None, limits: _Limits, context: RequestContext, waiter: Waiter
    ) -> FetchResponse:
        """With what was read so far, or from the beginning."""
        deadline_ms = self._clock.monotonic_ms() + limits.wait_ms
        try:
            while True:
                if done is None:
                    done = await context.work.run(self._read_in_steps(opened, limits, context, waiter))
                await self._load_cold(done)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if done.is_enough(limits) or left_ms <= 0 or self._broker.is_stopping:
                    return await context.work.run(self._answer(opened, done, context))
                await waiter.wait(left_ms)
                waiter.leave()
                done = None
        finally:
            waiter.leave()

    def _watch(self, waiter: Waiter, done: _Pass) -> None:
        """Right after reading: with no await in between nothing can be missed, and what comes later wakes us."""
        waiter.watch(shell.readers for _, shell, _ in done.reads if shell is not None)
        waiter.watch((self._broker.stopping,))

    async def _load_cold(self, done: _Pass) -> None:
        """Fills in what has to come from the disk. Loaded one after another: their sum is bounded by the limits."""
        loop = asyncio.get_running_loop()
        for index, share in done.cold:
            partition, shell, read = done.reads[index]
            assert shell is not None
            fresh = read
            while fresh.cold is not None:
                loaded = await loop.run_in_executor(self._readers, fresh.cold.load)
                fresh = shell.take_loaded(fresh, loaded, bytes_max=share)
            if done.bytes_read > 0 and fresh.size_bytes > share:
                fresh = _NOTHING  # only the first batch of a reply may be larger than was asked for
            done.bytes_read += fresh.size_bytes
            done.has_problem |= fresh.problem is not None
            done.reads[index] = (partition, shell, fresh)
        done.cold.clear()

    # Answering

    def _answer(self, opened: FetchContext, done: _Pass, context: RequestContext) -> Steps[FetchResponse]:
        topics: dict[str | bytes, list[PartitionData]] = {}
        by_id = context.api_version >= TOPIC_IDS_FROM
        for partition, shell, read in done.reads:
            high_watermark, log_start = (-1, -1) if shell is None else (shell.readable_end, shell.log_start)
            has_problem = read.problem is not None
            if opened.keep(partition, read.size_bytes, has_problem, high_watermark, log_start):
                key = partition.topic_id if by_id else partition.topic
                data = _partition_data(partition, shell, read, is_committed_only=done.is_committed_only)
                topics.setdefault(key, []).append(data)
            yield
        if len(done.reads) > UNKNOWN_MAX and sum(shell is None for _, shell, _ in done.reads) > UNKNOWN_MAX:
            session_id = self._sessions.refuse(opened)
        else:
            session_id = self._sessions.finish(opened, self._clock.monotonic_ms())
        return FetchResponse(session_id=session_id, responses=_by_topic(topics, by_id=by_id))


def _refuse_replica(request: FetchRequest, context: RequestContext) -> Steps[FetchResponse]:
    """A broker's request. Ours come in by the door for nodes; another's would move the watermark by what it says."""
    topics = []
    for topic in request.topics if context.api_version < ERRORS_FROM else ():
        forbidden: list[PartitionData] = []
        for partition in topic.partitions:
            forbidden.append(PartitionData(partition.partition, _NO_NODE, -1))
            yield
        topics.append(FetchableTopicResponse(topic=topic.topic, partitions=forbidden))
    return FetchResponse(error_code=_NO_NODE, responses=topics)


def _wanted(request: FetchRequest, context: RequestContext) -> Steps[list[FetchPartition]]:
    """What is named twice is fetched once, as it was named last: Kafka's way."""
    by_id = context.api_version >= TOPIC_IDS_FROM
    partitions: dict[PartitionKey, FetchPartition] = {}
    for topic in request.topics:
        key = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            partitions[key, partition.partition] = FetchPartition(
                topic.topic, topic.topic_id, partition.partition, partition.fetch_offset,
                partition.partition_max_bytes, partition.current_leader_epoch, partition.last_fetched_epoch,
            )  # fmt: skip
            yield
    return list(partitions.values())


def _room(context: RequestContext, limits: _Limits) -> int:
    """Less than was asked for, while other clients leave much of what they asked for unread."""
    if context.connection is None:
        return limits.bytes_max
    return max(context.connection.reply_room(), SHARE_BYTES_MIN)


def _partition_data(
    partition: FetchPartition, shell: PartitionShell | None, read: PartitionRead, *, is_committed_only: bool
) -> PartitionData:
    # With an error no offsets are told, as Kafka does it: a client asks ListOffsets where to go on.
    is_told = shell is not None and read.problem is None
    return PartitionData(
        partition_index=partition.partition,
        error_code=0 if read.problem is None else READ_CODES[read.problem],
        high_watermark=shell.readable_end if shell is not None and is_told else -1,
        last_stable_offset=shell.last_stable_offset if shell is not None and is_told else -1,
        log_start_offset=shell.log_start if shell is not None and is_told else -1,
        # Null where nobody asked; a partition that is not here has none, whoever asks.
        aborted_transactions=_aborted(read) if is_committed_only or shell is None else None,
        # Never null: librdkafka takes null records for a malformed reply.
        records=read.records,
    )


def _aborted(read: PartitionRead) -> Sequence[AbortedTransaction]:
    return [AbortedTransaction(entry.producer_id, entry.first_offset) for entry in read.aborted]


def _by_topic(topics: dict[str | bytes, list[PartitionData]], *, by_id: bool) -> Sequence[FetchableTopicResponse]:
    if by_id:
        return [
            FetchableTopicResponse(topic_id=bytes(key), partitions=data)  # type: ignore[arg-type]
            for key, data in topics.items()
        ]
    return [FetchableTopicResponse(topic=str(key), partitions=data) for key, data in topics.items()]


_NO_NODE: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NOTHING: Final = PartitionRead()
_UNKNOWN: Final = PartitionRead(problem=ReadProblem.UNKNOWN_PARTITION)
_UNKNOWN_ID: Final = PartitionRead(problem=ReadProblem.UNKNOWN_TOPIC_ID)
_FORBIDDEN: Final = PartitionRead(problem=ReadProblem.FORBIDDEN)
