"""The first part of `penstock bench queue`: the machine alone, without disk, wire or bytes."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from penstock.cli.progress import BenchProgress
from penstock.domain.queue.commands import (
    Act,
    Found,
    Open,
    QueueCommand,
    QueueReply,
    Receive,
    Received,
    Settle,
    Settlement,
)
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.machine import Queue

CHUNK: Final = 100
_NOW_MS: Final = 1_700_000_000_000


def bench_machine(messages: int, batch: int) -> float:
    """Messages a second that are received and then accepted one by one, in batches."""
    queue = Queue()
    _do(queue, Open(0))
    rounds = max(messages // batch, 1)
    began = perf_counter()
    with BenchProgress("queue machine", float(rounds)) as progress:
        for number in range(rounds):
            _round(queue, batch)
            if number % CHUNK == 0:
                progress.update(number, f"{number * batch / max(perf_counter() - began, 0.001):,.0f} msg/s")
    assert queue.finished_below == rounds * batch, "every message is finished"
    return rounds * batch / max(perf_counter() - began, 0.000_001)


def _round(queue: Queue, batch: int) -> None:
    first = queue.cursor()
    found = Found(DEFAULT_LANE, first, first + batch, ((first, first + batch - 1),))
    received = _do(queue, Receive("bench", batch, (found,)))
    assert isinstance(received, Received)
    items = tuple(
        Settlement(offset, offset, Act.ACCEPT, received.number)
        for delivery in received.deliveries
        for offset in range(delivery.first, delivery.last + 1)
    )
    _do(queue, Settle(items))


def _do(queue: Queue, command: QueueCommand) -> QueueReply:
    decision = queue.decide(command, _NOW_MS)
    for record in decision.records:
        queue.apply(record)
    return decision.reply
