"""What a client of the HTTP door may keep a connection waiting with: bounds that uvicorn leaves to a proxy in front.

    connections     more are answered 503 and closed
    head            a request's line and headers together; longer ones are answered 431
    time            whoever owes the rest of a request sends at least some of it in each period, or is closed; so is
                    who connects and says nothing

A request that came whole costs none of this a timer. Imported when the door opens, as uvicorn is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.base.log_events import get_logger

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse("503 Service Unavailable", f"{self.connections_max} connections are open")
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
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

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_begun, self._is_in_head = False, True
        self._stop_watching()

    # Time

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
