"""Records that somebody deleted: gone on every replica in sync before anybody is told so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.deletion import delete_before, deleted_everywhere
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from support.replication.trio import PATIENCE_SECONDS, Trio


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    metadata = await SqliteStore.open(
        str(tmp_path / "metadata.sqlite"), clock=SystemClock(), is_secret=KeySpace().is_secret
    )
    made = Trio(metadata)
    await made.start()
    await made.create()
    await made.produce(1, b"a", b"b", b"c")
    yield made
    await made.stop()
    await metadata.close()


async def delete(trio: Trio, offset: int) -> Commitment:
    shell = trio.nodes[1].shell()
    start = await delete_before(shell, offset)
    assert start == offset
    waiting = deleted_everywhere(shell, start)
    assert waiting is not None
    return waiting


async def test_deletion_is_kept_when_every_replica_in_sync_has_followed_it(trio: Trio) -> None:
    waiting = await delete(trio, 2)
    assert await asyncio.wait_for(waiting.kept(), PATIENCE_SECONDS)
    assert [trio.nodes[node].shell().log_start for node in (1, 2, 3)] == [2, 2, 2]


async def test_deletion_waits_for_a_replica_that_says_nothing_until_it_is_out_of_the_set(trio: Trio) -> None:
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2, 3))
    trio.wire.cut(3)
    waiting = await delete(trio, 1)
    await trio.until(lambda: trio.nodes[2].shell().log_start == 1)
    assert not waiting.is_known, "a replica that may be elected has the records"
    # What nobody waits for keeps nobody in the set.
    trio.append(1, b"d")
    assert await asyncio.wait_for(waiting.kept(), PATIENCE_SECONDS)
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    trio.wire.mend()
    await trio.until(lambda: trio.nodes[3].shell().log_start == 1)


async def test_deletion_of_a_leader_that_was_replaced_is_not_confirmed(trio: Trio) -> None:
    trio.wire.cut(1)
    waiting = await delete(trio, 3)
    await trio.elect(2, in_sync=(2, 3))
    assert not await asyncio.wait_for(waiting.kept(), PATIENCE_SECONDS)
    assert waiting.loss is Loss.LEADERSHIP
