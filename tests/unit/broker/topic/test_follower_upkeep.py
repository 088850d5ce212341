"""What a node does not decide about partitions that another one leads."""

from __future__ import annotations

from penstock.base.clock import ManualClock
from penstock.broker.partition.role import ALONE, Following
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import running_node
from support.door.kafka_phrases import DAY_MS, batch, outcome, produce


async def test_retention_is_decided_by_who_leads() -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders", segment_bytes="1024", retention_ms="1000")
        talk = await node.connect()
        for number in range(3):
            sent = batch(b"x" * 900, timestamp_ms=clock.now_ms())
            assert outcome(await talk.ask(produce("orders", sent), ProduceResponse, 9)) == (ErrorCode.NONE, number)
        await node.broker._store.checkpoint()
        clock.advance_ms(DAY_MS)
        shell = node.shell("orders")
        shell.take_role(Following(1, 2))
        await node.broker._upkeep.apply_retention()
        assert (shell.log_start, shell.log.record_count) == (0, 3)
        shell.take_role(ALONE)
        await node.broker._upkeep.apply_retention()
        assert shell.log_start > 0


async def test_producers_are_forgotten_by_who_leads() -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        record = Record(b"x", timestamp_ms=clock.now_ms())
        sent = bytes(build_batch([record], producer_id=7, producer_epoch=0, base_sequence=0))
        assert outcome(await talk.ask(produce("orders", sent), ProduceResponse, 9)) == (ErrorCode.NONE, 0)
        shell = node.shell("orders")
        # The first sweep sees them, the next one finds them silent.
        await node.broker._upkeep.apply_retention()
        clock.advance_ms(400 * DAY_MS)
        shell.take_role(Following(1, 2))
        await node.broker._upkeep.apply_retention()
        assert sorted(shell.log.producers.as_dict()) == [7]
        shell.take_role(ALONE)
        await node.broker._upkeep.apply_retention()
        assert shell.log.producers.as_dict() == {}
