"""Consume, transform, produce in transactions: each input has one copy for who reads committed records.

A transaction takes messages of several partitions and copies them into the same; every so often one is aborted on
purpose. Each copy says by a header which transaction it is from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from support.chaos.checks import Violation
from support.chaos.loads.work import PAUSE_SECONDS, Load, Work
from support.chaos.steady_load import QUICK, SteadyLoad
from support.chaos.transaction_checks import Copy, Fate, Transaction, check_copies, check_transactions, fates_of

COPIERS: Final = 2
MESSAGES_MAX: Final = 30
# One in so many is aborted.
TURNS_TO_ABORT: Final = 7
CALL_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 60.0
# Far longer than any election takes.
INSIST_SECONDS_MAX: Final = 15.0
COPIED_SECONDS_MAX: Final = 90.0
# librdkafka 2.16 forgets brokers that it cannot reach, and asks the forgotten ones.
FAITHFUL: Final = {"metadata.recovery.strategy": "none"}
HEADER: Final = "transaction"
ON_PURPOSE: Final = "on purpose"


class CopyLoad(Load):
    """Copies what `feed` sends into `target`, which has as many partitions."""

    def __init__(self, bootstrap: str, feed: SteadyLoad, target: str) -> None:
        super().__init__(target)
        self.bootstrap = bootstrap
        self.feed = feed
        self.target = target
        self.transactions: list[Transaction] = []
        self._copiers = [Copier(self, f"{target}-{number}") for number in range(COPIERS)]

    def start(self) -> None:
        for copier in self._copiers:
            copier.start()

    def finish(self) -> list[Violation]:
        """When the feed has ended."""
        until = time.monotonic() + COPIED_SECONDS_MAX
        while self._are_missing() and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS * 10)
        for copier in self._copiers:
            copier.end()
        copies = [copy for number in range(self.feed.partitions) for copy in self._read(number)]
        return check_transactions(self.transactions, copies) + check_copies(self.feed.acked, copies)

    def told(self) -> str:
        fates = ", ".join(f"{count} {fate.value}" for fate, count in fates_of(self.transactions).items())
        return f"{self.target}: transactions: {fates}"

    def _are_missing(self) -> bool:
        copied = {value for each in list(self.transactions) if each.fate is not Fate.ABORTED for value in each.values}
        return bool(self.feed.acked.keys() - copied)

    def _read(self, partition: int) -> list[Copy]:
        """To the last stable offset, which moves when every transaction has ended."""
        settings = {"group.id": "unused", "isolation.level": "read_committed", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "enable.partition.eof": True, **settings})
        consumer.assign([TopicPartition(self.target, partition, OFFSET_BEGINNING)])
        copies: list[Copy] = []
        until = time.monotonic() + PATIENCE_SECONDS
        try:
            while time.monotonic() < until:
                for message in consumer.consume(10_000, 0.1):
                    error = message.error()
                    if error is None:
                        copies.append(_copy_of(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return copies
        finally:
            consumer.close()
        raise AssertionError(f"{self.target}-{partition}: no end after {len(copies)} copies")


def _copy_of(message: Message) -> Copy:
    headers: Any = message.headers()
    producer, _, number = dict(headers)[HEADER].decode().rpartition("/")
    value = (message.value() or b"").decode()
    return Copy(message.partition() or 0, message.offset() or 0, value, producer, int(number))


class MustAbortError(Exception):
    """By the client's own word, or on purpose."""


class MustBeginAnewError(Exception):
    """The client can do nothing more; whether its transaction was committed is not known."""


class Copier(Work):
    def __init__(self, load: CopyLoad, name: str) -> None:
        super().__init__(name)
        self._load = load
        self._number = 0
        self._producer: Producer | None = None
        self._abandoned: list[Producer] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": load.bootstrap,
                "group.id": f"of-{load.target}",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([self._load.feed.topic])
        super().run()

    def work(self) -> None:
        polled = self._consumer.consume(MESSAGES_MAX, 0.05)
        messages = [message for message in polled if message.error() is None]
        if not messages:
            return
        values = tuple((message.value() or b"").decode() for message in messages)
        self._number += 1
        fate = Fate.UNKNOWN
        try:
            fate = self._copy(messages)
        except MustBeginAnewError as error:
            self._load.refused(f"transaction: {error}")
            self._abandon()
        self._load.transactions.append(Transaction(self.name, self._number, values, fate))
        if fate is not Fate.COMMITTED:
            self._rewind()

    def finish(self) -> None:
        self._consumer.close()

    def _copy(self, messages: Sequence[Message]) -> Fate:
        producer = self._ready_producer()
        try:
            producer.begin_transaction()
            self._send(producer, messages)
            if self._number % TURNS_TO_ABORT == 0:
                raise MustAbortError(ON_PURPOSE)
            insist(lambda: producer.commit_transaction(CALL_SECONDS))
        except MustAbortError as error:
            insist(lambda: producer.abort_transaction(CALL_SECONDS))
            if str(error) != ON_PURPOSE:
                self._load.refused(f"transaction: {error}")
                # librdkafka 2.16 may send a group's positions to a coordinator of long ago for as long as it lives.
                self._abandon()
            return Fate.ABORTED
        return Fate.COMMITTED

    def _send(self, producer: Producer, messages: Sequence[Message]) -> None:
        header = f"{self.name}/{self._number}".encode()
        read_to: dict[int, int] = {}
        for message in messages:
            partition = message.partition() or 0
            read_to[partition] = (message.offset() or 0) + 1
            producer.produce(self._load.target, message.value(), partition=partition, headers={HEADER: header})
        places = [TopicPartition(self._load.feed.topic, number, offset) for number, offset in read_to.items()]
        group = self._consumer.consumer_group_metadata()
        insist(lambda: producer.send_offsets_to_transaction(places, group, CALL_SECONDS))

    def _ready_producer(self) -> Producer:
        if self._producer is None:
            settings = {"transactional.id": self.name, "transaction.timeout.ms": 20_000, **FAITHFUL}
            producer = Producer({"bootstrap.servers": self._load.bootstrap, **QUICK, **settings})
            insist(lambda: producer.init_transactions(CALL_SECONDS))
            self._producer = producer
        return self._producer

    def _abandon(self) -> None:
        """Kept, and not used: librdkafka takes its time to destroy a client whose transaction nobody wants."""
        if self._producer is not None:
            self._abandoned.append(self._producer)
            self._producer = None

    def _rewind(self) -> None:
        """What was read and not committed will be read again. First the producer: one that begins anew ends what the
        one before left open, and only then are the positions those that count."""
        self._ready_producer()
        held = self._consumer.assignment()
        until = time.monotonic() + PATIENCE_SECONDS
        while held:
            try:
                for place in self._consumer.committed(held, CALL_SECONDS):
                    place.offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
                    self._consumer.seek(place)
            except KafkaException as error:
                self._load.refused(f"positions: {error}")
                if time.monotonic() > until:
                    raise
                held = self._consumer.assignment()
            else:
                return


def insist(call: Callable[[], None]) -> None:
    """Calls again for as long as the client says that it may, and not for ever: librdkafka 2.16 may wait for a
    coordinator that it has forgotten, and only a new client finds the true one."""
    until = time.monotonic() + INSIST_SECONDS_MAX
    while True:
        try:
            call()
        except KafkaException as failure:
            error = failure.args[0]
            if error.txn_requires_abort():
                raise MustAbortError(str(error)) from failure
            if error.fatal() or not error.retriable() or time.monotonic() > until:
                raise MustBeginAnewError(str(error)) from failure
        else:
            return
