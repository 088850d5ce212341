"""Incremental fetch (KIP-227): a consumer of many partitions names them once, then only what changes.

    epoch -1   no session: all partitions are named, all are answered; a session that is named ends
    epoch 0    all are named, all are answered, and a session begins if there is room (its id, else 0)
    epoch n    1, 2, … of a session: changed, added and forgotten partitions are named; answered are those
               with data, an error, or a high watermark or log start that the session has not been told

How a caller uses it, for every fetch:

    opened = sessions.begin(...)                        # FetchContext, or a FetchSessionProblem to answer
    for partition in opened.partitions: read it, then
        if opened.keep(partition, ...): put it into the answer
    session_id = sessions.finish(opened, now_ms)        # what the answer carries

Rules:
- A session belongs to whoever knows its id, not to a connection: permission is asked anew at every fetch.
- The cache is bounded twice, by sessions and by partitions. A newcomer takes the slot of one unused for
  `eviction_ms`; or, replicas first and larger before smaller, of one that has had its slot for `eviction_ms`.
  Who finds no room is served in full each time.
- Partitions that were answered with data go to the end of the order, so that a small byte limit starves
  nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_SESSION_ID_MAX: Final = 2**31 - 1

SLOTS_MAX: Final = 1000
# A cached partition takes some 200 bytes: 200,000 of them are 40 MB, and 1,000 consumers of 200 partitions
# each.
PARTITIONS_MAX: Final = 200_000
EVICTION_MS: Final = 120_000
# With a full cache every fetch of a newcomer asks for a slot; looking through 1,000 sessions takes some 100
# µs, so after a search in vain nobody of the same rank searches again for a while.
_SEARCH_AGAIN_MS: Final = 1000

_UNTOLD: Final = -1

# (topic name or topic id, partition): which of the two depends on the version that the client speaks.
PartitionKey = tuple[str | bytes, int]


class FetchPartition(msgspec.Struct, gc=False):
    """One partition that a client wants. Changeable: a session keeps it from fetch to fetch."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int
    bytes_max: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    # Sent by replicas only.
    log_start: int = -1
    told_high_watermark: int = _UNTOLD
    told_log_start: int = _UNTOLD


class FetchSessionProblem(Enum):
    """Named as Kafka names them; the gateway maps them to numbers."""

    FETCH_SESSION_ID_NOT_FOUND = "no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = "the fetch session is at another epoch"
    FETCH_SESSION_TOPIC_ID_ERROR = "the fetch session names topics by name where the request has ids, or the reverse"


@dataclass(slots=True, eq=False)
class _Session:
    id: int
    by_id: bool
    is_replica: bool
    created_ms: int
    used_ms: int
    partitions: dict[PartitionKey, FetchPartition]
    epoch: int = 1
    # The values of `partitions`, replaced whole when they change: a parked fetch may still walk the old list.
    order: list[FetchPartition] = field(default_factory=list)

    def rank(self) -> tuple[bool, int]:
        return (self.is_replica, len(self.partitions))


class FetchContext:
    """One fetch, from its request to its answer."""

    __slots__ = (
        "_by_id",
        "_is_replica",
        "_served",
        "_session",
        "_wants_session",
        "is_incremental",
        "partitions",
    )

    def __init__(
        self,
        partitions: Sequence[FetchPartition],
        *,
        session: _Session | None = None,
        wants_session: bool = False,
        by_id: bool = False,
        is_replica: bool = False,
    ) -> None:
        # In the order in which they should be read while the byte limit lasts. Do not change the sequence.
        self.partitions = partitions
        self.is_incremental = session is not None
        self._session = session
        self._wants_session = wants_session
        self._by_id = by_id
        self._is_replica = is_replica
        self._served: list[FetchPartition] = []

    def keep(
        self,
        partition: FetchPartition,
        size_bytes: int,
        has_error: bool,
        high_watermark: int,
        log_start: int,
    ) -> bool:
        """Whether the answer must hold this partition. Call it once for each, when the answer is made."""
        if has_error:
            # Untold again, so that the partition is answered once more when the error has gone.
            partition.told_high_watermark = _UNTOLD
            return True
        if size_bytes:
            self._served.append(partition)
        elif (
            self.is_incremental
            and partition.told_high_watermark == high_watermark
            and partition.told_log_start == log_start
        ):
            return False
        partition.told_high_watermark = high_watermark
        partition.told_log_start = log_start
        return True


