"""Whole nodes on one metadata store: which id and directory is whose, and what they are to each other's topics."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.base.clock import SystemClock
from penstock.base.config_error import ConfigError
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.role import Following, Leading
from penstock.broker.topic.not_here import NotHere
from penstock.cluster.catalog.placing import InvalidReplication
from penstock.cluster.catalog.topic_image import StoredTopic
from penstock.cluster.catalog.topics import Created, NewTopic
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import decode, encode
from penstock.codec.batch.records import Record, build_batch
from penstock.config import ClusterConfig, Config, NodeConfig
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, TalkingNode
from support.loop_turns import LoopTurns

KEYS = KeySpace()


def configured(root: Path, name: str, node_id: int) -> Config:
    return Config(
        node=NodeConfig(id=node_id, data_dir=str(root / name), metadata=f"sqlite:{root / 'metadata.sqlite'}"),
        kafka=KafkaServerConfig(listen=ANY_PORT),
        http=HttpServerConfig(listen="off"),
        cluster=ClusterConfig(listen=ANY_PORT),
    )


async def started(root: Path, name: str, node_id: int) -> TalkingNode:
    node = TalkingNode(configured(root, name, node_id))
    await node.start()
    return node


async def until(is_so: Callable[[], bool]) -> None:
    """The stores look for each other's changes a few times a second."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110  what it waits for is another node's, and has no event here
            await asyncio.sleep(0.01)


async def test_second_node_gets_the_next_id_and_keeps_it(tmp_path: Path) -> None:
    first = await started(tmp_path, "a", 1)
    second = await started(tmp_path, "b", 0)
    assert (first.parts.site.node_id, second.parts.site.node_id) == (1, 2)
    await second.stop()
    second = await started(tmp_path, "b", 0)
    assert second.parts.site.node_id == 2
    await second.stop()
    await first.stop()


async def test_topic_of_two_replicas_is_led_by_one_and_moves_when_its_leader_stops(tmp_path: Path) -> None:
    first = await started(tmp_path, "a", 1)
    second = await started(tmp_path, "b", 2)
    nodes = {1: first, 2: second}
    await until(lambda: not isinstance(first.catalog._placing.replication(2), InvalidReplication))
    await until(lambda: not isinstance(second.catalog._placing.replication(2), InvalidReplication))
    (created,) = await first.catalog.create_topics([NewTopic("orders", 2, replication=2)])
    assert isinstance(created, Created)
    await until(lambda: second.broker.topic("orders") is not None)
    leaders = [state.state.leader for _, state in first.catalog.states(created.topic.topic_id)]
    assert sorted(leaders) == [1, 2], "each leads one"
    for index, leader in enumerate(leaders):
        follower = 3 - leader
        assert nodes[leader].shell("orders", index).role == Leading(0, is_replicated=True)
        assert nodes[follower].shell("orders", index).role == Following(0, leader)
        found = nodes[follower].broker.find("orders", index)
        assert isinstance(found, NotHere)
        assert found.leader == leader
    await second.stop()
    moved = leaders.index(2)
    assert first.shell("orders", moved).role == Leading(1, is_replicated=True)
    await first.stop()


async def test_topics_of_an_older_version_are_adopted_by_the_node_that_has_them(tmp_path: Path) -> None:
    node = await started(tmp_path, "a", 7)
    await node.create_topic("orders", 3)
    await node.stop()
    store = await SqliteStore.open(str(tmp_path / "metadata.sqlite"), clock=SystemClock())
    entry = await store.get(KEYS.topic("orders"))
    assert entry is not None
    stored = decode(entry.key, entry.value, StoredTopic)
    # As a version wrote it that knew no members.
    before = StoredTopic(stored.topic_id, stored.partition_count, stored.overrides, stored.created_ms)
    members = [entry.key for entry in (await store.range(KEYS.members)).entries]
    await store.txn(puts={entry.key: encode(before)}, deletes=members)
    await store.close()
    (tmp_path / "a" / "identity").unlink()
    node = await started(tmp_path, "a", 7)
    assert [shell.role for shell in node.broker.topic("orders").shells] == [Leading(0)] * 3  # type: ignore[union-attr]
    entry = await node.catalog._store.get(KEYS.topic("orders"))
    assert entry is not None
    (run,) = decode(entry.key, entry.value, StoredTopic).placed
    assert (run.replicas, run.count) == ((7,), 3)
    # A node that comes later has no part in it.
    other = await started(tmp_path, "b", 0)
    found = other.broker.find("orders", 0)
    assert isinstance(found, NotHere)
    assert found.leader == 7
    await other.stop()
    await node.stop()


async def test_two_nodes_of_one_id_are_told_of_both(tmp_path: Path) -> None:
    first = await started(tmp_path, "a", 1)
    with pytest.raises(ConfigError, match=r"node 1 is running already at 127\.0\.0\.1:\d+, so it cannot run at"):
        await started(tmp_path, "b", 1)
    await first.stop()


async def test_directory_of_another_node_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    await (await started(tmp_path, "a", 1)).stop()
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="is that of node 1, and this node is given the id 2; give it the id 1"):
        await started(tmp_path, "a", 2)
    assert (tmp_path / "a" / "identity").read_bytes() == before[tmp_path / "a" / "identity"]
    # It is nobody's fault, and it starts as who it is.
    await (await started(tmp_path, "a", 0)).stop()


