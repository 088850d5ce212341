"""What is sent to a FIFO queue while its delayed messages are on their way: in order, and each once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.publisher import Delayed, Outgoing, Publisher, PublishOutcome
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import NotScheduled
from penstock.codec.batch.records import Record
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions
from penstock.gateways.sqs.fifo import FifoGate
from penstock.gateways.sqs.records import DEDUPLICATION_HEADER
from support.schedule.broker import TOPIC, ScheduleBroker


class FifoDesk(ScheduleBroker):
    async def start(self) -> None:
        await super().start()
        self.gate = FifoGate(self.queues, self.schedules, Publisher(self.schedules), self.clock)

    async def put(self, value: bytes, delay_ms: int = 0) -> PublishOutcome:
        """Its value is its deduplication id."""
        record = Record(
            value=value, key=b"g", timestamp_ms=self.time.now_ms(), headers=((DEDUPLICATION_HEADER, value),)
        )
        due_ms = self.time.now_ms() + delay_ms if delay_ms else None
        (outcome,) = await self.gate.send(await self.definition(), self.served(), [Outgoing(record, due_ms=due_ms)])
        return outcome

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
