"""The loop that a node runs on, and a node in memory for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

from support.conversation import Conversation, TalkingNode, running_node


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The door depends on how its transports call back, so it is proved on the loop that a node runs on."""
    return uvloop.EventLoopPolicy()


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        yield running


@pytest.fixture
async def talk(node: TalkingNode) -> Conversation:
    return await node.connect()
