"""Whatever comes in by the internal door, at whatever stage: nobody else is disturbed, and it is no fault of ours."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from structlog.testing import capture_logs

from penstock.codec import kafka as wire
from support.cluster.replicas import ScriptedReplicas, come_in, node_with_internal_door, say_hello
from support.codec.wire_messages import random_message
from support.door.conversation import Conversation, TalkingNode

CONNECTIONS = 60
# What comes behind a frame that ended the connection is not looked at.
FRAMES_EACH = 6
Stage = Callable[[TalkingNode], Awaitable[Conversation]]


async def stranger(node: TalkingNode) -> Conversation:
    return await node.connect(door="cluster")


async def greeted(node: TalkingNode) -> Conversation:
    talk = await come_in(node)
    assert (await say_hello(talk)).error_code == 0
    return talk


def hostile_frame(chance: Random, apis: list[wire.Api]) -> bytes:
    api = chance.choice(apis)
    version = chance.randint(api.version_min, api.version_max)
    body = wire.encode_request(random_message(api.request, version, chance), version, 7, chance.choice(("x", None)))[4:]
    match chance.randrange(4):
        case 0:
            body = chance.randbytes(chance.randrange(1, 200))
        case 1:
            place = chance.randrange(len(body))
            body = body[:place] + chance.randbytes(chance.randrange(1, 5)) + body[place + 1 :]
        case 2:
            body = body[: chance.randrange(1, len(body))]
        case _:
            pass
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("stage", [stranger, come_in, greeted], ids=["before login", "before hello", "greeted"])
async def test_no_frame_is_a_fault_of_the_nodes(stage: Stage) -> None:
    chance = Random(stage.__name__)
    async with node_with_internal_door(ScriptedReplicas()) as node:
        apis = list(wire.APIS.values())
        if stage is greeted:
            apis = [api for api in apis if api.is_internal or api.name in ("Fetch", "ListOffsets", "WriteTxnMarkers")]
        bystander = await greeted(node)
        client = await node.connect()
        with capture_logs() as events:
            for _ in range(CONNECTIONS):
                talk = await stage(node)
                talk.send_bytes(b"".join(hostile_frame(chance, apis) for _ in range(FRAMES_EACH)))
                await talk.hang_up()
            await bystander.expect_open()
            await client.expect_open()
        assert not [event for event in events if event["event"] == "request failed"]
