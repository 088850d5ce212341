from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import StoreDamagedError
from penstock.cluster.store.sqlite import SqliteStore

SOURCE = Path(__file__).parents[3] / "src"

TAKER = """
import asyncio, sys
from penstock.base.clock import SystemClock
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.sqlite import SqliteStore

async def main(path):
    ids = ProducerIds(await SqliteStore.open(path, clock=SystemClock()), KeySpace(), block_ids=3)
    while True:
        print(await ids.take(), flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.sqlite", clock=SystemClock())
    yield store
    await store.close()


async def test_ids_count_up_through_blocks(store: SqliteStore) -> None:
    ids = ProducerIds(store, KeySpace(), block_ids=3)
    assert ids.take_now() is None
    assert [await ids.take() for _ in range(8)] == list(range(8))


async def test_a_block_is_handed_out_without_the_store(store: SqliteStore) -> None:
    ids = ProducerIds(store, KeySpace())
    await ids.take()
    await store.close()
    assert [ids.take_now() for _ in range(999)] == list(range(1, 1000))
    assert ids.take_now() is None


async def test_two_nodes_never_share_an_id(store: SqliteStore) -> None:
    nodes = [ProducerIds(store, KeySpace(), block_ids=4) for _ in range(3)]
    taken = await asyncio.gather(*(node.take() for node in nodes for _ in range(50)))
    assert len(set(taken)) == 150


async def test_waiting_takers_share_one_refill(store: SqliteStore) -> None:
    ids = ProducerIds(store, KeySpace())
    assert sorted(await asyncio.gather(*(ids.take() for _ in range(20)))) == list(range(20))
    assert (await store.range("")).revision == 1


def test_a_killed_node_never_hands_out_an_id_twice(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    taken: list[int] = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", TAKER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        ) as process:
            assert process.stdout is not None
            taken += [int(process.stdout.readline()) for _ in range(20)]
            process.kill()
            *whole, _ = process.stdout.read().split("\n")
            taken += [int(line) for line in whole]
    assert len(set(taken)) == len(taken) >= 60


async def test_a_damaged_counter_is_not_guessed(store: SqliteStore) -> None:
    await store.txn(puts={KeySpace().producer_ids: b"many"})
    with pytest.raises(StoreDamagedError, match="producer_ids"):
        await ProducerIds(store, KeySpace()).take()


async def test_ids_are_never_handed_out_again_although_the_store_has_forgotten(store: SqliteStore) -> None:
    ids = ProducerIds(store, KeySpace(), block_ids=2)
    assert [await ids.take() for _ in range(2)] == [0, 1]
    await store.txn(deletes=[KeySpace().producer_ids])
    with pytest.raises(StoreDamagedError, match="is at 0, and was at 2 already"):
        await ids.take()
