"""One Kafka client's connection: bytes in, frames out, replies in the order of the requests.

          receive buffer            pending replies (in request order)
    socket ──► [frame][frame][fra…   [ready][waits for disk][ready]  ──► socket
                  │                        ▲
                  └── handle(frame) ───────┘

Rules:
- A frame is handled straight out of the receive buffer. Batches are written to the log before the call returns, so
  nothing of a request outlives it, and a producer's bytes are held once. A batch that has to wait, because it begins a
  transaction and its coordinator must be asked, is copied.
- Only Produce is pipelined: many requests may wait for one disk sync. Any other request that has to wait (a parked
  Fetch, a topic being created) stops the frames behind it from being looked at, as Kafka does. So a connection never
  owes more than one large reply.
- A client that does not read its replies is not read from: above the transport's high-water mark frames stay in the
  receive buffer, the buffer fills, reading pauses, and TCP tells the client.
- Where clients log in, one that has not is given little: small frames, little time, the APIs of the login.
- What is malformed closes this connection and disturbs nobody else; nothing behind it is looked at. A request larger
  than any of its API is not even read.
- A request that takes long is worked through in slices. Its frame stays where it is meanwhile (`keep_frame`).
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.codec.kafka import BOUNDS
from penstock.domain.security.access import ANONYMOUS, Principal
from penstock.gateways.caller import UNKNOWN, Caller
from penstock.gateways.kafka.login import Login
from penstock.gateways.kafka.reply_slot import ReplyParts, ReplySlot

if TYPE_CHECKING:
    from penstock.gateways.kafka.server import KafkaServer

LENGTH_BYTES: Final = 4
PRODUCE_KEY: Final = 0
_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_API_KEY_BYTES: Final = 2
# Small enough that ten thousand idle connections cost 640 MB at the very most, large enough for a burst of some
# hundred one-message requests in one read.
RECEIVE_BYTES: Final = 64 * 1024
# Produce requests of one connection that may wait for the disk. librdkafka sends up to a million without waiting.
PENDING_REPLIES_MAX: Final = 4096
# Of a request that was given memory which others wait for, so much comes from sweep to sweep: 13 KB a second. Who is
# slower than that twice in a row gives the memory back with the connection.
SWEEP_BYTES_MIN: Final = 64 * 1024
SLOW_SWEEPS_MAX: Final = 2
# Below this, joining parts and copying them once is cheaper than handing each to the transport.
JOIN_BYTES_MAX: Final = 64 * 1024

# Where a Produce for one partition goes: topic name, topic id, partition.
Destination = tuple[str, bytes, int]


class Route(Protocol):
    def take(self, connection: KafkaConnection, buffer: bytearray, view: memoryview, start: int, end: int) -> bool: ...


class KafkaConnection(asyncio.BufferedProtocol):
    def __init__(self, server: KafkaServer, *, frame_bytes_max: int) -> None:
        self._server = server
        self._frame_bytes_max = frame_bytes_max
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._pending: deque[ReplySlot] = deque()
        self._out: ReplyParts = []
        self._out_bytes = 0
        # The largest reply since the client had last taken everything.
        self._large_bytes = 0
        self._out_bytes_max = server.config.write_buffer_bytes_max
        # Of replies that are known and stand behind one that is not.
        self._held_bytes = 0
        self._is_busy = False
        self._is_handling = False
        self._is_frame_kept = False
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_send_scheduled = False
        self._is_draining = False
        self.is_ended = False
        # A Fetch that waits for more. It changes nothing, so it ends with its client; what changes something does not.
        # A ShareFetch too: it has settled what it was told to settle before it waits.
        self.parked: asyncio.Task[None] | None = None
        # Requests under way whose replies have no place in the order (`context.Aside`).
        self.aside_count = 0
        # Of the server's memory for large requests.
        self._memory_held = 0
        self._waits_for_memory = False
        # How much of a request had come at the last sweep, and how often it was too little.
        self._swept_bytes = 0
        self._slow_sweeps = 0
        self.caller = Caller(ANONYMOUS, UNKNOWN, server.door)
        # None where nobody has to log in.
        self.login: Login | None = None
        self._login_ending: asyncio.TimerHandle | None = None
        self.local_address: tuple[str, int] | None = None
        # How the last simple Produce was handled; the next one is most likely the same.
        self.route: Route | None = None
        self.last_destination: Destination | None = None
        # Sweeps of the server since the last byte came: a counter costs the hot path less than a clock.
        self.quiet_sweeps = 0
        self._closed_callbacks: list[Callable[[], None]] = []

    def when_closed(self, callback: Callable[[], None]) -> None:
        if self._transport is None:
            callback()
        else:
            self._closed_callbacks.append(callback)

    # Login

    def admit(self, principal: Principal, *, lifetime_ms: int) -> None:
        self.caller = Caller(principal, self.caller.address, self._server.door)
        self._frame_bytes_max = self._server.config.frame_bytes_max
        # What was learnt before was learnt for another login.
        self.route = self.last_destination = None
        if self._login_ending is not None:
            self._login_ending.cancel()
        # An alarm and no look at the clock with every request: the route of a producer never asks.
        self._login_ending = self._loop.call_later(lifetime_ms / 1000, self._on_login_ended) if lifetime_ms else None

    def _on_login_ended(self) -> None:
        assert self.login is not None, "only a login has an end"
        self.login.is_expired = True
        self.route = self.last_destination = None

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast: uvloop's transports are not subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=self._out_bytes_max)
        peer = transport.get_extra_info("peername")
        self.caller = Caller(ANONYMOUS, f"{peer[0]}:{peer[1]}" if peer else UNKNOWN, self._server.door)
        local = transport.get_extra_info("sockname")
        self.local_address = (local[0], local[1]) if local else None
        self._server.on_connected(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if self._login_ending is not None:
            self._login_ending.cancel()
        self._pending.clear()
        self._out.clear()
        if self.parked is not None:
            self.parked.cancel()
            self._is_frame_kept = False
        callbacks, self._closed_callbacks = self._closed_callbacks, []
        for callback in callbacks:
            callback()
        self._leave_if_gone()

    def _leave_if_gone(self) -> None:
        """Counts with its memory while its frame is worked on: or who sends and leaves again and again has no bound."""
        if self._transport is None and not self._is_frame_kept:
            self._give_memory_back()
            self._server.on_disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.quiet_sweeps = 0
        self._server.bytes_in += nbytes
        self._handle_frames()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._handle_frames()

    # Frames

    def _handle_frames(self) -> None:
        if self._is_handling:  # a reply written from inside the loop may call resume_writing
            return
        self._is_handling = True
        request_count = received_bytes = 0
        try:
            while self._may_handle() and self._end - self._start >= LENGTH_BYTES:
                (size,) = _LENGTH.unpack_from(self._buffer, self._start)
                if not 0 < size <= self._frame_bytes_max:
                    self.abort(f"frame of {size} bytes, at most {self._frame_bytes_max} are taken")
                    return
                frame_end = self._start + LENGTH_BYTES + size
                if frame_end > self._end:
                    break
                frame_start = self._start + LENGTH_BYTES
                self._start = frame_end
                request_count += 1
                received_bytes += size + LENGTH_BYTES
                route = self.route
                if route is not None and route.take(self, self._buffer, self._view, frame_start, frame_end):
                    self._server.request_counts[PRODUCE_KEY] += 1
                else:
                    self._server.handle(self, self._view[frame_start:frame_end])
        except Exception as error:  # noqa: BLE001  edge of a connection
            self._server.on_fault(self, error)
        finally:
            self._is_handling = False
            if request_count:
                # Once for all that came together, not for each: the route of a producer has no time for more.
                self._server.charge(self.caller, request_count, received_bytes)
        if self._out_bytes > self._out_bytes_max:
            # The transport says that it is full in the next turn of the loop at the earliest: ask again then.
            self.send_ready_soon()
        self._send_ready()
        self._make_room()

    def _may_handle(self) -> bool:
        return not (
            self._is_busy
            or self._is_writing_paused
            or self._transport is None
            or self.is_ended
            or self._out_bytes + self._held_bytes > self._out_bytes_max
            or len(self._pending) >= PENDING_REPLIES_MAX
        )

    def _make_room(self) -> None:
        """Leaves room for at least one more byte, or pauses reading where frames may not be handled now."""
        if self._transport is None or self.is_ended:
            return
        if self._is_frame_kept:
            pass  # nothing of the buffer may move: what comes is taken while there is room behind the frame
        elif self._start == self._end:
            self._start = self._end = 0
            if self._memory_held and self._server.memory.is_wanted:
                self.release_memory()
        elif self._frame_end() > len(self._buffer):
            self._move_rest_to_front()
        is_full = self._end == len(self._buffer) or self._waits_for_memory
        if is_full and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()
        elif self._is_reading_paused and not is_full and not self._is_draining:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _frame_end(self) -> int:
        """Where the frame at the start of the unhandled bytes ends; where its length would, if that is not here yet."""
        if self._end - self._start < LENGTH_BYTES:
            return self._start + LENGTH_BYTES
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        # A length that will be refused needs no room.
        return self._start + LENGTH_BYTES + (size if 0 < size <= self._frame_bytes_max else 0)

    def _move_rest_to_front(self) -> None:
        needed = self._frame_end() - self._start
        held = self._end - self._start
        is_known = held >= LENGTH_BYTES + _API_KEY_BYTES
        if needed > len(self._buffer) and is_known:
            reason = self._over_bound(needed - LENGTH_BYTES)
            if reason is not None:
                self.abort(reason)
            else:
                self._grow_buffer(needed)
        else:
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _over_bound(self, size: int) -> str | None:
        """Why a request of this size is not even read. Only one that needs memory of its own is looked at."""
        (api_key,) = _API_KEY.unpack_from(self._buffer, self._start + LENGTH_BYTES)
        bound = BOUNDS.get(api_key)
        # A login's bare token has no key in front; it never comes to more than the buffer holds.
        if bound is None or bound.bytes_max is None or size <= bound.bytes_max:
            return None
        return f"a request of API {api_key} of {size} bytes, at most {bound.bytes_max} are taken: {bound.reason}"

    def _grow_buffer(self, needed: int) -> None:
        # A little more than needed: the next frame's start comes with the same read.
        size = needed + RECEIVE_BYTES
        if self._waits_for_memory:
            return
        if self._server.memory.take(size, self._on_memory):
            self._take_buffer(size)
            return
        self._waits_for_memory = True
        # Who waits holds nothing, or connections that wait for one another would do so for ever.
        if self._memory_held:
            self._replace_buffer(max(RECEIVE_BYTES, self._end - self._start))
            self._give_memory_back()
        self._server.on_memory_wanted()

    def _on_memory(self, size: int) -> None:
        self._waits_for_memory = False
        if self._transport is None or self.is_ended:
            self._server.memory.give_back(size)
            return
        self._take_buffer(size)
        self._make_room()

    def _take_buffer(self, size: int) -> None:
        # bytearray(n) is zero pages until it is written to: a client that claims 100 MB and sends nothing costs address
        # space, not memory.
        self._replace_buffer(size)
        self._memory_held, given_back = size, self._memory_held
        self._server.memory.give_back(given_back)

    def _replace_buffer(self, size: int) -> None:
        held = self._view[self._start : self._end]
        buffer = bytearray(size)
        buffer[: len(held)] = held
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, len(held)

    def keep_frame(self) -> None:
        """The frame being handled is still needed when the call returns: until `free_frame`, at the latest until the
        connection is free."""
        self._is_frame_kept = True

    def free_frame(self) -> None:
        if self._is_frame_kept:
            self._is_frame_kept = False
            self._make_room()
            self._leave_if_gone()

    def release_memory(self) -> None:
        """Gives a large receive buffer back while nothing is in it."""
        if self._start == self._end and self._memory_held and not self._is_frame_kept:
            self._replace_buffer(RECEIVE_BYTES)
            self._give_memory_back()

    def is_dawdling(self) -> bool:
        """Holds memory for a request and sends next to nothing of it. Asked at every sweep, and only then."""
        before, self._swept_bytes = self._swept_bytes, self._end - self._start
        came_bytes = self._swept_bytes - before
        is_awaited = self._memory_held > 0 and self._swept_bytes > 0 and self._frame_end() > self._end
        if is_awaited and 0 <= came_bytes < SWEEP_BYTES_MIN:
            self._slow_sweeps += 1
        else:
            self._slow_sweeps = 0
        return self._slow_sweeps >= SLOW_SWEEPS_MAX

    def _give_memory_back(self) -> None:
        given_back, self._memory_held = self._memory_held, 0
        self._server.memory.give_back(given_back)

    # Replies

    def reply(self, parts: ReplyParts) -> None:
        """The reply to the request being handled, known at once."""
        if self._pending:
            slot = ReplySlot(self)
            slot.parts = parts
            self._pending.append(slot)
            self._held_bytes += sum(map(len, parts))
        else:
            self._take_out(parts)
            if not self._is_handling:
                self._send_ready()

    def reply_one(self, reply: bytes) -> None:
        """The same for a reply in one piece, without a list around it: the commonest of all."""
        if self._pending:
            self.reply([reply])
        else:
            self._out.append(reply)
            self._out_bytes += len(reply)

    def reply_aside(self, parts: ReplyParts) -> None:
        """In front of those that wait for their turn, in the next turn of the loop."""
        self._take_out(parts)
        self.send_ready_soon()

    def reserve(self) -> ReplySlot:
        """A place for the reply to the request being handled, to be filled when the disk has it."""
        slot = ReplySlot(self)
        self._pending.append(slot)
        return slot

    def become_busy(self) -> None:
        """The request being handled waits for something other than the disk: those behind it wait too."""
        assert not self._is_busy, "a busy connection handles no frame"
        self._is_busy = True

    def become_free(self) -> None:
        self._is_busy = False
        self.free_frame()
        self.parked = None
        self._handle_frames()
        self._close_when_drained()

    def on_filled(self, parts: ReplyParts) -> None:
        self._held_bytes += sum(map(len, parts))
        self.send_ready_soon()

    def send_ready_soon(self) -> None:
        # One disk sync fills the slots of many requests: they leave in one write, at the end of this loop turn.
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            self._loop.call_soon(self._send_scheduled)

    def _send_scheduled(self) -> None:
        self._is_send_scheduled = False
        # Sent first: a connection that owed as many replies as it may can take frames again.
        self._send_ready()
        self._handle_frames()
        self._close_when_drained()

    def _send_ready(self) -> None:
        pending = self._pending
        while pending and pending[0].parts is not None:
            parts = pending.popleft().parts
            assert parts is not None
            self._held_bytes -= self._take_out(parts)
        if not self._out:
            return
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if self._transport is None or self._transport.is_closing():
            return
        self._server.bytes_out += size
        if size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._large_bytes = max(self._large_bytes, size)
            self._transport.writelines(out)

    def _take_out(self, parts: ReplyParts) -> int:
        size = sum(map(len, parts))
        self._out.extend(parts)
        self._out_bytes += size
        return size

    # Ending

    def abort(self, reason: str) -> None:
        """Closes a connection whose client broke the protocol. What was ready before is still sent."""
        self._server.log.warning("connection closed", peer=self.caller.address, reason=reason)
        self._server.refused_connections += 1
        self.close()

    def close(self) -> None:
        """Handles nothing more; ends when the client has taken what was written."""
        self._send_ready()
        self.is_ended = True
        self.quiet_sweeps = 0
        if self._transport is not None:
            self._transport.close()

    def cut_off(self) -> None:
        """For a client that does not take what was written: its bytes would be kept for ever."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_gone(self) -> bool:
        return self.is_ended or self._transport is None

    @property
    def unread_bytes(self) -> int:
        """Of replies that the client has not taken yet."""
        in_transport = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if not in_transport:
            self._large_bytes = 0
        # One that was sent in part is in memory as a whole.
        return max(in_transport, self._large_bytes) + self._out_bytes + self._held_bytes

    def reply_room(self) -> int:
        return self._server.reply_room()

    @property
    def is_idle(self) -> bool:
        """Nothing is owed to the client."""
        return not self._is_busy and not self._pending and not self.aside_count

    def drain(self) -> None:
        """Takes no more bytes, answers the requests that it has, then closes."""
        self._is_draining = True
        if self._transport is not None and not self.is_ended:
            self._transport.pause_reading()
            self._is_reading_paused = True
        self._close_when_drained()

    def _close_when_drained(self) -> None:
        if self._is_draining and self.is_idle and not self.is_ended:
            self.close()
