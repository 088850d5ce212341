"""A dialogue with a transaction coordinator: each line is one command and what comes of it."""

from __future__ import annotations

from typing import Final

from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    ProducerIdNeeded,
    ProducerReady,
    TimePassed,
    TransactionCommand,
    TransactionReply,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.domain.transaction.machine import TransactionCoordinator
from penstock.domain.transaction.rules import TransactionSettings
from penstock.domain.transaction.state import TopicPartition, TransactionMetadata, TransactionRecord

ID: Final = "shop"
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
TIMEOUT_MS: Final = 60_000


class Talk:
    def __init__(self, settings: TransactionSettings | None = None, *, coordinator_epoch: int = 7) -> None:
        self.settings = settings or TransactionSettings()
        self.machine = TransactionCoordinator(self.settings, coordinator_epoch=coordinator_epoch)
        self.records: list[TransactionRecord] = []
        self.effects: list[WriteMarkers] = []
        self.now_ms = 1_000
        self.next_producer_id = 100

    def say(self, command: TransactionCommand) -> TransactionReply:
        decision = self.machine.decide(command, self.now_ms)
        if not isinstance(decision.reply, ProducerIdNeeded):
            assert decision == self.machine.decide(command, self.now_ms), "to decide changes nothing"
        for record in decision.records:
            self.machine.apply(record)
        self.records += decision.records
        self.effects += decision.effects
        return decision.reply

    def init(self, producer_id: int = -1, epoch: int = -1, *, timeout_ms: int = TIMEOUT_MS) -> TransactionReply:
        reply = self.say(InitProducer(ID, timeout_ms, producer_id, epoch))
        if isinstance(reply, ProducerIdNeeded):
            self.next_producer_id += 1
            spare = self.next_producer_id
            reply = self.say(InitProducer(ID, timeout_ms, producer_id, epoch, spare_producer_id=spare))
        return reply

    def ready(self) -> ProducerReady:
        reply = self.init()
        assert isinstance(reply, ProducerReady)
        return reply

    def add(self, producer: ProducerReady, *partitions: TopicPartition, version: int = 1) -> TransactionReply:
        return self.say(AddPartitions(ID, producer.producer_id, producer.producer_epoch, partitions, version))

    def verify(self, producer: ProducerReady, *partitions: TopicPartition) -> TransactionReply:
        return self.say(VerifyPartitions(ID, producer.producer_id, producer.producer_epoch, partitions))

    def end(self, producer: ProducerReady, *, is_commit: bool, version: int = 1) -> TransactionReply:
        command = EndTransaction(ID, producer.producer_id, producer.producer_epoch, is_commit, version)
        reply = self.say(command)
        if isinstance(reply, ProducerIdNeeded):
            self.next_producer_id += 1
            reply = self.say(
                EndTransaction(
                    ID, producer.producer_id, producer.producer_epoch, is_commit, version, self.next_producer_id
                )
            )
        return reply

    def write_markers(self, *partitions: TopicPartition) -> None:
        """The last markers asked for are in these partitions, or in all of them."""
        markers = self.effects[-1]
        self.say(MarkersWritten(markers.transactional_id, markers.ended_ms, partitions or markers.partitions))

    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.say(TimePassed())

    def begin_with(self, metadata: TransactionMetadata) -> ProducerReady:
        """A coordinator whose log says so; who holds the transactional id."""
        self.machine.apply(TransactionRecord(ID, metadata))
        return ProducerReady(metadata.producer_id, metadata.producer_epoch)

    @property
    def state(self) -> TransactionMetadata:
        metadata = self.machine.describe(ID)
        assert metadata is not None
        return metadata
