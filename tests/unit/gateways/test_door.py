"""What every door does: it opens, says where, takes nobody new, lets everybody go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.base.config_error import ConfigError
from penstock.broker.parts import Parts
from penstock.domain.security.access import AllowAll
from penstock.gateways.admission import Admission
from penstock.gateways.door import Door, is_off, listen_on
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.http_port import HttpPort
from penstock.gateways.kafka.door import KafkaDoor
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.gateways.metrics_page import MetricsConfig, MetricsPage
from penstock.gateways.node_address import split_address
from support.door.conversation import running_node


def kafka_door(parts: Parts, listen: str) -> Door:
    return KafkaDoor(
        parts, Admission(AllowAll()), KafkaServerConfig(listen=listen), cluster_id="c", node_entries=lambda _address: ()
    )


def http_port(parts: Parts, listen: str) -> Door:
    return HttpPort(parts, Admission(AllowAll()), HttpServerConfig(listen=listen))


def metrics_page(parts: Parts, listen: str) -> Door:
    return MetricsPage(MetricsConfig(listen=listen), parts.site.metrics, lambda: True, list)


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    """Of a node without doors."""
    async with running_node(kafka=KafkaServerConfig(listen="off")) as node:
        yield node.parts


MakeDoor = Callable[[Parts, str], Door]
every_door = pytest.mark.parametrize("make", [kafka_door, http_port, metrics_page])


async def is_reachable(address: str) -> bool:
    host, port = split_address(address, "test")
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


@every_door
async def test_door_is_reachable_from_open_until_it_stops_listening(parts: Parts, make: MakeDoor) -> None:
    door = make(parts, "127.0.0.1:0")
    assert door.address == ""
    await door.open()
    address = door.address
    assert await is_reachable(address)
    await door.stop_listening()
    # One turn of the loop for the kernel to be told.
    await asyncio.sleep(0)
    assert not await is_reachable(address)
    async with asyncio.timeout(10):
        await door.drain()


@every_door
async def test_door_that_never_opened_can_be_closed(parts: Parts, make: MakeDoor) -> None:
    door = make(parts, "127.0.0.1:0")
    await door.stop_listening()
    await door.drain()
    assert door.address == ""


@every_door
async def test_address_that_is_taken_is_told(parts: Parts, make: MakeDoor) -> None:
    taken = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    door = make(parts, f"127.0.0.1:{port}")
    try:
        with pytest.raises(ConfigError, match=rf"{door.name}: cannot listen on 127\.0\.0\.1:{port}: address already"):
            await door.open()
        assert door.address == ""
    finally:
        taken.close()
        await door.stop_listening()
        await door.drain()


async def test_address_without_a_port_is_told() -> None:
    async def start(_host: str, _port: int) -> None:
        raise AssertionError("nothing to listen on")

    with pytest.raises(ConfigError, match="http: 'localhost' is not HOST:PORT"):
        await listen_on(start, "localhost", "http")


@pytest.mark.parametrize(("listen", "is_closed"), [("", True), ("off", True), ("127.0.0.1:0", False)])
def test_door_without_an_address_is_off(listen: str, is_closed: bool) -> None:
    assert is_off(listen) is is_closed
