"""What a look tells of each lane, from the window and from what the index names."""

from __future__ import annotations

from typing import cast

from penstock.broker.partition.read import ReadProblem
from penstock.broker.queue.batch import QueueBatch
from penstock.broker.queue.lane_look import LaneLook
from penstock.broker.queue.lanes import LaneIndex
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.queue.commands import Found
from penstock.domain.queue.lanes import DEFAULT_LANE


class Log:
    """Batches, each given as the lanes of its messages; and an index that knows them up to `known_upto`."""

    def __init__(self, *batches: list[int], known_upto: int | None = None) -> None:
        self.batches: list[QueueBatch] = []
        for lanes in batches:
            headers = [() if lane == DEFAULT_LANE else (("penstock-priority", b"%d" % lane),) for lane in lanes]
            records = [Record(value=b"", timestamp_ms=1, headers=each) for each in headers]
            data = memoryview(bytes(build_batch(records, base_offset=self.end)))
            header = read_header(data)
            assert isinstance(header, BatchHeader)
            self.batches.append(QueueBatch(header, data, is_left_out=False))
        self.known_upto = self.end if known_upto is None else known_upto
        self.opened: list[int] = []
        self.unreadable_from = self.end

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def covered_upto(self, since: int) -> int:
        return max(since, self.known_upto)

    def lanes_from(self, since: int) -> int:
        lanes = {lane for batch in self.batches if batch.next_offset > since for lane in batch.lanes}
        return sum(1 << lane for lane in lanes)

    async def batches_of(self, lane: int, since: int, upto: int, count_max: int) -> tuple[list[int], int]:
        found = [each for each in self.batches if lane in each.lanes and each.next_offset > since]
        offsets = [batch.base_offset for batch in found if batch.base_offset < upto]
        return offsets[:count_max], max(offsets[count_max], since) if len(offsets) > count_max else upto

    async def batch_at(self, offset: int) -> QueueBatch | ReadProblem | None:
        self.opened.append(offset)
        if offset >= self.unreadable_from:
            return ReadProblem.DAMAGED
        return next(batch for batch in self.batches if batch.next_offset > offset)

    async def look(
        self, cursors: dict[int, int], window: tuple[int, int], count: int = 10, bytes_max: int = 1 << 20
    ) -> dict[int, Found]:
        self.opened.clear()
        index = type("Index", (), {"covered_upto": self.covered_upto, "lanes_from": self.lanes_from})()
        index.batches = self.batches_of
        index.batches_max = 64
        look = LaneLook(
            cast(LaneIndex, index),
            self.batches[slice(*window)],
            cursors,
            log_start=0,
            end=self.end,
            bytes_max=bytes_max,
            batch_at=self.batch_at,
        )
        return {found.lane: found for found in await look.find(count)}


async def test_lanes_without_a_cursor_are_told_with_the_window_and_behind_it() -> None:
    log = Log([4, 9, 4], [4, 4], [9], [0])
    found = await log.look({4: 0}, (0, 1))
    assert found == {
        9: Found(9, 0, 7, ((1, 1), (5, 5))),
        4: Found(4, 0, 3, ((0, 0), (2, 2))),
        0: Found(0, 0, 7, ((6, 6),)),
    }


async def test_a_lane_that_is_ahead_is_not_told_again() -> None:
    log = Log([4, 9, 4], [4, 4], [9], [9])
    assert (await log.look({4: 0, 9: 6}, (0, 1)))[9] == Found(9, 6, 7, ((6, 6),))
    assert 9 not in await log.look({4: 0, 9: 7}, (0, 1))


async def test_a_batch_on_the_border_of_the_window_is_told_once() -> None:
    log = Log([0, 0, 4, 4, 0, 0], [4])
    found = await log.look({0: 0, 4: 3}, (0, 2))
    assert found[0] == Found(0, 0, 7, ((0, 1), (4, 5)))


async def test_a_lane_that_lags_waits_for_the_search() -> None:
    log = Log([0], [4, 4], [0], known_upto=0)
    assert 0 not in await log.look({0: 0, 4: 1}, (1, 3))
    log.known_upto = 1
    assert (await log.look({0: 0, 4: 1}, (1, 3)))[0] == Found(0, 0, 4, ((0, 0), (3, 3)))


async def test_a_lane_without_messages_goes_along() -> None:
    log = Log([4, 4], [4], [4])
    assert (await log.look({4: 0, 9: 0}, (0, 1)))[9] == Found(9, 0, 4, ())


async def test_what_cannot_be_read_is_not_passed() -> None:
    log = Log([4], [4], [9], [9])
    log.unreadable_from = 3
    assert (await log.look({4: 0}, (0, 1)))[9] == Found(9, 0, 3, ((2, 2),))
    log.unreadable_from = 2
    assert 9 not in await log.look({4: 0}, (0, 1))
    assert (await log.look({4: 0, 9: 0}, (0, 1)))[9] == Found(9, 0, 2, ())


async def test_no_more_is_opened_than_was_asked_for() -> None:
    log = Log([4] * 10, *([[9, 8]] * 100))
    found = await log.look({4: 0}, (0, 1), count=10)
    # The lane below gets one message in ten, so it needs no more; what it needs is in batches that are opened anyway.
    assert len(found[9].ranges) == 10
    assert found[9].upto == 10 + 2 * 10
    assert len(found[8].ranges) == 2
    assert len(log.opened) == 12


async def test_bytes_are_a_limit_too_and_nothing_is_passed_by_it() -> None:
    log = Log([4], *([[9]] * 20))
    size_bytes = len(log.batches[1].raw)
    found = await log.look({4: 0}, (0, 1), bytes_max=3 * size_bytes)
    assert found[9] == Found(9, 0, 4, ((1, 1), (2, 2), (3, 3)))
    assert (await log.look({4: 0, 9: 4}, (0, 1), bytes_max=1))[9] == Found(9, 4, 5, ((4, 4),))
