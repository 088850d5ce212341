from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from penstock.net.address import Address, AddressInvalidError, parse_addresses
from penstock.net.connection import Connection, ConnectionOptions
from penstock.net.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    ProtocolMismatchError,
    RequestTimeoutError,
)
from support.client.fake_broker import METADATA, FakeBroker

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def raw_server(handler: Handler) -> AsyncIterator[Address]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


async def test_replies_reach_the_request_they_belong_to() -> None:
    async with FakeBroker({f"t{number}": 1 for number in range(9)}).running() as broker:
        connection = await Connection.open(broker.address, ConnectionOptions())
        wanted = [MetadataRequest(topics=()), MetadataRequest(topics=None), MetadataRequest(topics=())]
        futures = [await connection.send(request, MetadataResponse) for request in wanted]
        assert connection.in_flight == 3
        assert [len((await future).topics) for future in futures] == [0, 9, 0]
        connection.close()


async def test_the_highest_version_that_both_know_is_used() -> None:
    broker = FakeBroker({})
    broker.versions[METADATA] = (0, 5)
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions())
        assert connection.version_of(METADATA) == 5
        connection.close()


async def test_an_older_broker_is_asked_for_its_versions_again_in_version_0() -> None:
    broker = FakeBroker({})
    broker.versions[18] = (0, 0)
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions())
        assert connection.version_of(METADATA) > 5
        connection.close()


async def test_an_api_that_the_broker_lacks_is_named() -> None:
    broker = FakeBroker({})
    del broker.versions[METADATA]
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions())
        with pytest.raises(ProtocolMismatchError, match="does not offer Metadata"):
            await connection.call(MetadataRequest(), MetadataResponse)
        connection.close()


async def test_versions_that_do_not_overlap_are_told() -> None:
    broker = FakeBroker({})
    broker.versions[METADATA] = (90, 99)
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions())
        with pytest.raises(ProtocolMismatchError, match="offers Metadata in versions 90 to 99"):
            await connection.call(MetadataRequest(), MetadataResponse)
        connection.close()


async def test_a_silent_broker_is_given_up_after_the_timeout() -> None:
    broker = FakeBroker({})
    broker.replies[METADATA] = lambda _: None
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions(request_timeout_ms=20))
        with pytest.raises(RequestTimeoutError, match=r"did not answer Metadata within 0\.02 s"):
            await connection.call(MetadataRequest(), MetadataResponse)
        assert connection.is_closed


async def test_a_request_is_not_waited_for_longer_because_of_one_before_it() -> None:
    broker = FakeBroker({})
    silence = asyncio.Event()
    broker.replies[METADATA] = lambda _: None if silence.is_set() else MetadataResponse()
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions(request_timeout_ms=60_000))
        await connection.call(MetadataRequest(), MetadataResponse)
        silence.set()
        async with asyncio.timeout(3):
            with pytest.raises(RequestTimeoutError, match=r"within 0\.02 s"):
                await connection.call(MetadataRequest(), MetadataResponse, timeout_ms=20)


async def test_a_lost_connection_fails_every_request_under_way() -> None:
    broker = FakeBroker({})
    broker.replies[METADATA] = lambda _: None
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions())
        futures = [await connection.send(MetadataRequest(), MetadataResponse) for _ in range(3)]
        broker.drop_connections()
        for future in futures:
            with pytest.raises(ConnectionLostError):
                await future
        with pytest.raises(ConnectionLostError):
            await connection.call(MetadataRequest(), MetadataResponse)


async def test_a_full_pipe_makes_the_next_request_wait() -> None:
    broker = FakeBroker({})
    broker.replies[METADATA] = lambda _: None
    async with broker.running():
        connection = await Connection.open(broker.address, ConnectionOptions(requests_in_flight_max=2))
        for _ in range(2):
            await connection.send(MetadataRequest(), MetadataResponse)
        third = asyncio.get_running_loop().create_task(connection.send(MetadataRequest(), MetadataResponse))
        await asyncio.sleep(0)
        assert not third.done()
        connection.close()
        with pytest.raises(ConnectionLostError):
            await third


async def test_nobody_listening_is_one_sentence() -> None:
    async with FakeBroker({}).running() as broker:
        address = broker.address
    with pytest.raises(BrokerUnreachableError) as caught:
        await Connection.open(address, ConnectionOptions())
    assert str(caught.value) == f"cannot connect to {address}: connection refused"


async def test_a_web_server_is_recognised_as_something_else() -> None:
    async def speak_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw_server(speak_http) as address:
        with pytest.raises(ProtocolMismatchError, match="does not speak the Kafka protocol"):
            await Connection.open(address, ConnectionOptions())


async def test_a_server_that_says_nothing_is_not_waited_for_long() -> None:
    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(say_nothing) as address:
        with pytest.raises(ProtocolMismatchError, match="may not speak the Kafka protocol"):
            await Connection.open(address, ConnectionOptions(handshake_timeout_ms=20))


async def test_a_server_that_hangs_up_is_too_old_or_no_broker() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with raw_server(hang_up) as address:
        with pytest.raises(ProtocolMismatchError, match=r"too old \(before 0\.10\)"):
            await Connection.open(address, ConnectionOptions())


async def test_a_reply_that_nobody_asked_for_ends_the_connection() -> None:
    async with FakeBroker({}).running() as broker:
        connection = await Connection.open(broker.address, ConnectionOptions())
        broker._writers[0].write(b"\0\0\0\4\0\0\0\1")
        await connection.wait_closed()
        with pytest.raises(ProtocolMismatchError, match="nobody asked for"):
            await connection.call(MetadataRequest(), MetadataResponse)


def test_addresses_are_read_as_people_write_them() -> None:
    assert parse_addresses("localhost") == (Address("localhost", 9092),)
    assert parse_addresses("a:1, b:2") == (Address("a", 1), Address("b", 2))
    assert parse_addresses("[::1]:9") == (Address("::1", 9),)
    assert str(Address("::1", 9)) == "[::1]:9"


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:99999", "::1:9092", "[::1", ":9092", "[::1]x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressInvalidError):
        parse_addresses(text)