class FetchSessions:
    """All fetch sessions of a node, least recently used first."""

    def __init__(
        self,
        new_id: Callable[[], int],
        *,
        slots_max: int = SLOTS_MAX,
        partitions_max: int = PARTITIONS_MAX,
        eviction_ms: int = EVICTION_MS,
    ) -> None:
        # Any number will do; it should be hard to guess, as ids are all that a client shows.
        self._new_id = new_id
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, _Session] = {}
        self._partition_count = 0
        self._vain_search_until_ms = 0
        self._vain_search_rank = (False, 0)
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def begin(
        self,
        *,
        session_id: int,
        epoch: int,
        partitions: Sequence[FetchPartition],
        forgotten: Collection[PartitionKey] = (),
        by_id: bool,
        now_ms: int,
        is_replica: bool = False,
    ) -> FetchContext | FetchSessionProblem:
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(session_id)
            wants_session = epoch == INITIAL_EPOCH
            return FetchContext(partitions, wants_session=wants_session, by_id=by_id, is_replica=is_replica)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return FetchSessionProblem.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return FetchSessionProblem.FETCH_SESSION_TOPIC_ID_ERROR
        if partitions or forgotten:
            self._change(session, partitions, forgotten)
            if not session.partitions:
                self._end(session_id)
                return FetchContext(())
            if self._partition_count > self._partitions_max:
                # The client begins anew with all partitions and is served in full from then on.
                self._end(session_id)
                return FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._touch(session, now_ms)
        return FetchContext(session.order, session=session)

    def finish(self, context: FetchContext, now_ms: int) -> int:
        """The session id for the answer; 0 tells the client that there is none."""
        session = context._session  # noqa: SLF001  two halves of one machine
        if session is not None:
            self._rotate(session, context._served)  # noqa: SLF001
            return session.id
        if not context._wants_session or not context.partitions:  # noqa: SLF001
            return NO_SESSION
        return self._create(context, now_ms)

    def refuse(self, context: FetchContext) -> int:
        """Instead of `finish`: there is no session, or no longer. The client names everything with its next fetch."""
        session = context._session  # noqa: SLF001
        if session is not None:
            self._end(session.id)
        return NO_SESSION

    def _create(self, context: FetchContext, now_ms: int) -> int:
        by_id = context._by_id  # noqa: SLF001
        partitions = {_key(partition, by_id): partition for partition in context.partitions}
        session = _Session(NO_SESSION, by_id, context._is_replica, now_ms, now_ms, partitions)  # noqa: SLF001
        if not self._make_room(session.rank(), now_ms):
            return NO_SESSION
        session.id = self._unused_id()
        self._sessions[session.id] = session
        self._partition_count += len(partitions)
        session.order = list(partitions.values())
        self._rotate(session, context._served)  # noqa: SLF001
        return session.id

    def _make_room(self, rank: tuple[bool, int], now_ms: int) -> bool:
        _, size = rank
        if size > self._partitions_max:
            return False
        while len(self._sessions) >= self._slots_max or self._partition_count + size > self._partitions_max:
            victim = self._victim(rank, now_ms)
            if victim is None:
                return False
            self._end(victim.id)
            self.evictions += 1
        return True

    def _victim(self, rank: tuple[bool, int], now_ms: int) -> _Session | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return None
        if now_ms - oldest.used_ms > self._eviction_ms:
            return oldest
        if now_ms < self._vain_search_until_ms and rank <= self._vain_search_rank:
            return None
        is_replica, _ = rank
        candidates = [
            session
            for session in self._sessions.values()
            if session.rank() < rank
            and (
                now_ms - session.created_ms > self._eviction_ms
                # A replica need not wait for a consumer's slot.
                or (is_replica and not session.is_replica)
            )
        ]
        if not candidates:
            self._vain_search_until_ms = now_ms + _SEARCH_AGAIN_MS
            self._vain_search_rank = rank
            return None
        return min(candidates, key=_Session.rank)

    def _unused_id(self) -> int:
        while True:
            # Ids are positive int32; 0 means none.
            session_id = 1 + self._new_id() % _SESSION_ID_MAX
            if session_id not in self._sessions:
                return session_id

    def _touch(self, session: _Session, now_ms: int) -> None:
        session.used_ms = now_ms
        # To the end: the dictionary's order is the order of use.
        del self._sessions[session.id]
        self._sessions[session.id] = session

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)

    def _change(
        self, session: _Session, partitions: Sequence[FetchPartition], forgotten: Collection[PartitionKey]
    ) -> None:
        count_before = len(session.partitions)
        for partition in partitions:
            key = _key(partition, session.by_id)
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = partition
            else:
                _update(known, partition)
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partition_count += len(session.partitions) - count_before
        session.order = list(session.partitions.values())

    def _rotate(self, session: _Session, served: Sequence[FetchPartition]) -> None:
        if not served:
            return
        for partition in served:
            key = _key(partition, session.by_id)
            # It may have been forgotten, or forgotten and named again, while this fetch was parked.
            if session.partitions.get(key) is partition:
                del session.partitions[key]
                session.partitions[key] = partition
        session.order = list(session.partitions.values())


def _key(partition: FetchPartition, by_id: bool) -> PartitionKey:
    return (partition.topic_id if by_id else partition.topic, partition.partition)


def _update(known: FetchPartition, request: FetchPartition) -> None:
    known.fetch_offset = request.fetch_offset
    known.bytes_max = request.bytes_max
    known.leader_epoch = request.leader_epoch
    known.last_fetched_epoch = request.last_fetched_epoch
    known.log_start = request.log_start
