"""What a metadata store holds: keys, their revisions, the history of changes, sessions. Plain state, no waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from penstock.cluster.store.protocol import (
    Absent,
    CompactedError,
    Compare,
    CreateRevisionIs,
    Entry,
    Event,
    EventBatch,
    ModRevisionIs,
    Range,
    SessionExpiredError,
    TxnResult,
    ValueIs,
)


@dataclass(slots=True)
class Session:
    ttl_ms: int
    ends_ms: int
    # Bound to it, in the order of their binding.
    keys: dict[str, None] = field(default_factory=dict)


class StoreState:
    def __init__(self) -> None:
        self.revision = 0
        self.compacted_revision = 0
        self.sessions: dict[int, Session] = {}
        self._entries: dict[str, Entry] = {}
        self._history: list[EventBatch] = []
        self._session_of: dict[str, int] = {}
        self._session_ids = count(1)

    # Reading

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def range(self, prefix: str) -> Range:
        entries = sorted((key, entry) for key, entry in self._entries.items() if key.startswith(prefix))
        return Range(tuple(entry for _key, entry in entries), self.revision)

    def events(self, prefix: str, from_revision: int) -> list[EventBatch]:
        if from_revision <= self.compacted_revision:
            raise CompactedError(from_revision=from_revision, compacted_revision=self.compacted_revision)
        found = []
        for batch in self._history:
            events = tuple(event for event in batch.events if event.key.startswith(prefix))
            if batch.revision >= from_revision and events:
                found.append(EventBatch(batch.revision, events))
        return found

    def compact(self) -> None:
        """Nothing that has happened so far can be watched any more."""
        self._history.clear()
        self.compacted_revision = self.revision

    # Changing

    def txn(
        self, compares: Sequence[Compare], puts: Mapping[str, bytes], deletes: Sequence[str], session_id: int | None
    ) -> TxnResult:
        if session_id is not None and session_id not in self.sessions:
            raise SessionExpiredError(f"session {session_id} has ended")
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(ok=False, revision=self.revision)
        self._change(puts, [key for key in deletes if key in self._entries], session_id)
        return TxnResult(ok=True, revision=self.revision)

    def _holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        match compare:
            case Absent():
                return entry is None
            case ValueIs():
                return entry is not None and entry.value == compare.value
            case CreateRevisionIs():
                return entry is not None and entry.create_revision == compare.revision
            case ModRevisionIs():
                return entry is not None and entry.mod_revision == compare.revision

    def _change(self, puts: Mapping[str, bytes], deletes: Sequence[str], session_id: int | None) -> None:
        if not puts and not deletes:
            return
        self.revision += 1
        events = [self._put(key, value, session_id) for key, value in puts.items()]
        events += [self._delete(key) for key in deletes]
        self._history.append(EventBatch(self.revision, tuple(events)))

    def _put(self, key: str, value: bytes, session_id: int | None) -> Event:
        before = self._entries.get(key)
        created = self.revision if before is None else before.create_revision
        self._entries[key] = Entry(key, value, created, self.revision)
        self._free(key)
        if session_id is not None:
            self._session_of[key] = session_id
            self.sessions[session_id].keys[key] = None
        return Event(key, value, created, self.revision)

    def _delete(self, key: str) -> Event:
        self._free(key)
        return Event(key, None, self._entries.pop(key).create_revision, self.revision)

    def _free(self, key: str) -> None:
        session_id = self._session_of.pop(key, None)
        if session_id is not None:
            self.sessions[session_id].keys.pop(key, None)

    # Sessions

    def open_session(self, ttl_ms: int, now_ms: int) -> int:
        session_id = next(self._session_ids)
        self.sessions[session_id] = Session(ttl_ms, now_ms + ttl_ms)
        return session_id

    def keep_alive(self, session_id: int, now_ms: int) -> bool:
        session = self.sessions.get(session_id)
        if session is not None:
            session.ends_ms = now_ms + session.ttl_ms
        return session is not None

    def close_session(self, session_id: int) -> None:
        session = self.sessions.get(session_id)
        if session is not None:
            self._change({}, list(session.keys), None)
            del self.sessions[session_id]

    def renew_all(self, now_ms: int) -> None:
        for session in self.sessions.values():
            session.ends_ms = max(session.ends_ms, now_ms + session.ttl_ms)

    def expire(self, now_ms: int) -> None:
        for session_id in [number for number, session in self.sessions.items() if session.ends_ms < now_ms]:
            self.close_session(session_id)
