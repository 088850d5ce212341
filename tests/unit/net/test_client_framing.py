from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.framing import STAGING_BYTES, FrameReader, FrameTooLarge


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """As a transport would: never more than the buffer takes."""
    frames: list[bytes] = []
    while data:
        buffer = reader.buffer()
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        data = data[taken:]
        received = reader.received(taken)
        assert not isinstance(received, FrameTooLarge)
        frames += [bytes(frame) for frame in received]
    return frames


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_frames_come_out_whole_however_the_bytes_arrive(payloads: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(frame_bytes_max=1000)
    data, frames, turn = framed(*payloads), [], 0
    while data:
        size = cuts[turn % len(cuts)]
        frames += feed(reader, data[:size])
        data, turn = data[size:], turn + 1
    assert frames == payloads


@pytest.mark.parametrize("size", [STAGING_BYTES - 4, STAGING_BYTES - 3, STAGING_BYTES, 5 * STAGING_BYTES + 1])
def test_frames_larger_than_the_staging_buffer_come_out_whole(size: int) -> None:
    reader = FrameReader(frame_bytes_max=10 * STAGING_BYTES)
    payloads = [b"a", bytes(range(256)) * (size // 256) + b"x" * (size % 256), b"b"]
    assert feed(reader, framed(*payloads)) == payloads


def test_a_frame_keeps_its_bytes_when_the_next_one_arrives() -> None:
    reader = FrameReader(frame_bytes_max=100)
    first = reader.buffer()
    first[:9] = framed(b"hello")
    frames = reader.received(9)
    assert isinstance(frames, list)
    feed(reader, framed(b"OTHER"))
    assert bytes(frames[0]) == b"hello"


@pytest.mark.parametrize("head", [b"\0\0\0\x65", b"\xff\xff\xff\xff", b"HTTP"])
def test_a_frame_beyond_the_limit_is_refused_before_memory_is_taken(head: bytes) -> None:
    reader = FrameReader(frame_bytes_max=100)
    reader.buffer()[:4] = head
    assert isinstance(reader.received(4), FrameTooLarge)
