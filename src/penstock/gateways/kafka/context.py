"""What a handler of the Kafka door is given beside the request, and what it may give back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Final, Protocol

import msgspec

from penstock.base.long_work import LongWork, Pace, Steps
from penstock.broker.partition.commitment import Commitment
from penstock.codec.kafka import Request, Response
from penstock.domain.security.access import Principal
from penstock.gateways.caller import Caller
from penstock.gateways.kafka.login import Login


class ClientConnection(Protocol):
    # None where nobody has to log in.
    login: Login | None
    # The address and port on this side: what the client connected to.
    local_address: tuple[str, int] | None

    @property
    def is_gone(self) -> bool:
        """Nobody waits for an answer any more. May be asked from any thread."""
        ...

    def reply_room(self) -> int:
        """How many bytes a reply should have at the most, as things are; what must be told is told all the same."""
        ...

    def keep_frame(self) -> None:
        """The request being handled is read further after its handler has returned: its bytes must stay."""
        ...

    def admit(self, principal: Principal, *, lifetime_ms: int) -> None:
        """The client has proved who it is, for `lifetime_ms` (0: for good)."""
        ...

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Calls once, when the client is gone; at once if it is gone already."""
        ...


class RequestContext(msgspec.Struct, frozen=True):
    caller: Caller
    client_id: str | None
    api_version: int
    # Where the request came from, for what lasts as long as its connection.
    connection: ClientConnection | None = None
    # Where long work stands in line with that of others.
    work: LongWork = msgspec.field(default_factory=LongWork)

    def pace(self) -> Pace:
        return self.work.pace()

    @property
    def local_address(self) -> tuple[str, int] | None:
        return None if self.connection is None else self.connection.local_address


class PendingReply(msgspec.Struct, frozen=True):
    """A reply that may not leave before every one of `commitments` is known. `finish` looks at how they ended."""

    commitments: list[Commitment]
    finish: Callable[[], Response]


class NoReply:
    """The client asked for no answer (acks=0)."""


NO_REPLY: Final = NoReply()
# The same, but the request was refused: as with Kafka the connection ends, or a producer that is never answered would
# never learn that its topic is gone.
HANG_UP: Final = NoReply()


class Aside(msgspec.Struct, frozen=True):
    """Work that nobody else has to wait for: more requests of the connection are taken, and their replies may leave
    before this one's. Only for who matches replies by their ids, as nodes do; Kafka's clients want them in order."""

    work: Coroutine[object, object, Response]


Answered = Response | PendingReply | NoReply
# Steps are for work that is long at times: what is done in the first slice is answered at once.
HandlerResult = Answered | Steps[Response] | Coroutine[object, object, Answered] | Aside
Handler = Callable[[Request, RequestContext], HandlerResult]
