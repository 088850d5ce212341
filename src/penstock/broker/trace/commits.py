"""When consumer groups passed a message: the commits in `__consumer_offsets` that say so, and few others, are read."""

from __future__ import annotations

from penstock.broker.machine.portions import describe_damage
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.trace.index import TraceIndex, TraceScans
from penstock.codec.batch.records import StoredRecord
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.domain.trace.commits import Commit, CommitSearch, commit_events
from penstock.domain.trace.events import Place, PlaceFacts, TraceEvent
from penstock.domain.trace.words import moment
from penstock.domain.trace.zones import CommitZones, commit_key, read_commit
from penstock.storage.segment.zones import ZoneEntries


class CommitHistory:
    def __init__(self, broker: Broker, scans: TraceScans) -> None:
        self._broker = broker
        self._scans = scans
        self.indexes: list[TraceIndex] = []

    async def tend(self) -> None:
        for index in self._opened():
            await index.tend()

    def _opened(self) -> list[TraceIndex]:
        """One for each partition of the internal topic, once there is one."""
        topic = self._broker.topic(CONSUMER_OFFSETS)
        shells = [] if topic is None else topic.shells
        if [index.shell for index in self.indexes] != shells:
            for index in self.indexes:
                index.forget()
            self.indexes = [TraceIndex(shell, CommitZones, self._scans) for shell in shells]
        return self.indexes

    async def strand(self, facts: PlaceFacts, topic_id: bytes, horizon_ms: int, notes: list[str]) -> list[TraceEvent]:
        place = facts.place
        events: list[TraceEvent] = []
        for index in self._opened():
            search = CommitSearch(commit_key(place.topic, place.partition), place.offset)
            zones = await index.find(lambda entries, search=search: _news_in(entries, search))  # type: ignore[misc]
            commits = await index.rows(zones, lambda row: _commit_of(row, place), holding=place.topic.encode())
            events += commit_events(place, topic_id, commits)
            note_damage(index.shell, notes)
        # A group lives in one partition, so each group's events are in order; those of several are put in order here.
        events.sort(key=lambda event: event.at_ms or 0)
        if events and facts.timestamp_ms is not None and facts.timestamp_ms < horizon_ms:
            notes.append(
                f"it is older than the trace horizon ({moment(horizon_ms)}): of the commits before that only the "
                "last of each group may be left"
            )
        return events


def _news_in(entries: ZoneEntries, search: CommitSearch) -> list[int]:
    return search.news_in(entries.find(search.key_first, search.key_last))


def _commit_of(row: StoredRecord, place: Place) -> Commit | None:
    commit = read_commit(row.key, row.value)
    if commit is None or (commit[1].topic, commit[1].partition) != (place.topic, place.partition):
        return None
    return commit


def note_damage(journal: PartitionShell, notes: list[str]) -> None:
    """After it was read: a journey that lacks something must not look whole."""
    damage = journal.log.damage
    if damage is not None:
        notes.append(f"{describe_damage(journal, damage.describe())} What it said of this message may be missing here.")