async def test_copied_directory_is_refused(tmp_path: Path) -> None:
    first = await started(tmp_path, "a", 1)
    await first.stop()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = await started(tmp_path, "a", 1)
    with pytest.raises(ConfigError, match="their data directories are copies of one"):
        await started(tmp_path, "b", 1)
    await first.stop()


def metadata_files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.glob("metadata*")}


async def test_metadata_older_than_the_directory_are_refused(tmp_path: Path) -> None:
    node = await started(tmp_path, "a", 1)
    await node.stop()
    kept = metadata_files(tmp_path)
    await (await started(tmp_path, "a", 1)).stop()
    for path in metadata_files(tmp_path):
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    with pytest.raises(
        ConfigError, match="put back from an older copy; put the newest in place, or begin anew from this"
    ):
        await started(tmp_path, "a", 1)


async def test_metadata_behind_what_was_acted_on_are_refused(tmp_path: Path) -> None:
    """Also where no life began since: a topic was made, and the node served it."""
    node = await started(tmp_path, "a", 1)
    kept = metadata_files(tmp_path)
    await node.create_topic("orders")
    acted_on = node.catalog.revision
    await node.stop()
    for path in metadata_files(tmp_path):
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    with pytest.raises(ConfigError, match="of the metadata, and they are at") as refused:
        await started(tmp_path, "a", 1)
    told = re.search(r"has acted on revision (\d+) of", str(refused.value))
    assert told is not None
    assert int(told[1]) >= acted_on


# Logs that nobody assigned


def strays(root: Path, name: str, topic_id: bytes) -> list[str]:
    directory = root / name / "logs" / topic_id.hex()
    return sorted(path.name.partition(".")[0] for path in directory.iterdir() if path.name.endswith(".stray"))


async def moved(node: TalkingNode, topic_id: bytes, index: int, replicas: tuple[int, ...]) -> None:
    stated = node.catalog.state(topic_id, index)
    assert stated is not None
    state = replace(stated.state, leader=replicas[0], life=7, epoch=1, replicas=replicas, in_sync=replicas)
    result = await node.catalog._store.txn(puts={KEYS.partition(topic_id, index): encode(state)})
    await node.catalog.wait_for(result.revision)


async def written(node: TalkingNode, topic: str, partitions: int) -> None:
    for index in range(partitions):
        outcome = node.shell(topic, index).append(memoryview(bytearray(build_batch([Record(value=b"x")]))))
        assert isinstance(outcome, Appended)
        await outcome.commitment.kept()


async def test_log_of_a_partition_that_moved_away_is_set_aside_and_begun_anew(tmp_path: Path) -> None:
    node = await started(tmp_path, "a", 1)
    topic_id = await node.create_topic("orders", 2)
    await written(node, "orders", 2)
    shell = node.shell("orders", 1)
    async with node.broker._store.checkpoints.turn:
        await moved(node, topic_id, 1, (9,))
        assert shell.is_closed
        found = node.broker.find("orders", 1)
        assert isinstance(found, NotHere)
        assert found.leader == 9
        # It comes back while its log is still being set aside.
        await moved(node, topic_id, 1, (1,))
        assert [each.index for each in node.broker.topic("orders").shells] == [0]  # type: ignore[union-attr]
    await until(lambda: len(node.broker.topic("orders").shells) == 2)  # type: ignore[union-attr]
    assert strays(tmp_path, "a", topic_id) == ["1"]
    assert [node.shell("orders", index).log.log_end for index in (0, 1)] == [1, 0]
    await node.stop()
    node = await started(tmp_path, "a", 1)
    assert [node.shell("orders", index).log.log_end for index in (0, 1)] == [1, 0]
    assert strays(tmp_path, "a", topic_id) == ["1"]
    await node.stop()


async def test_log_that_moved_away_meanwhile_is_set_aside_at_the_start(tmp_path: Path) -> None:
    node = await started(tmp_path, "a", 1)
    topic_id = await node.create_topic("orders", 2)
    await written(node, "orders", 2)
    await node.stop()
    other = await started(tmp_path, "b", 2)
    await moved(other, topic_id, 1, (2,))
    node = await started(tmp_path, "a", 1)
    await until(lambda: strays(tmp_path, "a", topic_id) == ["1"])
    assert node.shell("orders", 0).log.log_end == 1
    # It goes with its topic.
    await other.catalog.delete_topic("orders")
    await until(lambda: not (tmp_path / "a" / "logs" / topic_id.hex()).exists())
    await node.stop()
    await other.stop()


# While logs are opened


@pytest.mark.heavy
async def test_loop_turns_while_thousands_of_logs_are_opened(tmp_path: Path) -> None:
    """By that its session is renewed: a node whose loop stands still is taken for dead."""
    node = await started(tmp_path, "a", 1)
    await node.create_topic("orders", 10_000)
    await node.stop()
    async with LoopTurns() as turns:
        node = await started(tmp_path, "a", 1)
    await node.stop()
    assert turns.longest_s < 0.1
