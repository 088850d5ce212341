"""All lanes together, by chance: producers, transactions, consumers that settle late or not, restarts, retention; and
at the end every message was accepted once, and each lane came in its order."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import Appended, VerificationNeeded
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.delivery import Message, ReceiptSettlement
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.transaction.end import TransactionEnd
from support.queue.broker import QueueBroker

LANES = [DEFAULT_LANE] * 12 + [0, 2, 7, 9]


class LaneWorld:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.desk = QueueBroker()
        self.name = QueueName("orders", "workers")
        self.lane_of: dict[bytes, int] = {}
        self.offsets: dict[bytes, int] = {}
        # Of open transactions: those that must not be delivered yet.
        self.pending: dict[int, list[bytes]] = {}
        self.aborted: set[bytes] = set()
        self.held: list[Message] = []
        self.accepted: Counter[bytes] = Counter()
        self.first_seen: dict[int, list[int]] = {}
        self.delivered: Counter[bytes] = Counter()
        self._sequences: dict[int, int] = {}

    async def start(self) -> None:
        await self.desk.start()
        await self.desk.topic("orders", segment_bytes="2048")
        await self.desk.queue("orders", options=QueueOptions(deliveries_max=0, lease_ms=3_600_000))
        self._set_up()

    def _set_up(self) -> None:
        scans = self.desk.queues.lane_scans
        scans.slice_bytes = self.chance.choice([300, 5_000, 100_000])
        scans.memory.bytes_max = self.chance.choice([8, 60, 10_000])
        scans.batches_max = self.chance.choice([1, 3, 64])

    @property
    def shell(self) -> PartitionShell:
        served = self.desk.broker.topic("orders")
        assert served is not None
        return served.shells[0]

    def records(self) -> list[Record]:
        made = []
        for _ in range(self.chance.choice([1, 1, 3, 20])):
            value = b"%d" % len(self.lane_of)
            lane = self.chance.choice(LANES)
            self.lane_of[value] = lane
            headers = () if lane == DEFAULT_LANE else (("penstock-priority", b"%d" % lane),)
            made.append(Record(value=value, timestamp_ms=self.desk.clock.now_ms(), headers=headers))
        return made

    async def send(self) -> None:
        for _ in range(self.chance.randrange(1, 12)):
            records = self.records()
            self.note(
                await self.desk.send("orders", records, codec=self.chance.choice([Codec.NONE, Codec.ZSTD])), records
            )

    def note(self, base_offset: int, records: list[Record]) -> None:
        for place, record in enumerate(records):
            self.offsets[record.value or b""] = base_offset + place

    async def send_in_transaction(self) -> None:
        producer_id = self.chance.choice([1_000_001, 1_000_002])
        records = self.records()
        sequence = self._sequences.get(producer_id, 0)
        batch = build_batch(
            records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        outcome = self.shell.append(memoryview(batch))
        if isinstance(outcome, VerificationNeeded):
            guard = self.shell.begin_verification(outcome.header, version=1)
            outcome = self.shell.append(memoryview(batch), guard=guard)
        self.note(await self.durable(outcome), records)
        self._sequences[producer_id] = sequence + len(records)
        self.pending.setdefault(producer_id, []).extend(record.value or b"" for record in records)

    async def end_transaction(self) -> None:
        if self.pending:
            producer_id = self.chance.choice(sorted(self.pending))
            is_commit = self.chance.random() < 0.5
            values = self.pending.pop(producer_id)
            if not is_commit:
                self.aborted.update(values)
            end = TransactionEnd(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit)
            await self.durable(write_marker(self.shell, end))

    async def durable(self, outcome: object) -> int:
        assert isinstance(outcome, Appended), outcome
        if outcome.commitment is not None:
            await outcome.commitment.kept()
        return outcome.base_offset

    async def receive(self) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            messages = await self.desk.receive(self.name, self.chance.choice([1, 3, 10, 50]))
            forbidden = self.aborted.union(*self.pending.values())
            for message in messages:
                value = message.record.value or b""
                assert value not in forbidden
                assert self.lane_of[value] == message.lane
                assert not self.accepted[value]
                self.delivered[value] += 1
                assert message.delivery_count == self.delivered[value]
                if message.delivery_count == 1:
                    self.first_seen.setdefault(message.lane, []).append(message.record.offset)
            self.held += messages

    async def settle(self, act: Act | None = None) -> None:
        self.chance.shuffle(self.held)
        count = len(self.held) if act is not None else self.chance.randrange(len(self.held) + 1)
        chosen, self.held = self.held[:count], self.held[count:]
        acts = [act or self.chance.choice([Act.ACCEPT, Act.ACCEPT, Act.RELEASE]) for _ in chosen]
        items = [ReceiptSettlement(message.receipt, each) for message, each in zip(chosen, acts, strict=True)]
        outcomes = await self.desk.delivery.settle(self.name, items)
        assert outcomes == [Outcome.DONE] * len(items)
        for message, each in zip(chosen, acts, strict=True):
            if each is Act.ACCEPT:
                self.accepted[message.record.value or b""] += 1

    async def delete(self) -> None:
        """DeleteRecords: what nobody has received by then, nobody will; what is held may still be settled."""
        shell = self.shell
        offset = self.chance.randrange(shell.log_start, shell.last_stable_offset + 1)
        assert isinstance(await delete_before(shell, offset), int)

    async def restart(self) -> None:
        await self.desk.restart()
        self._set_up()

    async def drain(self) -> None:
        while self.pending:
            await self.end_transaction()
        (shell,) = self.desk.queues.loaded_shells()
        lanes = shell.reader.lanes
        assert lanes is not None
        for _ in range(10_000):
            was_scanning = lanes.is_scanning
            await self.receive()
            if not self.held and not was_scanning and not lanes.is_scanning:
                return
            if not self.held:
                assert await lanes.wait(10_000)
            await self.settle(Act.ACCEPT)
        raise AssertionError("never empty")


@pytest.mark.parametrize("seed", range(16))
async def test_every_message_of_every_lane_is_accepted_once(seed: int) -> None:
    world = LaneWorld(seed)
    await world.start()
    steps = [world.send] * 4 + [world.receive] * 4 + [world.settle] * 2
    steps += [world.send_in_transaction] * 2 + [world.end_transaction, world.restart]
    steps += [world.delete] if seed % 3 == 0 else []
    for _ in range(60):
        await world.chance.choice(steps)()
    await world.drain()
    expected = set(world.lane_of) - world.aborted
    lost = expected - set(world.accepted)
    assert set(world.accepted) <= expected
    assert not lost or (seed % 3 == 0 and not any(world.offsets[value] >= world.shell.log_start for value in lost))
    assert max(world.accepted.values()) == 1
    for offsets in world.first_seen.values():
        assert offsets == sorted(offsets)
    (shell,) = world.desk.queues.loaded_shells()
    queue = shell.queue("workers")
    assert queue is not None
    assert queue.in_flight_count == 0
    assert queue.finished_below == world.shell.readable_end
    await world.desk.stop()
