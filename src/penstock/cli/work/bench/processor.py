"""What the node's processor spends on a message: asked from the node itself, so that a remote one can be measured too.

The difference of two answers, before and after a load, divided by its messages. A node that does something else
meanwhile counts that as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from penstock.cli.failure import CommandError
from penstock.cli.work.bench.http import BenchConnection
from penstock.codec.http.node import NodeFacts

_decode: Final = msgspec.json.Decoder(NodeFacts).decode
Outcome = TypeVar("Outcome")


class ProcessorTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """Microseconds of the broker for each message; None: the node did not tell."""

    send_us: float | None = None
    receive_ack_us: float | None = None
    whole_us: float | None = None


class BrokerProcessor:
    def __init__(self, http: str) -> None:
        self._http = http

    async def seconds(self) -> float | None:
        """Since the node began; None from one without an HTTP door, without this answer, or for whom it may not be."""
        try:
            connection = await BenchConnection.open(self._http)
        except CommandError:
            return None
        try:
            return _decode(await connection.send("GET", "/v1/node", b"")).cpu_seconds
        except CommandError:
            return None
        finally:
            connection.close()

    async def measure(self, messages: int, load: Callable[[], Awaitable[Outcome]]) -> tuple[Outcome, float | None]:
        """What the load came to, and microseconds for each of its messages."""
        before = await self.seconds()
        outcome = await load()
        after = await self.seconds()
        if before is None or after is None:
            return outcome, None
        return outcome, round((after - before) / messages * 1_000_000, 1)


def together(send_us: float | None, receive_ack_us: float | None) -> ProcessorTime | None:
    if send_us is None or receive_ack_us is None:
        return None
    return ProcessorTime(send_us, receive_ack_us, round(send_us + receive_ack_us, 1))
