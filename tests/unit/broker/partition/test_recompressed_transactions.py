"""Batches of transactions in a topic with a codec of its own: a retry is known again, another batch is not taken for
it, also after a crash. Both by what was stored, since only that can be read again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from penstock.broker.partition.outcome import Appended, AppendRefused, DelayPossible, Refusal, VerificationNeeded
from penstock.broker.partition.recompression import LOOP_BYTES_MAX
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.config.topic import make_topic_config
from penstock.domain.transaction.commands import PartitionsAdded
from penstock.domain.transaction.state import VERSION_TWO, TopicPartition
from penstock.domain.transaction.verification import NO_GUARD
from support.storage.faulty_files import CrashMode
from support.transaction.desk import ORDERS, DeskProducer, DeskSchedules, TransactionDesk

SMALL, LARGE = b"small", b"large" * LOOP_BYTES_MAX[Codec.ZSTD]


@pytest.fixture
async def desk() -> AsyncIterator[TransactionDesk]:
    made = TransactionDesk()
    await made.start()
    yield made
    await made.close()


def partition_of(desk: TransactionDesk) -> PartitionShell:
    shell = desk.partition(0)
    shell.configure(make_topic_config({"compression.type": "zstd"}))
    return shell


async def append(
    desk: TransactionDesk, producer: DeskProducer, value: bytes, sequence: int = 0
) -> Appended | AppendRefused:
    """As the Kafka door does it: with the coordinator's word, and in a thread where it has to be."""
    shell = partition_of(desk)

    def batch() -> memoryview:
        return memoryview(
            build_batch(
                [Record(value)],
                codec=Codec.GZIP,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        )

    guard = NO_GUARD
    outcome = shell.produce(batch())
    if isinstance(outcome, VerificationNeeded):
        guard = shell.begin_verification(outcome.header, version=VERSION_TWO)
        assert await producer.add((TopicPartition(ORDERS, 0),)) == PartitionsAdded()
        outcome = shell.produce(batch(), guard=guard)
    if isinstance(outcome, DelayPossible):
        delays = DelayedBatches(cast(Any, DeskSchedules()), clock=desk.clock)
        return await delays.append(shell, batch(), guard=guard)
    assert not isinstance(outcome, VerificationNeeded)
    return outcome


async def keep(outcome: Appended | AppendRefused) -> int:
    assert isinstance(outcome, Appended), outcome
    assert outcome.commitment is None or await outcome.commitment.kept()
    return outcome.base_offset


@pytest.mark.parametrize("value", [SMALL, LARGE])
async def test_retry_is_known_again_and_another_batch_is_not(desk: TransactionDesk, value: bytes) -> None:
    producer = await DeskProducer(desk).begin()
    assert await keep(await append(desk, producer, value)) == 0
    assert await keep(await append(desk, producer, value)) == 0
    refused = await append(desk, producer, value + b"!")
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.SEQUENCE_REUSED
    assert await keep(await append(desk, producer, value, sequence=1)) == 1
    await producer.end(is_commit=True)


@pytest.mark.parametrize("value", [SMALL, LARGE])
async def test_the_same_after_a_crash(desk: TransactionDesk, value: bytes) -> None:
    producer = await DeskProducer(desk).begin()
    assert await keep(await append(desk, producer, value)) == 0
    await desk.restart(CrashMode.LOST)
    assert await keep(await append(desk, producer, value)) == 0
    refused = await append(desk, producer, value + b"!")
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.SEQUENCE_REUSED
