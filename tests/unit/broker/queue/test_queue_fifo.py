"""What is sent to a FIFO queue while its delayed messages are on their way: in order, and each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.publisher import Delayed, Outgoing, Published, Publisher, PublishOutcome
from penstock.broker.queue.fifo import FifoSender
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import NotScheduled
from penstock.codec.batch.records import Record
from penstock.domain.partitioner import partition_for_key
from penstock.domain.queue.deduplication import DEDUPLICATION_HEADER
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions
from support.schedule.broker import PATIENCE_SECONDS, TOPIC, ScheduleBroker


class FifoDesk(ScheduleBroker):
    async def start(self) -> None:
        await super().start()
        self.sender = FifoSender(self.queues, self.schedules, Publisher(self.schedules, self.clock), self.clock)

    async def put(self, value: bytes, delay_ms: int = 0) -> PublishOutcome:
        """Its value is its deduplication id."""
        record = Record(
            value=value, key=b"g", timestamp_ms=self.time.now_ms(), headers=((DEDUPLICATION_HEADER, value),)
        )
        due_ms = self.time.now_ms() + delay_ms if delay_ms else None
        (outcome,) = await self.sender.send(
            await self.definition(), self.served(), [Outgoing(record, due_ms=due_ms)], is_by_group=False
        )
        return outcome

    async def put_two(self, *keys: bytes) -> list[PublishOutcome]:
        """One message for each message group, on a topic of two partitions; its group is its deduplication id."""
        definition = await self.queues.define(QueueName("two", "sqs"), QueueOptions())
        now_ms = self.time.now_ms()
        messages = [
            Outgoing(Record(value=key, key=key, timestamp_ms=now_ms, headers=((DEDUPLICATION_HEADER, key),)))
            for key in keys
        ]
        return await self.sender.send(definition, self.served("two"), messages, is_by_group=True)

    async def keys_of_both(self) -> tuple[bytes, bytes]:
        """A key of each of two partitions."""
        keys = [b"%d" % number for number in range(100)]
        low, high = (next(key for key in keys if partition_for_key(key, 2) == index) for index in (0, 1))
        return low, high

    async def definition(self) -> QueueDefinition:
        return await self.queues.define(QueueName(TOPIC, "sqs"), QueueOptions())


@pytest.fixture
async def desk() -> AsyncIterator[FifoDesk]:
    desk = FifoDesk()
    await desk.start()
    await desk.topic(TOPIC)
    yield desk
    await desk.stop()


async def test_nothing_overtakes_a_delayed_message_while_the_schedule_is_read_again(desk: FifoDesk) -> None:
    await desk.put(b"first", delay_ms=1_000)
    await (await desk.shell()).unload()
    await desk.pass_time(2_000)
    await desk.put(b"second")
    shell = await desk.shell()
    await desk.until(lambda: shell.pending_count == 0)
    assert await desk.values() == [b"first", b"second"]


async def test_message_that_is_released_while_the_window_is_rebuilt_is_known(desk: FifoDesk) -> None:
    first = await desk.put(b"once", delay_ms=1_000)
    assert isinstance(first, Delayed)
    await desk.restart()
    shell = await desk.shell()
    existing_shell = desk.schedules.existing_shell

    async def release_before(partition: PartitionShell) -> ScheduleShell | NotScheduled | None:
        if shell.pending_count:
            await desk.pass_time(1_000)
            await desk.released(1)
        return await existing_shell(partition)

    desk.schedules.existing_shell = release_before  # type: ignore[method-assign]
    again = await desk.put(b"once", delay_ms=1_000)
    assert isinstance(again, Delayed)
    assert again.message_id == first.message_id
    assert await desk.values() == [b"once"]


# The window is its partition's


async def test_window_goes_with_its_partition_and_is_built_anew(desk: FifoDesk) -> None:
    first = await desk.put(b"once")
    queue_shell = await desk.queues.shell(desk.served().shells[0])
    await queue_shell.unload()
    assert await desk.put(b"once") == first
    assert await desk.values() == [b"once"]


async def test_partition_that_is_busy_holds_up_no_other(desk: FifoDesk) -> None:
    await desk.topic("two", 2)
    busy, free = await desk.keys_of_both()
    window = (await desk.queues.shell(desk.served("two").shells[0])).fifo
    async with window.lock:
        waiting = asyncio.ensure_future(desk.put_two(busy))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert all(isinstance(outcome, Published) for outcome in await desk.put_two(free))
        assert not waiting.done()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert all(isinstance(outcome, Published) for outcome in await waiting)


async def test_requests_over_both_partitions_never_wait_for_each_other(desk: FifoDesk) -> None:
    await desk.topic("two", 2)
    low, high = await desk.keys_of_both()
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(*(desk.put_two(*pair) for pair in [(low, high), (high, low)] * 20))
    # Each of them has sent the same two: one message of each is in the log.
    assert {tuple(sorted(each.partition for each in outcome)) for outcome in outcomes} == {(0, 1)}  # type: ignore[union-attr]
    assert len(await desk.values("two", 0)) == len(await desk.values("two", 1)) == 1
