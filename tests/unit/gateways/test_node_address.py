from __future__ import annotations

import msgspec
import pytest

from penstock.base.config_error import ConfigError
from penstock.codec.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from penstock.gateways.kafka.door import KafkaDoor
from penstock.gateways.node_address import (
    NodeAddress,
    advertised_address,
    host_to_tell,
    is_wildcard,
    join_address,
    reachable_host,
)
from support.door.conversation import running_node


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_wildcard_is_never_told(host: str) -> None:
    assert is_wildcard(host)
    address = NodeAddress(1, host_to_tell(host, None), 9092, "cluster")
    assert address.told_to(("192.0.2.7", 19092)).host == "192.0.2.7"
    assert address.told_to(("192.0.2.7", 19092)).port == 19092


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "::1", "broker.example"])
def test_one_address_is_told_to_everybody(host: str) -> None:
    address = NodeAddress(1, host_to_tell(host, None), 9092, "cluster")
    assert address.told_to(("192.0.2.7", 19092)) == address


def test_advertised_address_goes_before_what_is_listened_on() -> None:
    assert host_to_tell("0.0.0.0", "broker.example") == "broker.example"
    assert host_to_tell("127.0.0.1", "broker.example") == "broker.example"


@pytest.mark.parametrize(
    ("local", "told"),
    [("::ffff:192.0.2.7", "192.0.2.7"), ("fe80::1%eth0", "fe80::1"), ("2001:db8::7", "2001:db8::7")],
)
def test_address_is_told_as_another_machine_writes_it(local: str, told: str) -> None:
    assert reachable_host(local) == told


def test_ipv6_address_has_brackets_before_its_port() -> None:
    assert [join_address("::1", 80), join_address("127.0.0.1", 80)] == ["[::1]:80", "127.0.0.1:80"]


@pytest.mark.parametrize("address", ["0.0.0.0:9092", "[::]:9092", ":9092", "broker.example:0"])
def test_advertised_address_that_nobody_can_connect_to_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="not an address that a client could connect to"):
        advertised_address(address)


def test_advertised_address_is_host_and_port() -> None:
    assert advertised_address("") is None
    assert advertised_address("broker.example:19092") == ("broker.example", 19092)
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        advertised_address("broker.example")


async def test_every_answer_with_an_address_has_that_of_the_connection() -> None:
    async with running_node() as node:
        # No test listens beyond loopback; a door that listens on every address has none to tell.
        door = node.doors[KafkaDoor.name]
        assert isinstance(door, KafkaDoor)
        door.node_address = msgspec.structs.replace(door.node_address, host=host_to_tell("0.0.0.0", None))
        talk = await node.connect()
        there = node.addresses["kafka"]
        metadata = await talk.ask(MetadataRequest(), MetadataResponse)
        cluster = await talk.ask(DescribeClusterRequest(), DescribeClusterResponse)
        old = await talk.ask(FindCoordinatorRequest(key="g"), FindCoordinatorResponse, version=3)
        new = await talk.ask(FindCoordinatorRequest(coordinator_keys=("g",)), FindCoordinatorResponse)
    told = [*metadata.brokers, *cluster.brokers, old, *new.coordinators]
    assert [join_address(each.host, each.port) for each in told] == [there] * 4
