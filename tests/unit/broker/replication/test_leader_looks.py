"""What a leader may tell those who only look: its followers prove by their fetches that nobody else leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.base.clock import SystemClock
from penstock.broker.replication.group import log_names
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.domain.replication.exchange import LogFetch, ReplicaFetch
from penstock.domain.replication.progress import LOOKS_MS_MAX
from support.replication.trio import Trio

PAUSE_MS = 5_000


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    metadata = await SqliteStore.open(
        str(tmp_path / "metadata.sqlite"), clock=SystemClock(), is_secret=KeySpace().is_secret
    )
    made = Trio(metadata)
    await made.start()
    yield made
    await made.stop()
    await metadata.close()


async def test_looks_are_answered_as_soon_as_the_followers_have_turned_to_the_leader(trio: Trio) -> None:
    await trio.create()
    await trio.until(lambda: trio.nodes[1].shell().may_look)
    assert not trio.nodes[2].shell().may_look, "it follows"


async def test_idle_followers_are_heard_often_enough(trio: Trio) -> None:
    await trio.create()
    shell, clock = trio.nodes[1].shell(), trio.nodes[1].clock
    await trio.until(lambda: shell.may_look)
    began_ms, refused = clock.monotonic_ms(), 0

    def is_over() -> bool:
        nonlocal refused
        refused += not shell.may_look
        return clock.monotonic_ms() - began_ms > 1.5 * LOOKS_MS_MAX

    await trio.until(is_over)
    assert refused == 0
    asked = [fetch for node, _, fetch in trio.wire.fetches if node == 2]
    assert len(asked) < 3 * 2 * 10, "and not so often that an idle node would be busy"


async def test_leader_that_was_paused_answers_no_look_until_it_has_heard_everybody(trio: Trio) -> None:
    await trio.create()
    leader = trio.nodes[1]
    await trio.until(lambda: leader.shell().may_look)
    leader.clock.ahead_ms += PAUSE_MS
    assert not leader.shell().may_look, "at once, whatever timers have not run yet"
    await trio.until(lambda: leader.shell().may_look)


async def test_leader_cut_off_from_one_follower_answers_no_look(trio: Trio) -> None:
    await trio.create()
    leader = trio.nodes[1]
    await trio.until(lambda: leader.shell().may_look)
    trio.wire.cut(3)
    await trio.until(lambda: not leader.shell().may_look)
    # It leaves the set: nobody can be elected who was not heard.
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    await trio.until(lambda: leader.shell().may_look)


async def test_leader_that_was_replaced_and_does_not_know_answers_no_look(trio: Trio) -> None:
    await trio.create()
    old, new = trio.nodes[1], trio.nodes[2]
    await trio.until(lambda: old.shell().may_look)
    await old.nodes.stop()
    await old.topics.stop()
    await trio.elect(2, in_sync=(2, 3), seen_by=2, told=(2, 3))
    await trio.until(lambda: new.shell().may_look)
    assert old.shell().is_leading, "as far as it knows"
    await trio.until(lambda: not old.shell().may_look)


async def test_alone_the_session_decides(trio: Trio) -> None:
    await trio.create((1, 2), min_insync_replicas="1")
    await trio.until(lambda: trio.nodes[1].shell().may_look)
    await trio.stop(2)
    await trio.put(replace(trio.stated(1).state, in_sync=(1,)), seen_by=1)
    assert trio.nodes[1].shell().may_look
    trio.nodes[1].is_held = False
    assert not trio.nodes[1].shell().may_look


async def test_fetch_that_was_sent_before_a_pause_proves_nothing(trio: Trio) -> None:
    """A process that wakes reads first what others had sent it long ago."""
    await trio.create((1, 2))
    leader, follower = trio.nodes[1], trio.nodes[2]
    await trio.until(lambda: leader.shell().may_look)
    trio.wire.cut(2)
    await trio.until(lambda: not leader.shell().may_look)
    feed, (name, *_) = leader.replication.feed, log_names(leader.shell().log.home.topic_id, 0)

    async def fetch(session_id: int, epoch: int) -> int:
        first = LogFetch(log=name, leader_epoch=0, offset=0, last_epoch=-1, log_start=0, bytes_max=1)
        asked = ReplicaFetch(
            node_id=2,
            life=follower.life,
            session_id=session_id,
            session_epoch=epoch,
            wait_ms=0,
            bytes_max=1 << 20,
            logs=[] if session_id else [first],
        )
        reply = await feed.fetch(asked)
        assert reply.problem is None
        return reply.session_id

    session_id = await fetch(0, 0)
    assert not leader.shell().may_look, "it may have been sent at any time"
    await fetch(session_id, 1)
    assert leader.shell().may_look, "it was made when the first answer had left"
    leader.clock.ahead_ms += PAUSE_MS
    await fetch(session_id, 2)
    assert not leader.shell().may_look, "made before the pause, and read after it"
    await fetch(session_id, 3)
    assert leader.shell().may_look
