"""What a client of the HTTP door may keep a connection waiting with: bounds that uvicorn leaves to a proxy in front.

    connections     more are answered 503 and closed
    head            a request's line and headers together; longer ones are answered 431
    time            whoever owes the rest of a request sends at least some of it in each period, or is closed; so is
                    who connects and says nothing

A request that came whole costs none of this a timer. A reply that is known as a whole leaves in one write: uvicorn's
way is two, and each of them wakes the client. Imported when the door opens, as uvicorn is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from penstock.base.log_events import get_logger
from penstock.gateways.http.asgi import REPLY, Send

log = get_logger("http")

# A browser sends 1 KiB; proxies take 8 to 32.
HEAD_BYTES_MAX: Final = 64 * 1024
# In each period a client sends so much or the whole rest: 35 kbit/s, which any line has that is alive.
PERIOD_SECONDS: Final = 15.0
PERIOD_BYTES_MIN: Final = 64 * 1024
_REFUSAL: Final = "HTTP/1.1 {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    connections_max = 10_000
    period_seconds = PERIOD_SECONDS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._is_begun = False
        self._is_in_head = True
        self._head_bytes = 0
        # In this period.
        self._came_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None
        # When its last reply was complete, by the loop's time.
        self._idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse("503 Service Unavailable", f"{self.connections_max} connections are open")
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super()._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._came_bytes += len(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            # The last piece may be the beginning of a body for the most part.
            if self._head_bytes - len(data) > HEAD_BYTES_MAX:
                self._refuse("431 Request Header Fields Too Large", f"more than {HEAD_BYTES_MAX} bytes of headers")
                return
        super().data_received(data)
        if self._alarm is None and not self._is_answering and not self.transport.is_closing():
            self._watch()

    # What the parser says

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_begun = True

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["extensions"] = _EXTENSIONS  # type: ignore[typeddict-item]  # a function, for brevity
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_begun, self._is_in_head = False, True
        self._stop_watching()

    # Time

    def on_response_complete(self) -> None:
        """As uvicorn's, but an idle connection is looked at from time to time: a timer for each reply, stopped by the
        next request, costs more than the request's parser."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._await_request(self.timeout_keep_alive)

    def _await_request(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._is_begun or self._is_answering:
            return  # its reply begins the next wait
        left_seconds = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_seconds > 0:
            self._await_request(left_seconds)
        elif not self.transport.is_closing():
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        """A request finds the timer of an earlier reply, and lets it be."""

    @property
    def _is_answering(self) -> bool:
        """It is our turn: the request came whole."""
        return not self._is_begun and self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        self._came_bytes = 0
        self._alarm = self.loop.call_later(self.period_seconds, self._look)

    def _stop_watching(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _look(self) -> None:
        self._alarm = None
        # Who is not read from cannot send.
        if self._came_bytes >= PERIOD_BYTES_MIN or self.flow.read_paused:
            self._watch()
        elif not self._is_answering:
            log.info("connection closed", reason=f"no whole request, {self._came_bytes} bytes in a period")
            self.transport.close()

    def _refuse(self, status: str, reason: str) -> None:
        log.warning("connection closed", reason=reason)
        self.transport.write(_REFUSAL.format(status).encode())
        self.transport.close()


async def reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """The whole of it, as `RequestResponseCycle.send` would write it in two pieces. Names are in lower case; a reply
    with a body says its length."""
    # Found by what it gave the application: a way from the request to its cycle would be a circle for the collector.
    cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    assert not cycle.response_started, "one request has one reply"
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
    if not cycle.keep_alive:
        lines.append(b"connection: close\r\n")
    head = b"".join(lines)
    # Whoever could write a line end into a header could write a reply of his own.
    assert head.count(b"\n") == head.count(b"\r") == len(lines), "a header has a line end in it"
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, body))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


_EXTENSIONS: Final = {REPLY: reply}
