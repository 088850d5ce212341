"""What a handler of the Kafka door is given beside the request, and what it may give back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Final, Protocol

import msgspec

from penstock.codec.wire import Request, Response
from penstock.domain.access import Principal
from penstock.gateways.kafka_login import Login
from penstock.storage.group_commit import Turn


class ClientConnection(Protocol):
    # None where nobody has to log in.
    login: Login | None

    @property
    def is_gone(self) -> bool:
        """Nobody waits for an answer any more. May be asked from any thread."""
        ...

    def reply_room(self) -> int:
        """How many bytes a reply should have at the most, as things are; what must be told is told all the same."""
        ...

    def admit(self, principal: Principal, *, lifetime_ms: int) -> None:
        """The client has proved who it is, for `lifetime_ms` (0: for good)."""
        ...

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Calls once, when the client is gone; at once if it is gone already."""
        ...


class RequestContext(msgspec.Struct, frozen=True):
    principal: Principal
    client_id: str | None
    api_version: int
    peer: str
    # Where the request came from, for what lasts as long as its connection.
    connection: ClientConnection | None = None


class PendingReply(msgspec.Struct, frozen=True):
    """A reply that may not leave before `turn` has ended. `finish` looks at how it ended."""

    turn: Turn
    finish: Callable[[], Response]


class NoReply:
    """The client asked for no answer (acks=0)."""


NO_REPLY: Final = NoReply()
# The same, but the request was refused: as with Kafka the connection ends, or a producer that is never answered would
# never learn that its topic is gone.
HANG_UP: Final = NoReply()

HandlerResult = Response | PendingReply | NoReply | Coroutine[object, object, Response | PendingReply | NoReply]
Handler = Callable[[Request, RequestContext], HandlerResult]
