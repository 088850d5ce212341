"""What a node is made of, in which order it is started and ended, and that a test may hand it other parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.assembly import Assembly
from penstock.base.clock import ManualClock
from penstock.base.config_error import ConfigError
from penstock.broker.parts import Parts
from penstock.config import Config, NodeConfig
from penstock.domain.security.access import Operation, Principal, Resource
from penstock.gateways.door import Door
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.gateways.metrics_page import MetricsConfig
from penstock.node import Node
from penstock.storage.files import MemoryFiles

ANY_PORT = "127.0.0.1:0"
IN_MEMORY = NodeConfig(data_dir="memory", memory=True)
CLOSED = Config(node=IN_MEMORY, kafka=KafkaServerConfig(listen="off"), http=HttpServerConfig(listen="off"))


class FakeDoor:
    """Writes down what is done to it."""

    def __init__(self, name: str, story: list[str], *, can_open: bool = True) -> None:
        self.name = name
        self.address = ""
        self._story = story
        self._can_open = can_open

    async def open(self) -> None:
        self._story.append(f"{self.name} opens")
        if not self._can_open:
            raise ConfigError(f"{self.name}: cannot listen")
        self.address = f"{self.name}.test:1"

    async def stop_listening(self) -> None:
        self._story.append(f"{self.name} stops listening")

    async def drain(self) -> None:
        self._story.append(f"{self.name} drains")


def node_with(*doors: FakeDoor) -> Node:
    def make_doors(_config: Config, _parts: Parts, _cluster_id: str) -> Sequence[Door]:
        return doors

    return Node(CLOSED, Assembly(doors=make_doors))


async def test_doors_open_in_order_and_close_in_reverse() -> None:
    story: list[str] = []
    node = node_with(FakeDoor("front", story), FakeDoor("back", story))
    await node.start()
    assert node.addresses == {"front": "front.test:1", "back": "back.test:1"}
    assert story == ["front opens", "back opens"]
    await node.stop()
    assert story[2:] == ["back stops listening", "back drains", "front stops listening", "front drains"]


async def test_door_that_cannot_open_closes_those_before_it() -> None:
    story: list[str] = []
    node = node_with(FakeDoor("front", story), FakeDoor("back", story, can_open=False), FakeDoor("side", story))
    with pytest.raises(ConfigError, match="back: cannot listen"):
        await node.start()
    assert story[:2] == ["front opens", "back opens"]
    assert story[-2:] == ["front stops listening", "front drains"]
    assert "side opens" not in story


async def test_everything_below_the_doors_works_before_one_opens() -> None:
    served: list[bool] = []

    def look(_config: Config, parts: Parts, cluster_id: str) -> Sequence[Door]:
        served.append(parts.broker.is_healthy and bool(cluster_id))
        return ()

    node = Node(CLOSED, Assembly(doors=look))
    await node.start()
    await node.stop()
    assert served == [True]


@pytest.mark.parametrize(
    ("kafka", "http", "metrics", "names"),
    [("off", ANY_PORT, "off", {"http"}), (ANY_PORT, "off", ANY_PORT, {"kafka", "metrics"}), ("", "", "", set())],
)
async def test_door_that_is_off_stays_closed(kafka: str, http: str, metrics: str, names: set[str]) -> None:
    config = Config(
        node=IN_MEMORY,
        kafka=KafkaServerConfig(listen=kafka),
        http=HttpServerConfig(listen=http),
        metrics=MetricsConfig(listen=metrics),
    )
    node = Node(config)
    await node.start()
    addresses = node.addresses
    await node.stop()
    assert addresses.keys() == names
    assert all(not address.endswith(":0") for address in addresses.values())


async def test_node_is_made_of_what_it_is_handed() -> None:
    clock, files = ManualClock(), MemoryFiles()

    class Nobody:
        def authorize(self, _principal: Principal, _operation: Operation, _resource: Resource) -> bool:
            return False

    nobody = Nobody()
    node = Node(CLOSED, Assembly(clock=lambda: clock, files=lambda _node: files, authorizer=lambda *_: nobody))
    await node.start()
    try:
        assert node.parts.site.clock is clock
        assert node.parts.authorizer is nobody
        assert files.lock("memory/lock") is None, "the store was opened on other files"
    finally:
        await node.stop()
