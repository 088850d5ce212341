"""HTTP at nodes that lead: who names another one is believed, who says nothing is left for the next."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

CALL_SECONDS: Final = 20.0
# One for each node, and one for whom the last one named.
TRIES_MAX: Final = 4
UNAVAILABLE: Final = 503
_LED_BY: Final = re.compile(r"led by node (\d+)")


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: Any

    @property
    def is_done(self) -> bool:
        return 200 <= self.status < 300


class LeaderDoor:
    """`ask` goes where it went last; None or 503: nobody knows whether it was done."""

    def __init__(self, addresses: Callable[[], Mapping[int, str]]) -> None:
        self._addresses = addresses
        self._node_id = min(addresses())
        self._connections: dict[int, http.client.HTTPConnection] = {}

    def ask(self, method: str, path: str, body: object = None) -> Answer | None:
        """Once. Who is to be asked next time is known afterwards."""
        try:
            connection = self._connection()
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException):
            self._drop()
            self._node_id = self._next()
            return None
        answer = Answer(reply.status, _decoded(data))
        if answer.status == UNAVAILABLE:
            named = _LED_BY.search(str(answer.body))
            addresses = self._addresses()
            self._node_id = int(named[1]) if named and int(named[1]) in addresses else self._next()
        return answer

    def insist(self, method: str, path: str, body: object = None) -> Answer | None:
        """For what may be asked twice: goes on until somebody answers for it."""
        answer = None
        for _ in range(TRIES_MAX):
            answer = self.ask(method, path, body)
            if answer is not None and answer.status != UNAVAILABLE:
                break
        return answer

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _next(self) -> int:
        node_ids = sorted(self._addresses())
        return next((each for each in node_ids if each > self._node_id), node_ids[0])

    def _connection(self) -> http.client.HTTPConnection:
        if self._node_id not in self._connections:
            address = self._addresses()[self._node_id]
            self._connections[self._node_id] = http.client.HTTPConnection(address, timeout=CALL_SECONDS)
        return self._connections[self._node_id]

    def _drop(self) -> None:
        connection = self._connections.pop(self._node_id, None)
        if connection is not None:
            connection.close()


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data.decode(errors="replace")
