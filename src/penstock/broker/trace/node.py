"""Journeys of messages, derived from the logs of this node: the topic's, the journal of its queues, committed offsets.

Nothing is written for it but side files, in the background (`index`). A journey begins at the message's first
place, which its name tells, and goes on from copy to copy: the journal says where a dead letter or a redriven message
went, and headers say where it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.node import NodeQueues
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.topic.not_here import NotHere, for_looks
from penstock.broker.topic.served_topic import ServedTopic
from penstock.broker.trace.commits import CommitHistory, note_damage
from penstock.broker.trace.index import BEHIND_BYTES_MAX, TraceIndex, TraceScans
from penstock.broker.trace.journal import QueueHistory
from penstock.broker.trace.places import PlaceReader
from penstock.broker.trace.schedule import ScheduleHistory, find_origin
from penstock.broker.trace.search import Findings, KeySearch
from penstock.broker.trace.why import WhyNot
from penstock.domain.queue.receipt import MessageId, read_message_id, read_scheduled_id, write_scheduled_id
from penstock.domain.topic_rules import is_internal
from penstock.domain.trace.events import Journey, Kind, Place, PlaceFacts, PlaceState, TraceEvent, TransactionState
from penstock.domain.trace.journey import Visit, merge
from penstock.domain.trace.why import Reason, WhyAnswer, schedule_reason
from penstock.domain.trace.words import sentence_of
from penstock.domain.trace.zones import QueueZones, ScheduleZones

TEND_MS: Final = 5_000
# Copies that are followed: a message that was redriven and died again, so often.
VISITS_MAX: Final = 64
# A queue for whom a message came back a hundred thousand times is not told as a whole.
EVENTS_MAX: Final = 10_000


class NoSuchMessage(msgspec.Struct, frozen=True):
    reason: str
    # Another node can tell, or this one in a moment.
    is_elsewhere: bool = False


class Sight(msgspec.Struct, frozen=True):
    """Who asks may see these; of others nothing is told, not even that they are there."""

    topic: Callable[[str], bool] = lambda _name: True
    group: Callable[[str], bool] = lambda _name: True


class NodeTrace:
    def __init__(
        self, site: Site, broker: Broker, queues: NodeQueues, groups: GroupCoordinator, schedules: NodeSchedules
    ) -> None:
        self.broker = broker
        self.queues = queues
        self.groups = groups
        self._schedules = schedules
        self._clock = site.clock
        self._tasks = site.tasks
        self.scans = TraceScans(site.readers, now=site.clock.monotonic_seconds)
        self.places = PlaceReader(broker, site.readers)
        self._readers = site.readers
        self._why_not = WhyNot(broker, queues, groups, site.clock)
        self._commits = CommitHistory(broker, self.scans)
        self._indexes: dict[tuple[bytes, int, CompanionKind], TraceIndex] = {}

    def start(self) -> None:
        self._tasks.every(TEND_MS, "trace zones", self._tend)

    async def _tend(self) -> None:
        """One log after the other; what nobody has traced yet is looked through as well, once it is large."""
        for shell in self.queues.loaded_shells():
            await self._tend_one(shell.partition, shell.journal_log, CompanionKind.QUEUES)
        for schedule in self._schedules.loaded_shells():
            await self._tend_one(schedule.partition, schedule.companion, CompanionKind.SCHEDULE)
        await self._commits.tend()
        open_ids = {topic.topic_id for topic in self.broker.topics()}
        for key in [key for key in self._indexes if key[0] not in open_ids]:
            self._indexes.pop(key).forget()

    def _behind(self, topics: set[str]) -> list[str]:
        """Logs about these topics of which not everything is known now."""
        own = [index for index in self._indexes.values() if index.shell.topic.rpartition(".")[0] in topics]
        names = sorted({index.shell.topic for index in (*own, *self._commits.indexes) if index.is_behind})
        return [f"{name} is still being looked through, events may be missing: ask again in a while" for name in names]

    async def _tend_one(self, partition: PartitionShell, companion: PartitionShell, kind: CompanionKind) -> None:
        """Most are small, and nobody asks: they cost nothing."""
        if companion.size_bytes > BEHIND_BYTES_MAX:
            await self._index_of(partition, companion, kind).tend()

    def _index_of(self, partition: PartitionShell, companion: PartitionShell, kind: CompanionKind) -> TraceIndex:
        key = (partition.log.home.topic_id, partition.index, kind)
        index = self._indexes.get(key)
        if index is not None and index.shell is not companion:
            index.forget()
        if index is None or index.shell is not companion:
            make_zones = QueueZones if kind is CompanionKind.QUEUES else ScheduleZones
            index = self._indexes[key] = TraceIndex(companion, make_zones, self.scans)
        return index

    # Names

    def place_of(self, message_id: str) -> Place | NoSuchMessage:
        """The place that a message's id names."""
        found, is_schedule = read_message_id(message_id), False
        if found is None:
            found, is_schedule = read_scheduled_id(message_id), True
        if found is None:
            return NoSuchMessage(f"{message_id[:100]!r} is no message id")
        topic = self.broker.topic_by_id(found.topic_id)
        if topic is None:
            return NoSuchMessage("the topic of that message was deleted, and with it all that was known of it")
        if found.offset < 0:
            return NoSuchMessage(f"{message_id!r} names no place that there can be")
        return Place(topic.name, found.partition, found.offset, is_schedule)

    def find(self, place: Place) -> tuple[ServedTopic, PartitionShell] | NoSuchMessage:
        topic = self.broker.topic(place.topic)
        if topic is None or is_internal(place.topic):
            return NoSuchMessage(f"there is no topic {place.topic!r}")
        if not topic.has_partition(place.partition):
            count = topic.partition_count
            return NoSuchMessage(f"{place.topic!r} has no partition {place.partition}, it has {count} of them")
        partition = for_looks(topic.find(place.partition))
        if isinstance(partition, NotHere):
            return NoSuchMessage(partition.detail, is_elsewhere=True)
        return topic, partition

    async def search(self, topic: str, key: bytes, *, since_ms: int, until_ms: int) -> Findings | NoSuchMessage:
        """Messages of a key between two times, the first few."""
        found = self.find(Place(topic, 0, 0))
        if isinstance(found, NoSuchMessage):
            return found
        return await KeySearch(found[0], key, since_ms=since_ms, until_ms=until_ms, readers=self._readers).run()

    async def why(self, asked: Place, sight: Sight | None = None) -> WhyAnswer | NoSuchMessage:
        """One reason for each queue and group, at every place of the message's journey."""
        sight = sight or Sight()
        journey = await self.trace(asked, sight)
        if isinstance(journey, NoSuchMessage):
            return journey
        reasons: list[Reason] = []
        for facts in journey.places:
            found = self.find(facts.place)
            if isinstance(found, NoSuchMessage):
                continue
            events = [event for event in journey.events if event.place == facts.place]
            if facts.place.is_schedule:
                reason = schedule_reason(facts, events, self._clock.now_ms())
                reasons += [] if reason is None else [reason]
            else:
                reasons += await self._why_not.reasons(facts, *found, events)
        if isinstance(found := self.find(asked), NoSuchMessage):
            return found
        seen = tuple(reason for reason in reasons if not reason.group or sight.group(reason.group))
        return WhyAnswer(journey.id, seen, journey.notes)

    # Journeys

    async def trace(self, asked: Place, sight: Sight | None = None) -> Journey | NoSuchMessage:
        """The whole journey, whichever place of it was asked for."""
        sight = sight or Sight()
        found = self.find(asked)
        if isinstance(found, NoSuchMessage) or not sight.topic(asked.topic):
            return found if isinstance(found, NoSuchMessage) else NoSuchMessage(f"there is no topic {asked.topic!r}")
        facts = await self._facts(asked, *found)
        if facts.state is PlaceState.AHEAD:
            return NoSuchMessage(f"{asked} is not written yet: there is no such message")
        notes: list[str] = []
        visits: list[Visit] = []
        delayed = await self._delayed(facts, found[1])
        if delayed is not None:
            notes.append(f"{asked} is the empty slot of a delayed message, which waits or waited in the schedule")
        for begin in [delayed] if delayed is not None else self._begins(facts, notes):
            await self._walk(begin, sight, visits, notes)
        if not visits:
            return NoSuchMessage("; ".join(dict.fromkeys(notes)))
        if isinstance(found := self.find(asked), NoSuchMessage):
            # Reading took a while.
            return found
        events = merge(visits)
        if len(events) > EVENTS_MAX:
            notes.append(f"{len(events):,} events are known; the first {EVENTS_MAX:,} are shown")
        notes += self._behind({visit.facts.place.topic for visit in visits})
        seen = [_as_seen(event, sight) for event in events[:EVENTS_MAX]]
        told = [msgspec.structs.replace(event, sentence=sentence_of(event)) for event in seen]
        facts_of_all = tuple(visit.facts for visit in visits)
        return Journey(visits[0].facts.id, facts_of_all, tuple(told), tuple(dict.fromkeys(notes)))

    def _begins(self, asked: PlaceFacts, notes: list[str]) -> list[Place]:
        """Where to begin: at the first place, and at what is known beside it if the way from there is not."""
        begins: list[Place] = []
        if asked.first_id and asked.first_id != asked.id:
            first = self.place_of(asked.first_id)
            if isinstance(first, Place):
                begins.append(first)
            else:
                notes.append(f"it is a copy of a message whose first place cannot be looked at: {first.reason}")
        if asked.origin is not None and not isinstance(self.find(asked.origin), NoSuchMessage):
            begins.append(asked.origin)
        return [*begins, asked.place]

    async def _walk(self, begin: Place, sight: Sight, visits: list[Visit], notes: list[str]) -> None:
        waiting: list[tuple[Place, TraceEvent | None]] = [(begin, None)]
        while waiting:
            place, made_by = waiting.pop(0)
            if any(visit.facts.place == place for visit in visits):
                continue
            if len(visits) >= VISITS_MAX:
                notes.append(f"the first {VISITS_MAX} copies are shown; there are more")
                return
            if not sight.topic(place.topic):
                notes.append("a copy lies in a topic that you may not read")
                continue
            visit = await self._visit(place, made_by, sight, notes)
            if visit is not None:
                visits.append(visit)
                waiting += [(target, event) for event, target in visit.targets]

    async def _visit(self, place: Place, made_by: TraceEvent | None, sight: Sight, notes: list[str]) -> Visit | None:
        found = self.find(place)
        if isinstance(found, NoSuchMessage):
            notes.append(f"{place}: {found.reason}")
            return None
        topic, partition = found
        if place.is_schedule:
            history = await self._schedule_history(place, partition)
            if history is None:
                notes.append(f"{place}: the schedule is not there, or cannot be read now")
                return None
            return Visit(history.facts(topic.topic_id), None, (tuple(await history.strand()),), made_by)
        facts = await self.places.facts(place, topic, partition)
        arrival = _arrival(facts, made_by)
        strands = [
            _transaction_end(facts),
            await self._queue_strand(facts, partition, notes),
            await self._commits.strand(facts, topic.topic_id, self._horizon_ms(), notes),
        ]
        seen = [tuple(event for event in strand if not event.group or sight.group(event.group)) for strand in strands]
        return Visit(facts, arrival, tuple(seen), made_by)

    async def _schedule_history(self, place: Place, partition: PartitionShell) -> ScheduleHistory | None:
        """None: nothing was ever delayed there, or the schedule cannot be had now."""
        shell = await self._schedules.existing_shell(partition)
        if not isinstance(shell, ScheduleShell):
            return None
        index = self._index_of(partition, shell.companion, CompanionKind.SCHEDULE)
        history = ScheduleHistory(index, shell, place, self._readers, self.broker.node_id)
        await history.read()
        return history

    async def _delayed(self, facts: PlaceFacts, partition: PartitionShell) -> Place | None:
        """Where the message waits or waited whose slot is empty; None: it is no such slot, or nobody knows whose."""
        if facts.state is not PlaceState.HOLE or facts.producer is None:
            return None
        shell = await self._schedules.existing_shell(partition)
        if not isinstance(shell, ScheduleShell):
            return None
        index = self._index_of(partition, shell.companion, CompanionKind.SCHEDULE)
        origin = await find_origin(index, partition, facts.place.offset, facts.producer, self._readers)
        return None if origin is None else Place(partition.topic, partition.index, origin, is_schedule=True)

    async def _facts(self, place: Place, topic: ServedTopic, partition: PartitionShell) -> PlaceFacts:
        if not place.is_schedule:
            return await self.places.facts(place, topic, partition)
        history = await self._schedule_history(place, partition)
        name = write_scheduled_id(MessageId(topic.topic_id, place.partition, place.offset))
        unknown = PlaceFacts(place=place, id=name, state=PlaceState.UNREADABLE)
        return unknown if history is None else history.facts(topic.topic_id)

    async def _queue_strand(self, facts: PlaceFacts, partition: PartitionShell, notes: list[str]) -> list[TraceEvent]:
        journal_log = await self._journal_log(partition)
        if journal_log is None:
            return []
        history = QueueHistory(self._index_of(partition, journal_log, CompanionKind.QUEUES), self.topic_name)
        events = await history.strand(facts, notes)
        note_damage(journal_log, notes)
        return events

    async def _journal_log(self, partition: PartitionShell) -> PartitionShell | None:
        """None: there was never a queue here."""
        if not self.broker.has_companion(partition, CompanionKind.QUEUES):
            return None
        return (await self.queues.shell(partition)).journal_log

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.broker.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def _horizon_ms(self) -> int:
        return self._clock.now_ms() - self.broker.config.trace_horizon_ms


def _as_seen(event: TraceEvent, sight: Sight) -> TraceEvent:
    """That a copy was made may be known; not where, if it may not be read."""
    if event.target is None or sight.topic(event.target.topic):
        return event
    return msgspec.structs.replace(event, target=None)


def _arrival(facts: PlaceFacts, made_by: TraceEvent | None) -> TraceEvent | None:
    if facts.state is not PlaceState.STORED:
        return None
    # A copy is dated with something of its message's past; when it came is known from who made it.
    at_ms = facts.timestamp_ms if made_by is None else made_by.at_ms
    return TraceEvent(
        kind=Kind.APPENDED,
        at_ms=at_ms,
        place=facts.place,
        producer=facts.producer,
        is_producers_time=made_by is None and not facts.has_log_append_time,
    )


def _transaction_end(facts: PlaceFacts) -> list[TraceEvent]:
    if facts.transaction_end_ms is None:
        return []
    kind = Kind.COMMITTED if facts.transaction is TransactionState.COMMITTED else Kind.ABORTED
    return [TraceEvent(kind=kind, at_ms=facts.transaction_end_ms, place=facts.place, producer=facts.producer)]
