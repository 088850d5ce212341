"""Dead letters that go back: which, where to, how fast, exactly once, and over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.broker.queue.delivery import NoSuchQueue, ReceiptSettlement
from penstock.broker.queue.redrive import CannotRedrive, NoSuchLetters, RedriveCount, Redrives, TaskOver, TaskRunning
from penstock.broker.queue.shell import QueueUnavailable
from penstock.cluster.catalog.redrives import RedriveStore
from penstock.cluster.store.keys import KeySpace
from penstock.codec.batch.records import Record, StoredRecord
from penstock.domain.config.change import ConfigChange, ConfigOperation
from penstock.domain.queue.commands import Act, FinishMove, QueueCommand
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.redrive import REDRIVE_GROUP, RedriveFilter, RedriveState, RedriveTask
from penstock.domain.queue.values import Ordering
from penstock.domain.security.access import ANONYMOUS, Operation, Principal, Resource
from support.cluster.leaderships import Leaderships
from support.queue.broker import QueueBroker

DEAD = QueueName("orders-dlq", REDRIVE_GROUP)
ALICE = Principal("User", "alice")


class Writers:
    """Who may write where."""

    def __init__(self, *rights: tuple[Principal, str]) -> None:
        self.rights = set(rights)
        self.denied_count = 0

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        is_allowed = operation is not Operation.WRITE or (principal, resource.name) in self.rights
        self.denied_count += not is_allowed
        return is_allowed


def forged(topic: str, value: bytes = b"forged") -> Record:
    return Record(value=value, timestamp_ms=1, headers=(("penstock-origin-topic", topic.encode()),))


class RedriveDesk(QueueBroker):
    async def start(self) -> None:
        await super().start()
        assert self.metadata is not None
        store = RedriveStore(self.metadata, KeySpace())
        self.redrives = Redrives(self.site, self.queues, self.delivery, store, authorizer=self.authorizer)
        await self.redrives.start()

    async def stop(self) -> None:
        await self.redrives.stop()
        await super().stop()

    async def kill(self, name: QueueName, count: int, *, reason: str = "broken") -> None:
        """Rejects so many messages, and waits until they are dead letters."""
        before = await self.redrives.scan.pending_count(DEAD)
        messages = await self.receive(name, count)
        items = [ReceiptSettlement(message.receipt, Act.REJECT, None, reason) for message in messages]
        await self.delivery.settle(name, items)
        await self.until_pending(before + count)

    async def until_pending(self, count: int) -> None:
        async with asyncio.timeout(10):
            while (found := await self.redrives.scan.pending_count(DEAD)) != count:
                assert found <= count, found
                await asyncio.sleep(0.002)

    async def until_stored(self, topic: str, count: int) -> None:
        async with asyncio.timeout(10):
            while (found := len(await self.log_of(topic))) < count:
                assert found <= count, found
                await asyncio.sleep(0.002)

    async def dead_letters(self, *values: bytes | Record, partitions: int = 1) -> QueueName:
        await self.topic("orders", partitions)
        name = await self.queue("orders")
        await self.send("orders", list(values))
        await self.kill(name, len(values))
        return name

    async def over(self, task: object) -> RedriveTask:
        assert isinstance(task, RedriveTask), task
        async with asyncio.timeout(10):
            while True:
                found = self.redrives.get(task.id)
                assert found is not None
                if found.state.is_over:
                    return found
                await asyncio.sleep(0.002)


@pytest.fixture
async def desk() -> AsyncIterator[RedriveDesk]:
    made = RedriveDesk()
    await made.start()
    yield made
    await made.stop()


def values(records: list[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]


async def test_dead_letters_go_back_without_their_death_and_with_their_name(desk: RedriveDesk) -> None:
    first = Record(value=b"a", key=b"k", timestamp_ms=desk.clock.now_ms(), headers=(("trace", b"1"),))
    name = await desk.dead_letters(first, b"b")
    (letter, _) = await desk.log_of("orders-dlq")
    task = await desk.over(await desk.redrives.begin(DEAD))
    assert (task.state, task.moved_count, task.looked_count, task.pending_count) == (RedriveState.COMPLETED, 2, 2, 2)
    *_, again, _ = await desk.log_of("orders")
    assert (again.value, again.key) == (b"a", b"k")
    identity = dict(letter.headers)["penstock-message-id"]
    assert again.headers == (("trace", b"1"), ("penstock-message-id", identity))
    assert [message.record.value for message in await desk.receive(name)] == [b"a", b"b"]
    assert await desk.redrives.scan.pending_count(DEAD) == 0


async def test_a_second_redrive_finds_nothing_to_do(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a")
    await desk.over(await desk.redrives.begin(DEAD))
    task = await desk.over(await desk.redrives.begin(DEAD))
    assert (task.state, task.moved_count) == (RedriveState.COMPLETED, 0)
    assert values(await desk.log_of("orders")) == [b"a", b"a"]


async def test_each_goes_back_to_its_own_partition(desk: RedriveDesk) -> None:
    await desk.topic("orders", 3)
    name = await desk.queue("orders")
    for partition in range(3):
        await desk.send("orders", [b"%d" % partition] * 2, partition)
    await desk.kill(name, 6)
    await desk.over(await desk.redrives.begin(DEAD))
    for partition in range(3):
        assert values(await desk.log_of("orders", partition)) == [b"%d" % partition] * 4


async def test_a_target_takes_them_all(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a", b"b")
    await desk.topic("elsewhere", 2)
    task = await desk.over(await desk.redrives.begin(DEAD, target="elsewhere"))
    assert task.moved_count == 2
    assert values(await desk.log_of("elsewhere", 0) + await desk.log_of("elsewhere", 1)) == [b"a", b"b"]
    assert values(await desk.log_of("orders")) == [b"a", b"b"]


async def test_a_filter_leaves_the_others_where_they_are(desk: RedriveDesk) -> None:
    now_ms = desk.clock.now_ms()
    records = [Record(value=b"%d" % number, key=b"k%d" % (number % 2), timestamp_ms=now_ms) for number in range(6)]
    await desk.dead_letters(*records)
    task = await desk.over(await desk.redrives.begin(DEAD, only=RedriveFilter(key="k1")))
    assert (task.moved_count, task.skipped_count, task.state) == (3, 3, RedriveState.COMPLETED)
    assert values(await desk.log_of("orders"))[6:] == [b"1", b"3", b"5"]
    assert await desk.redrives.count(DEAD, RedriveFilter()) == RedriveCount(3, 3)
    await desk.over(await desk.redrives.begin(DEAD))
    assert values(await desk.log_of("orders"))[9:] == [b"0", b"2", b"4"]


async def test_filters_by_reason_and_time(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a", b"b")
    soon_ms = desk.clock.now_ms() + 60_000
    for only, fitting in (
        (RedriveFilter(reason="rejected"), 2),
        (RedriveFilter(reason="deliveries-exhausted"), 0),
        (RedriveFilter(until_ms=soon_ms), 2),
        (RedriveFilter(since_ms=soon_ms), 0),
        (RedriveFilter(reason="rejected", key="k"), 0),
    ):
        assert await desk.redrives.count(DEAD, only) == RedriveCount(2, fitting)
    assert values(await desk.log_of("orders")) == [b"a", b"b"]


async def test_a_redriven_message_that_dies_again_can_be_redriven_again(desk: RedriveDesk) -> None:
    name = await desk.dead_letters(b"a")
    for life in range(2, 4):
        await desk.over(await desk.redrives.begin(DEAD))
        await desk.kill(name, 1)
        *_, letter = await desk.log_of("orders-dlq")
        assert len([header for header in letter.headers if header[0] == "penstock-dead-letter-reason"]) == 1
        assert len(await desk.log_of("orders-dlq")) == life


async def test_what_dies_while_a_task_runs_is_not_of_the_task(desk: RedriveDesk) -> None:
    name = await desk.dead_letters(b"a", b"b")
    task = await desk.redrives.begin(DEAD, rate=4)
    await desk.send("orders", [b"late"])
    messages = await desk.receive(name, 10)
    late = [ReceiptSettlement(each.receipt, Act.REJECT) for each in messages if each.record.value == b"late"]
    await desk.delivery.settle(name, late)
    done = await desk.over(task)
    assert done.moved_count == 2
    await desk.until_pending(1)


async def test_one_task_at_a_time_and_a_cancelled_one_leaves_the_rest(desk: RedriveDesk) -> None:
    await desk.dead_letters(*[b"%d" % number for number in range(20)])
    task = await desk.redrives.begin(DEAD, rate=1)
    assert isinstance(task, RedriveTask)
    second = await desk.redrives.begin(DEAD)
    assert isinstance(second, TaskRunning)
    await desk.redrives.cancel(task.id)
    over = await desk.over(task)
    assert over.state is RedriveState.CANCELLED
    assert over.moved_count <= 2
    assert isinstance(await desk.redrives.cancel(task.id), TaskOver)
    rest = await desk.over(await desk.redrives.begin(DEAD))
    assert rest.moved_count == 20 - over.moved_count
    assert len(await desk.log_of("orders")) == 40


async def test_a_rate_is_kept(desk: RedriveDesk) -> None:
    await desk.dead_letters(*[b"%d" % number for number in range(30)])
    begun_ms = desk.clock.monotonic_ms()
    task = await desk.over(await desk.redrives.begin(DEAD, rate=100))
    took_ms = desk.clock.monotonic_ms() - begun_ms
    assert task.moved_count == 30
    # Three steps of ten: the first goes at once.
    assert 180 <= took_ms < 3_000


async def test_a_task_goes_on_after_a_restart_and_nothing_is_lost_or_doubled(desk: RedriveDesk) -> None:
    sent = [b"%d" % number for number in range(60)]
    await desk.dead_letters(*sent)
    task = await desk.redrives.begin(DEAD, rate=200)
    assert isinstance(task, RedriveTask)
    for _ in range(3):
        await desk.until_stored("orders", min(len(await desk.log_of("orders")) + 1, 120))
        await desk.restart()
    over = await desk.over(task)
    assert over.state is RedriveState.COMPLETED
    assert values(await desk.log_of("orders"))[60:] == sent


async def test_a_task_is_run_by_who_leads_its_source_and_goes_on_with_the_lead(desk: RedriveDesk) -> None:
    sent = [b"%d" % number for number in range(30)]
    await desk.dead_letters(*sent)
    task = await desk.redrives.begin(DEAD, rate=200)
    assert isinstance(task, RedriveTask)
    await desk.until_stored("orders", 31)
    lead = Leaderships(desk.catalog, DEAD.topic)
    await lead.go()
    refused = await desk.redrives.begin(DEAD)
    assert isinstance(refused, QueueUnavailable)
    assert "led by node 2" in refused.reason
    await lead.come()
    over = await desk.over(task)
    assert (over.state, over.owner_epoch) == (RedriveState.COMPLETED, 2)
    assert sorted(values(await desk.log_of("orders"))[30:]) == sorted(sent)


async def test_a_task_that_another_leadership_has_written_is_not_written_over(desk: RedriveDesk) -> None:
    assert desk.metadata is not None
    await desk.dead_letters(b"a")
    first, second = (RedriveStore(desk.metadata, KeySpace()) for _ in range(2))
    task = RedriveTask("t", DEAD, b"o" * 16, owner_epoch=1)
    assert await first.put(task)
    assert await first.put(msgspec.structs.replace(task, moved_count=1))
    # The same leadership may have written without knowing it.
    assert await second.put(msgspec.structs.replace(task, moved_count=2))
    (stored,) = await second.all()
    assert await second.put(msgspec.structs.replace(stored, owner_epoch=3))
    assert not await first.put(msgspec.structs.replace(task, moved_count=4))
    assert [each.owner_epoch for each in await first.all()] == [3]


async def test_a_message_that_tells_no_origin_stays(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a")
    await desk.send("orders-dlq", [b"stray"])
    task = await desk.over(await desk.redrives.begin(DEAD))
    assert (task.state, task.moved_count, task.lost_count) == (RedriveState.FAILED, 1, 1)
    assert "no topic of origin" in task.reason
    await desk.topic("elsewhere")
    task = await desk.over(await desk.redrives.begin(DEAD, target="elsewhere"))
    assert (task.state, task.moved_count) == (RedriveState.COMPLETED, 1)


async def test_an_origin_of_the_brokers_own_is_no_origin(desk: RedriveDesk) -> None:
    await desk.topic("orders-dlq")
    forged = Record(value=b"x", timestamp_ms=1, headers=(("penstock-origin-topic", b"__consumer_offsets"),))
    await desk.send("orders-dlq", [forged])
    task = await desk.over(await desk.redrives.begin(DEAD))
    assert (task.moved_count, task.lost_count) == (0, 1)


async def test_messages_go_only_where_the_author_may_write(desk: RedriveDesk) -> None:
    """Where a dead letter came from stands in a header that anybody can write."""
    await desk.dead_letters(b"a")
    await desk.topic("payments")
    await desk.send("orders-dlq", [forged("payments"), forged("no-such-topic")])
    desk.authorizer = Writers((ALICE, "orders"))
    await desk.restart()
    task = await desk.over(await desk.redrives.begin(DEAD, author=ALICE))
    assert (task.state, task.moved_count, task.denied_count, task.lost_count) == (RedriveState.FAILED, 1, 2, 0)
    # The same words for a topic that there is not.
    assert task.reason == "2 messages stayed: User:alice may not write to 'payments'"
    assert await desk.log_of("payments") == []
    assert await desk.redrives.scan.pending_count(DEAD) == 2
    task = await desk.over(await desk.redrives.begin(DEAD, author=ALICE, target="payments"))
    assert (task.moved_count, task.denied_count) == (0, 2)


async def test_a_task_keeps_its_author_over_a_restart_and_rights_are_asked_for_each_message(desk: RedriveDesk) -> None:
    await desk.dead_letters(*[b"%d" % number for number in range(20)])
    desk.authorizer = writers = Writers((ALICE, "orders"))
    await desk.restart()
    task = await desk.redrives.begin(DEAD, author=ALICE, rate=20)
    await desk.until_stored("orders", 21)
    await desk.restart()
    await desk.until_stored("orders", len(await desk.log_of("orders")) + 1)
    writers.rights.clear()
    over = await desk.over(task)
    assert over.author == ALICE
    assert over.state is RedriveState.FAILED
    assert over.denied_count > 0
    assert len(await desk.log_of("orders")) - 20 + await desk.redrives.scan.pending_count(DEAD) == 20


def test_a_task_of_a_version_that_did_not_note_its_author_is_nobodys() -> None:
    task = RedriveTask("1", DEAD, b"\0" * 16, author=ALICE)
    old = msgspec.to_builtins(task)
    del old["author"], old["denied_count"]
    assert msgspec.convert(old, RedriveTask).author == ANONYMOUS


async def test_letters_wait_while_whoever_named_their_topic_may_not_write_there(desk: RedriveDesk) -> None:
    desk.authorizer = writers = Writers((ALICE, "graveyard"))
    await desk.restart()
    await desk.topic("orders")
    await desk.topic("graveyard")
    options = QueueOptions(dead_letter_topic="graveyard", dead_letter_author=ALICE)
    name = await desk.queue("orders", options=options)
    await desk.send("orders", [b"a", b"b"])
    first, second = await desk.receive(name, 2)
    await desk.delivery.settle(name, [ReceiptSettlement(first.receipt, Act.REJECT, None, "")])
    await desk.until_stored("graveyard", 1)
    writers.rights.clear()
    await desk.delivery.settle(name, [ReceiptSettlement(second.receipt, Act.REJECT, None, "")])
    async with asyncio.timeout(10):
        while writers.denied_count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert len(await desk.log_of("graveyard")) == 1
    (shell,) = await desk.queues.shells(name)
    queue = shell.queue(name.group)
    assert queue is not None
    assert queue.stats().dying_count == 1
    writers.rights = {(ALICE, "graveyard")}
    await desk.until_stored("graveyard", 2)


async def test_a_queue_that_names_its_own_topic_has_no_dead_letters(desk: RedriveDesk) -> None:
    """As a share group may that reads several topics, and queues of older versions."""
    await desk.topic("orders")
    name = await desk.queue("orders", options=QueueOptions(dead_letter_topic="orders"))
    await desk.send("orders", [b"a"])
    (message,) = await desk.receive(name)
    await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, Act.REJECT, None, "")])
    totals = await desk.delivery.totals(name)
    assert not isinstance(totals, NoSuchQueue)
    assert (totals.dying_count, len(await desk.log_of("orders"))) == (0, 1)


async def test_what_the_target_refuses_goes_home(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"small", b"x" * 5_000, b"tiny")
    await desk.topic("elsewhere", 1, max_message_bytes="2000")
    task = await desk.over(await desk.redrives.begin(DEAD, target="elsewhere"))
    assert (task.state, task.moved_count, task.lost_count) == (RedriveState.FAILED, 2, 1)
    assert "did not take" in task.reason
    assert values(await desk.log_of("elsewhere")) == [b"small", b"tiny"]
    *_, last = await desk.log_of("orders-dlq")
    assert last.value == b"x" * 5_000
    assert dict(last.headers)["penstock-origin-topic"] == b"orders"
    assert await desk.redrives.scan.pending_count(DEAD) == 1


async def test_a_dead_letter_does_not_expire_and_lives_as_long_again(desk: RedriveDesk) -> None:
    mortal = Record(value=b"a", timestamp_ms=desk.clock.now_ms(), headers=(("penstock-ttl-ms", b"500"),))
    await desk.dead_letters(mortal)
    (letter,) = await desk.log_of("orders-dlq")
    assert "penstock-ttl-ms" not in dict(letter.headers)
    task = await desk.over(await desk.redrives.begin(DEAD))
    assert task.moved_count == 1
    *_, again = await desk.log_of("orders")
    assert dict(again.headers)["penstock-ttl-ms"] == b"500"


async def test_purge_drops_what_is_pending(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a", b"b")
    assert await desk.redrives.purge(DEAD) == 2
    assert await desk.redrives.count(DEAD, RedriveFilter()) == RedriveCount(0, 0)
    task = await desk.over(await desk.redrives.begin(DEAD))
    assert task.moved_count == 0


async def test_what_makes_no_sense_is_refused(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a")
    assert isinstance(await desk.redrives.begin(QueueName("missing", REDRIVE_GROUP)), NoSuchLetters)
    assert isinstance(await desk.redrives.begin(QueueName("orders-dlq", "nobody")), NoSuchLetters)
    assert isinstance(await desk.redrives.count(QueueName("missing", REDRIVE_GROUP), RedriveFilter()), NoSuchLetters)
    for target in ("missing", "__consumer_offsets"):
        assert isinstance(await desk.redrives.begin(DEAD, target=target), NoSuchLetters)
    assert isinstance(await desk.redrives.begin(DEAD, target="orders-dlq"), CannotRedrive)
    assert isinstance(await desk.redrives.begin(DEAD, rate=-1), CannotRedrive)
    keyed = await desk.queue("orders-dlq", "keyed", QueueOptions(ordering=Ordering.KEY))
    assert isinstance(await desk.redrives.begin(keyed, only=RedriveFilter(key="k")), CannotRedrive)


async def test_a_queue_of_a_consumer_can_be_the_source(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a", b"b")
    watchers = await desk.queue("orders-dlq", "watchers")
    (held,) = await desk.receive(watchers, 1)
    task = await desk.over(await desk.redrives.begin(watchers))
    assert (task.moved_count, task.state) == (1, RedriveState.COMPLETED)
    assert values(await desk.log_of("orders"))[2:] == [b"b"]
    assert held.record.value == b"a"


async def test_dead_letter_topics_are_listed_with_where_their_letters_come_from(desk: RedriveDesk) -> None:
    name = await desk.dead_letters(b"a")
    (found,) = await desk.redrives.scan.topics()
    assert (found.topic, found.pending_count, found.stored_count, found.sources) == ("orders-dlq", 1, 1, (name,))


async def test_a_batch_that_is_there_counts_although_the_topic_became_stricter(desk: RedriveDesk) -> None:
    """A crash between the append and the journal, and a smaller max.message.bytes before the next start."""
    await desk.dead_letters(b"x" * 3_000)
    (shell,) = await desk.queues.shells(QueueName("orders-dlq", REDRIVE_GROUP))
    decide = shell.submit

    async def lose_the_end(group: str, command: QueueCommand) -> object:
        return QueueUnavailable("power cut") if isinstance(command, FinishMove) else await decide(group, command)

    shell.submit = lose_the_end  # type: ignore[method-assign, assignment]
    task = await desk.redrives.begin(DEAD)
    await desk.until_stored("orders", 2)
    stricter = ConfigChange("max.message.bytes", ConfigOperation.SET, "1000")
    await desk.catalog.change_config("orders", [stricter])
    await desk.restart()
    over = await desk.over(task)
    assert over.state is RedriveState.COMPLETED
    assert values(await desk.log_of("orders")) == [b"x" * 3_000] * 2
    assert await desk.redrives.scan.pending_count(DEAD) == 0


async def test_a_queue_that_goes_away_or_is_paused_ends_its_task(desk: RedriveDesk) -> None:
    await desk.dead_letters(*[b"%d" % number for number in range(20)])
    watchers = await desk.queue("orders-dlq", "watchers")
    task = await desk.redrives.begin(watchers, rate=1)
    await desk.queues.delete(watchers)
    over = await desk.over(task)
    assert (over.state, over.reason) == (RedriveState.FAILED, "the queue orders-dlq/watchers is gone")
    await desk.over(await desk.redrives.begin(DEAD, only=RedriveFilter(key="nobody")))
    await desk.delivery.pause(DEAD, is_paused=True)
    over = await desk.over(await desk.redrives.begin(DEAD))
    assert (over.state, over.reason) == (RedriveState.FAILED, "the queue gives no more messages: paused")


async def test_only_the_latest_tasks_are_remembered(desk: RedriveDesk) -> None:
    await desk.dead_letters(b"a")
    begun = [await desk.over(await desk.redrives.begin(DEAD)) for _ in range(14)]
    await desk.restart()
    kept = [task.id for task in desk.redrives.tasks_of(DEAD)]
    assert len(kept) <= 11
    assert kept[0] == begun[-1].id


async def test_only_what_was_picked_by_place_moves_also_after_a_restart(desk: RedriveDesk) -> None:
    await desk.dead_letters(*(str(number).encode() for number in range(10)))
    choices = [(0, 1, 2), (0, 7, 7)]
    assert await desk.redrives.count(DEAD, RedriveFilter(), choices) == RedriveCount(10, 3)
    task = await desk.redrives.begin(DEAD, choices=choices, rate=1)
    assert isinstance(task, RedriveTask)
    await desk.stop()
    await desk.start()
    assert (await desk.over(task)).moved_count <= 3
    await desk.until_stored("orders", 13)
    moved = [record.value for record in (await desk.log_of("orders"))[10:]]
    assert moved == [b"1", b"2", b"7"]
    assert await desk.redrives.scan.pending_count(DEAD) == 7
