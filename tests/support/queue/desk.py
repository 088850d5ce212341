"""A queue on a desk: one command after the other, each decision applied at once, as a shell would."""

from __future__ import annotations

from penstock.domain.queue.commands import (
    Act,
    Decision,
    Found,
    Open,
    Outcome,
    QueueCommand,
    QueueEffect,
    QueueReply,
    Receive,
    Received,
    Settle,
    Settled,
    Settlement,
    TimePassed,
)
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.records import QueueRecord, read_record, write_record
from penstock.domain.queue.values import QueueConfig, Range


class QueueDesk:
    def __init__(self, config: QueueConfig | None = None, *, start: int = 0, log_end: int = 0) -> None:
        self.config = config or QueueConfig(lease_ms=1_000)
        self.queue = Queue(self.config)
        self.now_ms = 1_000
        self.log_end = log_end
        self.journal: list[bytes] = []
        self.effects: tuple[QueueEffect, ...] = ()
        self.submit(Open(start))

    def submit(self, command: QueueCommand) -> QueueReply:
        return self.decide(command).reply

    def decide(self, command: QueueCommand) -> Decision:
        decision = self.queue.decide(command, self.now_ms)
        for record in decision.records:
            self.queue.apply(record)
            self.journal.append(write_record(record))
        self.effects = decision.effects
        return decision

    def records(self) -> list[QueueRecord]:
        return [read_record(value) for value in self.journal]

    # ------------------------------------------------------------------ phrases

    def receive(self, consumer: str = "ann", count: int = 10, *, found: tuple[Found, ...] | None = None) -> Received:
        """Without `found`: everything from the cursor to the end of the log is a message."""
        if found is None:
            cursor = self.queue.cursor()
            ranges: tuple[Range, ...] = ((cursor, self.log_end - 1),) if cursor < self.log_end else ()
            found = (Found(DEFAULT_LANE, cursor, max(cursor, self.log_end), ranges),)
        reply = self.submit(Receive(consumer, count, found))
        assert isinstance(reply, Received), reply
        return reply

    def settle(
        self,
        act: Act,
        first: int,
        last: int | None = None,
        *,
        number: int = 0,
        consumer: str | None = None,
        delay_ms: int | None = None,
        text: str = "",
    ) -> Outcome:
        item = Settlement(first, first if last is None else last, act, number, delay_ms, text)
        reply = self.submit(Settle((item,), consumer))
        assert isinstance(reply, Settled), reply
        return reply.outcomes[0]

    def accept(self, received: Received) -> None:
        for delivery in received.deliveries:
            assert self.settle(Act.ACCEPT, delivery.first, delivery.last, number=received.number) is Outcome.DONE

    def pass_time(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        while (deadline_ms := self.queue.next_deadline_ms()) is not None and deadline_ms <= self.now_ms:
            self.submit(TimePassed())


def offsets(received: Received) -> list[int]:
    return [offset for each in received.deliveries for offset in range(each.first, each.last + 1)]


def counts(received: Received) -> list[int]:
    return [each.count for each in received.deliveries for _offset in range(each.first, each.last + 1)]


def rebuilt(desk: QueueDesk) -> Queue:
    """As after a crash: from the journal alone."""
    queue = Queue(desk.config)
    for record in desk.records():
        queue.apply(record)
    return queue
