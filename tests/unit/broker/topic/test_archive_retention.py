"""`retention.after.archive`: what is not archived stays, however old; the node says that it waits, and for whom."""

from __future__ import annotations

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.topic.upkeep import HELD_WARNING_MS
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.offset_commit import OffsetCommitResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import DAY_MS, batch, outcome, produce
from support.group import phrases as group_phrases

GROUP = "penstock-archive"
WEEKS_MS = 60 * DAY_MS


async def write(node: TalkingNode, clock: ManualClock, count: int) -> Conversation:
    """A segment for each message."""
    talk = await node.connect()
    for number in range(count):
        clock.advance_ms(1000)
        sent = batch(b"x" * 900, timestamp_ms=clock.now_ms())
        assert outcome(await talk.ask(produce("orders", sent), ProduceResponse, 9)) == (ErrorCode.NONE, number)
    return talk


async def retain(node: TalkingNode) -> int:
    """Where the log starts after retention; what goes waits for a checkpoint that knows of what stays."""
    await node.broker._upkeep.apply_retention()
    await node.broker._store.checkpoint()
    await node.broker._upkeep.apply_retention()
    return node.shell("orders").log_start


async def archive(talk: Conversation, offset: int, group: str = GROUP) -> None:
    reply = await talk.ask(group_phrases.commit({0: offset}, group=group), OffsetCommitResponse, 8)
    assert group_phrases.commit_codes(reply) == [ErrorCode.NONE]


def held_bytes(node: TalkingNode) -> float | None:
    return node.parts.site.metrics.get_sample_value("penstock_retention_held_bytes", {"topic": "orders"})


@pytest.mark.parametrize("setting", ["retention_ms", "retention_bytes"])
async def test_retention_stops_where_the_archive_ends(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        settings = {"segment_bytes": "1024", "durability": "interval", "retention_after_archive": "true"}
        await node.create_topic("orders", **settings, **{setting: "2000"})
        talk = await write(node, clock, 5)
        assert await retain(node) == 0
        assert held_bytes(node) == sum(segment.size for segment in node.shell("orders").log.segments[:2])
        told = capsys.readouterr()
        assert (told.out + told.err).count("retention waits for the archive") == 1
        await archive(talk, 1)
        assert await retain(node) == 1
        await archive(talk, 5)
        assert await retain(node) == 2
        assert held_bytes(node) == 0


async def test_the_warning_comes_again_after_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders", segment_bytes="1024", retention_ms="1000", retention_after_archive="true")
        await write(node, clock, 3)
        clock.advance_ms(DAY_MS)
        await retain(node)
        clock.advance_ms(HELD_WARNING_MS)
        await retain(node)
        told = capsys.readouterr()
        assert (told.out + told.err).count("retention waits for the archive") == 2


async def test_another_group_may_be_the_archives() -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic(
            "orders", segment_bytes="1024", retention_ms="1000", retention_after_archive="true",
            retention_archive_group="mine",
        )  # fmt: skip
        talk = await write(node, clock, 3)
        clock.advance_ms(DAY_MS)
        await archive(talk, 3)
        assert await retain(node) == 0
        await archive(talk, 3, group="mine")
        assert await retain(node) == 3


async def test_positions_of_an_archive_do_not_expire() -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders", retention_after_archive="true")
        talk = await write(node, clock, 3)
        await archive(talk, 3)
        await archive(talk, 3, group="somebody-else")
        clock.advance_ms(WEEKS_MS)
        await node.parts.groups._expire()
        assert node.parts.groups.committed_offset(GROUP, "orders", 0) == 3
        assert node.parts.groups.committed_offset("somebody-else", "orders", 0) is None
