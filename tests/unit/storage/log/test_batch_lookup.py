"""Batches found by offsets that are scattered over a log: each checked, whatever segment it lies in."""

from __future__ import annotations

import pytest

from penstock.storage.config import LogConfig
from penstock.storage.log.batch_lookup import plan_lookups
from support.storage.faulty_files import FaultyFiles
from support.storage.log_desk import LogDesk

BATCHES = 200
PER_BATCH = 3


@pytest.fixture
def desk() -> LogDesk:
    desk = LogDesk(config=LogConfig(segment_bytes=20_000))
    for number in range(BATCHES):
        desk.append(*(b"%d" % number * (number % 90 + 1) for _ in range(PER_BATCH)))
    desk.sync()
    assert len(desk.log.segments) > 2
    return desk


def found(desk: LogDesk, offsets: list[int]) -> dict[int, bytes]:
    return {
        offset: bytes(batch)
        for lookup in plan_lookups(desk.log, offsets)
        for offset, batch, header in lookup.batches()
        if header.base_offset <= offset < header.next_offset
    }


@pytest.mark.parametrize("is_restarted", [False, True])
def test_each_offset_finds_its_batch(desk: LogDesk, is_restarted: bool) -> None:
    if is_restarted:
        desk.restart(clean=True)
    offsets = [*range(0, BATCHES * PER_BATCH, 7), BATCHES * PER_BATCH - 1]
    batches = found(desk, offsets)
    assert list(batches) == offsets
    for offset, batch in batches.items():
        assert desk.read(offset, bytes_max=1) == batch


def test_what_is_not_readable_is_left_out(desk: LogDesk) -> None:
    end = desk.log.log_end
    desk.append(b"not synced")
    assert list(found(desk, [end - 1, end, end + 5])) == [end - 1]
    desk.log.saved_end = desk.log.readable_end
    desk.log.delete_before(100).run()
    assert list(found(desk, [5, 99, 100])) == [100]
    desk.log.fail("no disk")
    with pytest.raises(OSError, match="no disk"):
        found(desk, [100])


@pytest.mark.parametrize("byte", [7, 11, 26], ids=["base offset", "length", "last offset"])
def test_flipped_bit_in_the_head_of_a_batch_leads_to_no_other(desk: LogDesk, byte: int) -> None:
    """None of them is in the batch's own checksum, or is looked at before it: whoever skips it must notice."""
    segment = desk.log.segments[1]
    offset = segment.base_offset + 2 * PER_BATCH
    assert isinstance(desk.files, FaultyFiles)
    first = len(desk.read(segment.base_offset, bytes_max=1))
    content = desk.files.content(segment.path)
    desk.files.open(segment.path).write_at(bytes([content[first + byte] ^ 1]), first + byte)
    whole = found(desk, [offset - PER_BATCH, offset, offset + 1])
    assert not whole
    assert desk.log.damage is not None
    assert desk.log.damage.offset <= offset


def test_damaged_batch_is_noted_and_not_given(desk: LogDesk) -> None:
    segment = desk.log.segments[1]
    offset = segment.base_offset + PER_BATCH
    assert isinstance(desk.files, FaultyFiles)
    position = len(desk.read(segment.base_offset, bytes_max=1))
    file = desk.files.open(segment.path)
    file.write_at(b"\xff", position + 80)
    assert list(found(desk, [offset - 1, offset, offset + PER_BATCH])) == [offset - 1, offset + PER_BATCH]
    assert desk.log.damage is not None
    assert desk.log.damage.offset == offset
