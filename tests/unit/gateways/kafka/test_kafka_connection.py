"""Frames in, replies out: a connection between a scripted transport and a server that answers as it is told."""

from __future__ import annotations

import asyncio
import struct

import pytest

from penstock.gateways.kafka.connection import PENDING_REPLIES_MAX, RECEIVE_BYTES
from support.door.scripted_connection import FRAME_BYTES_MAX, ScriptedTalk, frame


@pytest.fixture
async def talk() -> ScriptedTalk:
    return ScriptedTalk()


async def test_frames_may_arrive_in_any_pieces(talk: ScriptedTalk) -> None:
    bodies = [bytes([number]) * (number * 37 % 500 + 1) for number in range(1, 60)]
    stream = b"".join(map(frame, bodies))
    for start in range(0, len(stream), 7):
        talk.send(stream[start : start + 7])
    assert talk.server.frames == bodies
    assert talk.transport.written == b"".join(bodies)


async def test_what_came_together_is_charged_once(talk: ScriptedTalk) -> None:
    talk.send(frame(b"one") + frame(b"three") + frame(b"half a frame")[:6])
    assert talk.server.charged == [(2, 4 + 3 + 4 + 5)]
    talk.send(frame(b"half a frame")[6:])
    assert talk.server.charged[1:] == [(1, 4 + 12)]


async def test_a_frame_larger_than_the_buffer_is_taken_and_its_memory_given_back(talk: ScriptedTalk) -> None:
    body = bytes(range(256)) * 3000
    talk.send(frame(b"a") + frame(body) + frame(b"b"))
    assert talk.server.frames == [b"a", body, b"b"]
    talk.connection.release_memory()
    assert len(talk.connection.get_buffer(-1)) == RECEIVE_BYTES


async def test_replies_leave_in_the_order_of_the_requests(talk: ScriptedTalk) -> None:
    talk.server.on_frame = talk.server.keep_waiting
    talk.send(frame(b"1") + frame(b"2"))
    talk.server.on_frame = talk.server.answer
    talk.send(frame(b"3"))
    talk.server.slots[1].fill([b"two"])
    await asyncio.sleep(0)
    assert talk.transport.written == b""
    talk.server.slots[0].fill([b"one"])
    await asyncio.sleep(0)
    assert talk.transport.written == b"onetwo3"


async def test_a_busy_connection_leaves_later_frames_until_it_is_free(talk: ScriptedTalk) -> None:
    talk.server.on_frame = talk.server.become_busy
    talk.send(frame(b"fetch") + frame(b"later"))
    assert talk.server.frames == [b"fetch"]
    talk.server.on_frame = talk.server.answer
    talk.server.slots[0].fill([b"fetched"])
    talk.connection.become_free()
    assert talk.server.frames == [b"fetch", b"later"]
    await asyncio.sleep(0)
    assert talk.transport.written == b"fetchedlater"


async def test_a_slow_reader_is_not_read_from(talk: ScriptedTalk) -> None:
    talk.connection.pause_writing()
    taken = talk.send(frame(b"x" * 100) * 10_000)
    assert talk.transport.is_reading_paused
    assert taken <= RECEIVE_BYTES
    assert talk.server.frames == []
    talk.connection.resume_writing()
    assert not talk.transport.is_reading_paused
    assert len(talk.server.frames) == taken // 104


async def test_requests_that_wait_for_the_disk_are_bounded(talk: ScriptedTalk) -> None:
    talk.server.on_frame = talk.server.keep_waiting
    talk.send(frame(b"p") * (PENDING_REPLIES_MAX + 50_000))
    assert len(talk.server.slots) == PENDING_REPLIES_MAX
    assert talk.transport.is_reading_paused
    for slot in list(talk.server.slots):
        slot.fill([b"."])
    await asyncio.sleep(0)
    assert len(talk.server.slots) > PENDING_REPLIES_MAX
    assert talk.transport.written == b"." * PENDING_REPLIES_MAX


