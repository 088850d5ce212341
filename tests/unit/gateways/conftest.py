"""The loop that a node runs on, and a node in memory for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from support.door.conversation import Conversation, TalkingNode, running_node


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The door depends on how its transports call back, so it is proved on the loop that a node runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        yield running


@pytest.fixture
async def talk(node: TalkingNode) -> Conversation:
    return await node.connect()
