"""What is asked again, and what is an answer."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.patience import ask_patiently
from penstock.codec.kafka import ErrorCode
from penstock.net.address import Address
from penstock.net.connection import Connection, ConnectionOptions
from penstock.net.errors import BrokerError, BrokerUnreachableError, ConnectionLostError, ProtocolMismatchError


class Oracle:
    """Raises these in turn, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self._failures:
            raise self._failures.pop(0)
        return "yes"


async def test_a_broker_that_is_away_or_not_ready_is_asked_again() -> None:
    oracle = Oracle(
        BrokerUnreachableError("away"),
        ConnectionLostError("gone"),
        BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last one is not over"),
    )
    assert await ask_patiently(oracle.ask, patience_ms=10_000) == "yes"
    assert oracle.asked == 4


async def test_a_refusal_is_an_answer() -> None:
    oracle = Oracle(BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"))
    with pytest.raises(BrokerError, match="authorization"):
        await ask_patiently(oracle.ask, patience_ms=10_000)
    assert oracle.asked == 1


async def test_patience_ends() -> None:
    oracle = Oracle(BrokerUnreachableError("away"), BrokerUnreachableError("still away"))
    with pytest.raises(BrokerUnreachableError, match=r"^away"):
        await ask_patiently(oracle.ask, patience_ms=0)


async def test_a_broker_that_goes_down_at_the_handshake_counts_as_away() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        address = Address(*server.sockets[0].getsockname()[:2])
        with pytest.raises(BrokerUnreachableError) as caught:
            await Connection.open(address, ConnectionOptions())
    assert isinstance(caught.value, ProtocolMismatchError), "for whoever asked the wrong server"