@pytest.mark.parametrize("size", [0, -1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
async def test_an_impossible_length_closes_the_connection_after_what_is_owed(talk: ScriptedTalk, size: int) -> None:
    talk.send(frame(b"good") + struct.pack(">i", size) + b"rest")
    assert talk.server.frames == [b"good"]
    assert talk.transport.is_closed
    assert talk.transport.written == b"good"
    assert talk.server.refused_connections == 1


async def test_a_draining_connection_closes_when_all_is_answered(talk: ScriptedTalk) -> None:
    talk.server.on_frame = talk.server.keep_waiting
    talk.send(frame(b"1"))
    talk.connection.drain()
    assert not talk.transport.is_closed
    talk.server.slots[0].fill([b"one"])
    await asyncio.sleep(0)
    assert talk.transport.is_closed
    assert talk.transport.written == b"one"


async def test_large_requests_of_all_connections_together_are_bounded(talk: ScriptedTalk) -> None:
    other = ScriptedTalk(talk.server)
    large = frame(b"x" * 900_000)
    talk.send(large[:500_000])
    taken = other.send(large)
    assert other.transport.is_reading_paused
    assert taken <= RECEIVE_BYTES
    talk.send(large[500_000:])
    assert talk.server.frames == [b"x" * 900_000]
    assert not other.transport.is_reading_paused
    other.send(large[taken:])
    assert len(talk.server.frames) == 2
    for one in (talk, other):
        one.connection.connection_lost(None)
    assert talk.server.memory.bytes_held == 0


async def test_nothing_behind_what_is_malformed_is_looked_at(talk: ScriptedTalk) -> None:
    talk.server.on_frame = lambda connection, body: (
        connection.abort("bad") if body == b"bad" else connection.reply([body])
    )
    talk.send(frame(b"good") + frame(b"bad") + frame(b"later"))
    assert talk.server.frames == [b"good", b"bad"]
    assert talk.transport.written == b"good"
    assert talk.transport.is_closed


async def test_large_replies_behind_a_waiting_one_are_bounded(talk: ScriptedTalk) -> None:
    """A fetch behind a produce is answered before it may be sent: its bytes are held, so no more are read."""
    talk.server.on_frame = lambda connection, body: (
        talk.server.keep_waiting(connection, body) if body == b"produce" else connection.reply([bytes(3_000_000)])
    )
    talk.send(frame(b"produce") + frame(b"fetch") * 100)
    assert talk.server.frames == [b"produce", *[b"fetch"] * 4]
    talk.server.slots[0].fill([b"done"])
    await asyncio.sleep(0)
    assert len(talk.transport.written) >= 12_000_004
    assert len(talk.server.frames) > 5


async def test_who_holds_memory_and_wants_more_gives_it_back_first(talk: ScriptedTalk) -> None:
    """Two connections that each hold half and want a little more would otherwise wait for each other for ever."""
    talks = [talk, ScriptedTalk(talk.server)]
    sizes = (600_000, 660_000)
    streams = [b"".join(frame(bytes([number]) * size) for size in sizes) for number in (1, 2)]
    first_bytes = len(frame(bytes(sizes[0])))
    for one, stream in zip(talks, streams, strict=True):
        assert one.send(stream[:first_bytes]) == first_bytes
    rests = [stream[first_bytes:] for stream in streams]
    for _ in range(50):
        for number, one in enumerate(talks):
            rests[number] = rests[number][one.send(rests[number][:100_000]) :]
    assert rests == [b"", b""]
    assert sorted(map(len, talk.server.frames)) == sorted(sizes * 2)


async def test_frame_over_the_bound_gets_through_alone(talk: ScriptedTalk) -> None:
    talk.server.memory._bytes_max = 1000
    for size in (500_000, 700_000):
        talk.send(frame(bytes(size)))
    assert list(map(len, talk.server.frames)) == [500_000, 700_000]


async def test_large_buffer_with_the_next_frames_start_in_it_is_not_waited_with(talk: ScriptedTalk) -> None:
    talk.server.memory._bytes_max = 1_000_000
    talk.send(frame(bytes(600_000)))
    # Alone, and over the bound only together with what it holds itself.
    talk.send(frame(bytes(700_000)))
    assert len(talk.server.frames) == 2


async def test_fault_in_a_route_ends_its_connection_alone(talk: ScriptedTalk) -> None:
    class BrokenRoute:
        def take(self, *arguments: object) -> bool:
            raise RuntimeError("planted")

    talk.send(frame(b"good"))
    talk.connection.route = BrokenRoute()
    talk.send(frame(b"x") + frame(b"y"))
    assert talk.transport.is_closed
    assert len(talk.server.faults) == 1
    assert talk.transport.written == b"good"
