"""Share sessions (KIP-932): which partitions a member of a share group fetches from this node, and in which step it is.

Every ShareFetch and ShareAcknowledge of a member carries the epoch of its session: 0 opens one, -1 closes it, and
otherwise each request is one higher than the one before. So a request that was sent twice, or that belongs to a
connection that is gone, changes nothing.

A session lives as long as its connection. What its member holds when it ends is free for others: by its end the
member has lost the right to settle it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

OPENING_EPOCH: Final = 0
CLOSING_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

SharePartitionKey = tuple[bytes, int]
_SessionKey = tuple[str, str]


class ShareSessionProblem(Enum):
    """Named as Kafka names them."""

    SHARE_SESSION_NOT_FOUND = "the member has no share session here"
    INVALID_SHARE_SESSION_EPOCH = "the share session is at another epoch"
    SHARE_SESSION_LIMIT_REACHED = "this node has as many share sessions as it takes"


class ShareSession:
    """`partitions` in the order in which they were added."""

    __slots__ = ("connection", "epoch", "group", "is_over", "member_id", "partitions", "turn")

    def __init__(self, group: str, member_id: str, connection: object) -> None:
        self.group = group
        self.member_id = member_id
        self.connection = connection
        # What the next request must say.
        self.epoch = 1
        self.partitions: dict[SharePartitionKey, None] = {}
        # Which partition comes first: another one each time, so that none is always the last.
        self.turn = 0
        self.is_over = False

    def in_turn(self) -> list[SharePartitionKey]:
        keys = list(self.partitions)
        if len(keys) < 2:
            return keys
        self.turn = (self.turn + 1) % len(keys)
        return keys[self.turn :] + keys[: self.turn]


class ShareSessions:
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._sessions: dict[_SessionKey, ShareSession] = {}
        self._by_connection: dict[object, dict[_SessionKey, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, group: str, member_id: str) -> ShareSession | None:
        return self._sessions.get((group, member_id))

    def open(self, group: str, member_id: str, connection: object) -> ShareSession | ShareSessionProblem:
        """The caller has ended the one that was there before."""
        assert (group, member_id) not in self._sessions, "a member has one session"
        if len(self._sessions) >= self._count_max:
            return ShareSessionProblem.SHARE_SESSION_LIMIT_REACHED
        session = ShareSession(group, member_id, connection)
        self._sessions[group, member_id] = session
        self._by_connection.setdefault(connection, {})[group, member_id] = None
        return session

    @property
    def partition_count(self) -> int:
        """Of all sessions together."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def step(self, group: str, member_id: str, epoch: int) -> ShareSession | ShareSessionProblem:
        """The next request of a session that is open, or (-1) its last one, after which the caller ends it."""
        session = self._sessions.get((group, member_id))
        if session is None:
            return ShareSessionProblem.SHARE_SESSION_NOT_FOUND
        if epoch == CLOSING_EPOCH:
            return session
        if epoch != session.epoch:
            return ShareSessionProblem.INVALID_SHARE_SESSION_EPOCH
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session

    def knows(self, connection: object) -> bool:
        return connection in self._by_connection

    def end(self, session: ShareSession) -> None:
        key = (session.group, session.member_id)
        if self._sessions.get(key) is session:
            del self._sessions[key]
            self._by_connection[session.connection].pop(key, None)
        session.is_over = True

    def end_connection(self, connection: object) -> list[ShareSession]:
        """The sessions that ended with it."""
        ended = [self._sessions[key] for key in self._by_connection.get(connection, ())]
        for session in ended:
            self.end(session)
        self._by_connection.pop(connection, None)
        return ended


def update(
    session: ShareSession, added: Iterable[SharePartitionKey], forgotten: Iterable[SharePartitionKey]
) -> list[SharePartitionKey]:
    """Those that are forgotten and were there: what the member holds of them is still its own to settle."""
    for key in added:
        session.partitions[key] = None
    gone = [key for key in forgotten if key in session.partitions]
    for key in gone:
        del session.partitions[key]
    return gone
