"""Journeys read from real logs: the topic's, the journal of its queues, and the commits of groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import Appended, VerificationNeeded
from penstock.broker.queue.delivery import Message, ReceiptSettlement
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.trace.index import TraceIndex
from penstock.broker.trace.journal import QueueHistory
from penstock.broker.trace.node import NodeTrace, NoSuchMessage, Sight
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.group.commands import CommitOffsets, OffsetToCommit
from penstock.domain.queue.commands import Act
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.receipt import Receipt
from penstock.domain.trace.events import Journey, Kind, Place, PlaceState
from penstock.domain.trace.why import Standing, WhyAnswer
from penstock.domain.trace.zones import QueueZones, Row, ZoneEntry
from penstock.domain.transaction.end import TransactionEnd
from support.queue.broker import QueueBroker


class TraceBroker(QueueBroker):
    async def start(self) -> None:
        await super().start()
        self.groups = GroupCoordinator(self.site, self.broker, self.catalog)
        assert self.metadata is not None
        self.schedules = NodeSchedules(self.site, self.broker, self.catalog, ProducerIds(self.metadata, KeySpace()))
        self.trace = NodeTrace(self.site, self.broker, self.queues, self.groups, self.schedules)

    async def settle(self, name: QueueName, message: Message, act: Act, text: str = "") -> None:
        source = message.source
        receipt = Receipt(name.group, source.topic_id, source.partition, message.record.offset, source.number)
        await self.delivery.settle(name, [ReceiptSettlement(receipt, act, None, text)])

    async def commit(self, group: str, topic: str, offset: int) -> None:
        await self.groups.submit(group, CommitOffsets((OffsetToCommit(topic, 0, offset, -1, ""),)))

    async def journey(self, topic: str, offset: int) -> Journey:
        found = await self.trace.trace(Place(topic, 0, offset))
        assert isinstance(found, Journey), found
        return found

    async def standing(self, topic: str, offset: int) -> Standing:
        answer = await self.trace.why(Place(topic, 0, offset))
        assert isinstance(answer, WhyAnswer), answer
        (reason,) = answer.reasons
        return reason.standing

    async def kinds(self, topic: str, offset: int) -> list[Kind]:
        return [event.kind for event in (await self.journey(topic, offset)).events]


@pytest.fixture
async def desk() -> AsyncIterator[TraceBroker]:
    broker = TraceBroker()
    await broker.start()
    yield broker
    await broker.stop()


async def test_a_lease_and_an_ack_are_told_with_consumer_and_attempt(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    (message, other) = await desk.receive(name, consumer="ann")
    await desk.settle(name, message, Act.ACCEPT)
    journey = await desk.journey("orders", 0)
    assert [event.kind for event in journey.events] == [Kind.APPENDED, Kind.LEASED, Kind.ACKED]
    assert journey.events[1].consumer == "ann"
    assert journey.events[1].attempt == 1
    assert other.record.offset == 1
    assert await desk.kinds("orders", 1) == [Kind.APPENDED, Kind.LEASED]


async def test_a_rejected_message_is_followed_to_its_dead_letter(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    (_, message) = await desk.receive(name)
    await desk.settle(name, message, Act.REJECT, "bad weather")
    for _ in range(1000):
        kinds = await desk.kinds("orders", 1)
        if Kind.DEAD_LETTERED in kinds:
            break
    assert kinds == [Kind.APPENDED, Kind.LEASED, Kind.REJECTED, Kind.DEAD_LETTERED, Kind.APPENDED]
    journey = await desk.journey("orders", 1)
    assert [str(facts.place) for facts in journey.places] == ["orders-0@1", "orders-dlq-0@0"]
    assert journey.events[2].text == "bad weather"
    # From the copy the same journey is told, from its beginning.
    assert (await desk.journey("orders-dlq", 0)).events == journey.events
    assert (await desk.journey("orders-dlq", 0)).id == journey.id


async def test_what_is_not_written_yet_has_no_journey(desk: TraceBroker) -> None:
    await desk.topic("orders")
    found = await desk.trace.trace(Place("orders", 0, 5))
    assert isinstance(found, NoSuchMessage)
    assert isinstance(await desk.trace.trace(Place("nowhere", 0, 5)), NoSuchMessage)
    assert isinstance(await desk.trace.trace(Place("orders", 7, 5)), NoSuchMessage)


async def test_a_delayed_message_where_nothing_was_ever_delayed_is_none(desk: TraceBroker) -> None:
    await desk.topic("orders")
    await desk.send("orders", [b"m"])
    for found in (await desk.trace.trace(place := Place("orders", 0, 0, True)), await desk.trace.why(place)):
        assert isinstance(found, NoSuchMessage)
        assert "schedule" in found.reason


async def test_a_group_passes_a_message_with_the_commit_behind_it(desk: TraceBroker) -> None:
    await desk.topic("orders")
    await desk.send("orders", [b"a"] * 10)
    for position in (1, 3, 6, 9):
        await desk.commit("readers", "orders", position)
    await desk.commit("others", "orders", 2)
    journey = await desk.journey("orders", 4)
    (passed,) = [event for event in journey.events if event.group]
    assert (passed.kind, passed.group, passed.position_before, passed.position) == (Kind.PASSED, "readers", 3, 6)
    await desk.commit("readers", "orders", 0)
    await desk.commit("readers", "orders", 5)
    kinds = [event.kind for event in (await desk.journey("orders", 4)).events if event.group]
    assert kinds == [Kind.PASSED, Kind.SET_BACK, Kind.PASSED]


async def test_a_journey_outlives_the_payload(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    (message, _) = await desk.receive(name)
    await desk.settle(name, message, Act.ACCEPT)
    served = desk.broker.topic("orders")
    assert served is not None
    await delete_before(served.shells[0], 1)
    journey = await desk.journey("orders", 0)
    assert journey.places[0].state is PlaceState.DELETED
    assert [event.kind for event in journey.events] == [Kind.LEASED, Kind.ACKED]


async def test_an_expired_lease_makes_the_next_one_the_second_attempt() -> None:
    clock = ManualClock()
    desk = TraceBroker(clock=clock)
    await desk.start()
    try:
        await desk.topic("orders")
        name = await desk.queue("orders", options=QueueOptions(lease_ms=1_000))
        await desk.send("orders", [b"a"])
        await desk.receive(name, consumer="ann")
        clock.advance_ms(1_500)
        for shell in await desk.queues.shells(name):
            shell._on_alarm()
        await desk.receive(name, consumer="ben")
        journey = await desk.journey("orders", 0)
    finally:
        await desk.stop()
    told = [(event.kind, event.consumer, event.attempt) for event in journey.events[1:]]
    assert told == [(Kind.LEASED, "ann", 1), (Kind.EXPIRED, "ann", 1), (Kind.LEASED, "ben", 2)]
    assert [event.at_ms for event in journey.events] == sorted(event.at_ms or 0 for event in journey.events)


async def test_a_restart_forgets_nothing(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    (message, _) = await desk.receive(name)
    await desk.settle(name, message, Act.ACCEPT)
    before = await desk.journey("orders", 0)
    await desk.restart()
    assert await desk.journey("orders", 0) == before


async def test_the_trace_says_since_when_the_journal_tells_anything(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [Record(b"old", timestamp_ms=1_000), b"new"])
    await desk.receive(name)
    # Nothing goes that the last checkpoint does not know: a restart makes one.
    await desk.restart()
    (shell,) = await desk.queues.shells(name)
    journal = shell.journal_log
    assert isinstance(await delete_before(journal, journal.readable_end), int)
    journey = await desk.journey("orders", 0)
    assert [event.kind for event in journey.events] == [Kind.APPENDED]
    assert any("begins at" in note for note in journey.notes)


async def test_the_end_of_a_move_is_found_by_a_node_that_did_not_see_its_beginning(desk: TraceBroker) -> None:
    """The side files of an earlier life know the intent; the end of the move was written and looked at after it."""
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    (message,) = await desk.receive(name)
    await desk.settle(name, message, Act.REJECT)
    for _ in range(1000):
        if Kind.DEAD_LETTERED in await desk.kinds("orders", 0):
            break
    (shell,) = await desk.queues.shells(name)
    index = TraceIndex(shell.journal_log, _Forgetful, desk.trace.scans)
    facts = (await desk.journey("orders", 0)).places[0]
    told = await QueueHistory(index, desk.trace.topic_name).strand(facts, [])
    assert [event.kind for event in told] == [Kind.LEASED, Kind.REJECTED, Kind.DEAD_LETTERED]


class _Forgetful:
    """Each row by itself, as if there had been a restart between any two."""

    def entries(self, rows: Iterable[Row]) -> list[ZoneEntry]:
        return [entry for row in rows for entry in QueueZones().entries([row])]


async def test_an_open_transaction_holds_a_message_up_and_an_aborted_one_keeps_it(desk: TraceBroker) -> None:
    await desk.topic("orders")
    await desk.queue("orders")
    served = desk.broker.topic("orders")
    assert served is not None
    partition = served.shells[0]
    batch = build_batch(
        [Record(b"a", timestamp_ms=desk.clock.now_ms())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    header = partition.append(memoryview(batch))
    assert isinstance(header, VerificationNeeded)
    guard = partition.begin_verification(header.header, version=2)
    outcome = partition.append(memoryview(batch), guard=guard)
    assert isinstance(outcome, Appended)
    assert outcome.commitment is not None
    await outcome.commitment.kept()
    await desk.send("orders", [b"b"])
    standings = [await desk.standing("orders", offset) for offset in (0, 1)]
    assert standings == [Standing.IN_TRANSACTION, Standing.BEHIND_TRANSACTION]
    ended = write_marker(
        partition, TransactionEnd(producer_id=7, producer_epoch=0, coordinator_epoch=0, is_commit=False)
    )
    assert isinstance(ended, Appended)
    assert ended.commitment is not None
    await ended.commitment.kept()
    assert await desk.standing("orders", 0) is Standing.ABORTED
    assert await desk.kinds("orders", 0) == [Kind.APPENDED, Kind.ABORTED]
    assert await desk.standing("orders", 1) is Standing.NO_CONSUMER
    assert await desk.standing("orders", 2) is Standing.NO_MESSAGE


async def test_what_may_not_be_seen_is_not_told_of(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders", "secret")
    await desk.send("orders", [b"a"])
    (message,) = await desk.receive(name)
    await desk.settle(name, message, Act.REJECT)
    for _ in range(1000):
        if Kind.DEAD_LETTERED in await desk.kinds("orders", 0):
            break
    sight = Sight(topic=lambda topic: topic == "orders", group=lambda group: group != "secret")
    journey = await desk.trace.trace(Place("orders", 0, 0), sight)
    assert isinstance(journey, Journey)
    assert [event.kind for event in journey.events] == [Kind.APPENDED]
    assert [facts.place.topic for facts in journey.places] == ["orders"]
    assert isinstance(await desk.trace.trace(Place("orders-dlq", 0, 0), sight), NoSuchMessage)
    answer = await desk.trace.why(Place("orders", 0, 0), sight)
    assert isinstance(answer, WhyAnswer)
    assert answer.reasons == ()


async def test_where_a_copy_lies_is_not_told_to_who_may_not_read_it(desk: TraceBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    (message,) = await desk.receive(name)
    await desk.settle(name, message, Act.REJECT)
    for _ in range(1000):
        if Kind.DEAD_LETTERED in await desk.kinds("orders", 0):
            break
    journey = await desk.trace.trace(Place("orders", 0, 0), Sight(topic=lambda topic: topic == "orders"))
    assert isinstance(journey, Journey)
    assert journey.events[-1].kind is Kind.DEAD_LETTERED
    assert "orders-dlq" not in repr(journey)
    assert any("may not read" in note for note in journey.notes)
