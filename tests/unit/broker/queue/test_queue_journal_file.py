"""How much of a queue journal a start reads, and how much of it is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.broker.queue.delivery import ReceiptSettlement
from penstock.broker.queue.replay_start import Kept, read_start, removable_below, write_start
from penstock.broker.queue.shell import SAVED_BEHIND_MAX
from penstock.domain.queue.commands import Act
from support.queue.broker import QueueBroker

KEPT = Kept()
NOW_MS = 10 * KEPT.horizon_ms


def log_of(*segments: tuple[int, int, int]) -> Any:
    """Each with its next offset, its newest time and its size."""
    made = [SimpleNamespace(next_offset=o, max_timestamp=ms, begun_ms=ms, size=size) for o, ms, size in segments]
    return SimpleNamespace(log_start=0, size_bytes=sum(each.size for each in made), segments=made)


def test_what_is_old_and_not_needed_can_go() -> None:
    log = log_of((10, 0, 1), (20, NOW_MS - KEPT.horizon_ms - 1, 1), (30, NOW_MS, 1), (40, NOW_MS, 1))
    assert removable_below(log, start=35, now_ms=NOW_MS, kept=KEPT) == 20


def test_what_a_start_reads_stays_however_old_it_is() -> None:
    log = log_of((10, 0, 1), (20, 0, 1), (30, 0, 1))
    assert removable_below(log, start=15, now_ms=NOW_MS, kept=KEPT) == 10
    assert removable_below(log, start=5, now_ms=NOW_MS, kept=KEPT) == 0


def test_more_than_enough_goes_however_young_it_is() -> None:
    log = log_of((10, NOW_MS, 2), (20, NOW_MS, KEPT.bytes_max - 1), (30, NOW_MS, 1))
    assert removable_below(log, start=30, now_ms=NOW_MS, kept=KEPT) == 10


def test_the_last_segment_stays() -> None:
    assert removable_below(log_of((10, 0, 1)), start=10, now_ms=NOW_MS, kept=KEPT) == 0


async def test_a_start_reads_from_where_it_was_told_and_knows_the_same() -> None:
    desk = QueueBroker()
    await desk.start()
    await desk.topic("orders")
    names = [await desk.queue("orders", group) for group in ("a", "b")]
    await desk.send("orders", [b"%d" % number for number in range(2 * SAVED_BEHIND_MAX)])
    for _ in range(SAVED_BEHIND_MAX + 100):
        for name in names:
            (message,) = await desk.receive(name, 1)
            await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, Act.ACCEPT)])
    (shell,) = desk.queues.loaded_shells()
    await shell.tidy()
    start = read_start(shell._companion)
    assert start >= 2 * SAVED_BEHIND_MAX
    for is_told in (True, False):
        # Without the file everything is read; what a later snapshot makes unnecessary is passed over either way.
        if not is_told:
            assert write_start(shell._companion.log, 0)
        await desk.restart()
        (shell,) = desk.queues.loaded_shells()
        for name in names:
            queue = shell.queue(name.group)
            assert queue is not None
            assert (queue.finished_below, queue.in_flight_count) == (SAVED_BEHIND_MAX + 100, 0)
    await desk.stop()
