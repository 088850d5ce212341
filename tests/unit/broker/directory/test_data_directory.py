"""Do directories and metadata tell of the same topics? And what is made of directories when the metadata are lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.directory.agreement import (
    DataDirectory,
    MetadataMisfitError,
    compare,
    removed_topics,
    stored_topics,
)
from penstock.broker.directory.rebuild import apply_plan, make_plan
from penstock.broker.directory.sources import Sources, read_sources
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.cluster.catalog.topic_image import RemovedTopic, Topic
from penstock.cluster.catalog.topics import Created, TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import StoreFullError, TxnResult
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import decode, encode
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.files.directory import DirectoryFiles
from penstock.storage.repair.directory import TopicOnDisk, read_cluster_id, survey_topics
from penstock.storage.store import LogStore
from support.storage.log_desk import LogDesk

KEYS = KeySpace()
A, B = bytes(15) + b"\x0a", bytes(15) + b"\x0b"
NOW_MS = 1_800_000_000_000


def topic(name: str, topic_id: bytes, partition_count: int = 1) -> Topic:
    return Topic(name, topic_id, partition_count, {}, 0)


def test_topics_and_their_companions_fit() -> None:
    on_disk = [TopicOnDisk(A, "a", (0, 2)), TopicOnDisk(companion_id(A, CompanionKind.QUEUES), "a.queues", (2,))]
    assert compare(on_disk, {A: topic("a", A, 3), B: topic("never written to", B)}, []).misfits == ()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (TopicOnDisk(B, "b", (0,)), "the metadata do not know it"),
        (TopicOnDisk(B, None, (0,)), "the metadata do not know it"),
        (TopicOnDisk(A, "c", (0,)), "the metadata call it 'a'"),
        (TopicOnDisk(A, "a", (0, 3)), "it has a partition 3, and by the metadata 3 partitions"),
        (TopicOnDisk(companion_id(A, CompanionKind.SCHEDULE), "a.schedule", (5,)), "it has a partition 5"),
    ],
)
def test_what_does_not_fit_is_named(found: TopicOnDisk, said: str) -> None:
    (misfit,) = compare([found], {A: topic("a", A, 3)}, []).misfits
    assert misfit.reason.startswith(said)


def test_files_of_a_deleted_topic_are_leftovers() -> None:
    beside = companion_id(B, CompanionKind.QUEUES)
    found = compare([TopicOnDisk(B, "b", (0,)), TopicOnDisk(beside, "b.queues", (0,))], {}, [B])
    assert found.misfits == ()
    assert set(found.leftovers) == {B, beside}


class World:
    """A data directory with metadata in it, looked after as a node does, without the rest of the node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = str(root / "metadata.sqlite")
        self.clock = ManualClock()

    async def __aenter__(self) -> World:
        self.desk = LogStore.open(DirectoryFiles(), str(self.root), StorageConfig(free_bytes_min=0), self.clock)
        self.metadata = await SqliteStore.open(self.path, clock=self.clock)
        watch = MetadataWatch(self.metadata, KEYS)
        self.catalog = TopicCatalog(watch, clock=self.clock, new_topic_id=iter([A, B]).__next__)
        self.directory = DataDirectory(self.desk, self.metadata, KEYS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.catalog.stop()
        await self.metadata.close()
        self.desk.close(clean=False)

    async def begin(self) -> None:
        await self.directory.check()
        await self.metadata.txn(puts={KEYS.cluster_id: b'"mine"'})
        await self.directory.claim("mine")
        self.metadata.keep_copy()
        await self.catalog.start()

    def write_to(self, name: str, topic_id: bytes) -> None:
        log = self.desk.open_log(name, topic_id, 0, LogConfig())
        LogDesk.append(_Writer(self.clock), b"x", log=log)  # type: ignore[arg-type]

    def remove_metadata(self, *, copy: bool) -> None:
        for each in self.root.glob("metadata.sqlite*"):
            if copy or not each.name.endswith(".copy"):
                each.unlink()


class _Writer:
    """As much of a LogDesk as an append needs."""

    batch = LogDesk.batch

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock


async def make_two_topics(root: Path) -> None:
    async with World(root) as world:
        await world.begin()
        for name in ("a", "b"):
            assert isinstance(await world.catalog.create_topic(name, 3, {"retention.ms": "1234567"}), Created)
        world.write_to("a", A)


async def test_a_directory_that_the_metadata_lost_refuses_the_start_and_stays(tmp_path: Path) -> None:
    await make_two_topics(tmp_path)
    (tmp_path / "cluster").unlink()
    world = World(tmp_path)
    world.remove_metadata(copy=True)
    async with world:
        with pytest.raises(
            MetadataMisfitError, match=rf"1 of 1 directories .*{A.hex()} \(topic a\): the metadata do not"
        ):
            await world.directory.check()
    assert [found.name for found in survey_topics(DirectoryFiles(), str(tmp_path))] == ["a"]


async def test_new_metadata_are_refused_although_no_topic_has_a_record(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.begin()
    world.remove_metadata(copy=True)
    async with World(tmp_path) as world:
        with pytest.raises(MetadataMisfitError, match="belongs to the cluster mine, and the metadata are of none"):
            await world.directory.check()


async def test_a_deletion_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    await make_two_topics(tmp_path)
    async with World(tmp_path) as world:
        await world.begin()
        # Killed before the directory was touched.
        await world.catalog.delete_topic("a")
    async with World(tmp_path) as world:
        await world.directory.check()
        assert survey_topics(DirectoryFiles(), str(tmp_path)) == []
        await world.catalog.forget_all_removed()
        assert (await world.metadata.range(KEYS.removed_topics)).entries == ()


class _FullStore(SqliteStore):
    async def txn(self, *_args: object, **_options: object) -> TxnResult:
        raise StoreFullError("no room")


async def test_a_full_disk_does_not_keep_a_deletion_from_being_finished_or_the_node_from_starting(
    tmp_path: Path,
) -> None:
    await make_two_topics(tmp_path)
    async with World(tmp_path) as world:
        await world.begin()
        await world.catalog.delete_topic("a")
        # As a version wrote it that knew one node alone, whose matter it is then.
        (note,) = (await world.metadata.range(KEYS.removed_topics)).entries
        await world.metadata.txn(puts={note.key: encode(RemovedTopic("a"))})
    async with World(tmp_path) as world:
        world.metadata.__class__ = _FullStore
        await world.directory.check()
        assert survey_topics(DirectoryFiles(), str(tmp_path)) == []
    async with World(tmp_path) as world:
        await world.directory.check()
        values = {entry.key: entry.value for entry in (await world.metadata.range(KEYS.root)).entries}
        assert removed_topics(values, KEYS) == []


def rebuilt(root: Path, path: str) -> Sources:
    files = DirectoryFiles()
    belongs_to = read_cluster_id(files, str(root))
    sources = read_sources(path, belongs_to=belongs_to, keys=KEYS)
    made = make_plan(sources, survey_topics(files, str(root)), belongs_to=belongs_to, keys=KEYS, now_ms=NOW_MS)
    apply_plan(made, files, root=str(root), path=path, aside=str(root / "aside"), keys=KEYS)
    return sources


async def topics_after(root: Path) -> dict[str, Topic]:
    async with World(root) as world:
        await world.directory.check()
        values = {entry.key: entry.value for entry in (await world.metadata.range(KEYS.root)).entries}
        assert decode(KEYS.cluster_id, values[KEYS.cluster_id], str) == "mine"
        assert decode(KEYS.producer_ids, values[KEYS.producer_ids], int) >= NOW_MS
        return {found.name: found for found in stored_topics(values, KEYS).values()}


async def test_everything_comes_back_from_the_copy(tmp_path: Path) -> None:
    await make_two_topics(tmp_path)
    World(tmp_path).remove_metadata(copy=False)
    sources = await asyncio.to_thread(rebuilt, tmp_path, str(tmp_path / "metadata.sqlite"))
    assert sources.is_complete
    found = await topics_after(tmp_path)
    assert {name: (each.topic_id, each.partition_count) for name, each in found.items()} == {"a": (A, 3), "b": (B, 3)}
    assert found["a"].overrides == {"retention.ms": "1234567"}


async def test_without_a_copy_topics_come_back_from_their_directories_and_keep_everything(tmp_path: Path) -> None:
    await make_two_topics(tmp_path)
    World(tmp_path).remove_metadata(copy=True)
    sources = await asyncio.to_thread(rebuilt, tmp_path, str(tmp_path / "metadata.sqlite"))
    assert not sources.is_complete
    found = await topics_after(tmp_path)
    assert {name: each.topic_id for name, each in found.items()} == {"a": A}
    assert found["a"].overrides == {"retention.ms": "-1", "retention.bytes": "-1"}


def plan_of(*on_disk: TopicOnDisk, is_whole: bool = False) -> tuple[list[str], list[str], int]:
    """Names of the topics that are made, ids that are set aside, how many losses there are."""
    sources = Sources({}, 1, (), is_whole=is_whole, is_complete=is_whole)
    plan = make_plan(sources, on_disk, belongs_to="mine", keys=KEYS, now_ms=NOW_MS).plan
    return [each.name for each in plan.added], [each.topic_id for each in plan.set_aside], len(plan.losses)


def test_no_topic_is_made_of_a_directory_without_a_name_or_of_two_with_one() -> None:
    assert plan_of(TopicOnDisk(A, None, (0,))) == ([], [A.hex()], 2)
    assert plan_of(TopicOnDisk(A, "a", (0,)), TopicOnDisk(B, "a", (0,))) == ([], [A.hex(), B.hex()], 3)


def test_companions_go_where_their_topic_goes() -> None:
    beside = companion_id(A, CompanionKind.QUEUES)
    assert plan_of(TopicOnDisk(A, "a", (0,)), TopicOnDisk(beside, "a.queues", (0,))) == (["a"], [], 2)
    added, aside, _ = plan_of(TopicOnDisk(A, None, (0,)), TopicOnDisk(beside, "a.queues", (0,)))
    assert (added, set(aside)) == ([], {A.hex(), beside.hex()})


def test_coordinators_get_the_partitions_that_they_always_have() -> None:
    sources = Sources({}, 1, ())
    on_disk = [TopicOnDisk(A, CONSUMER_OFFSETS, (2,))]
    plan = make_plan(sources, on_disk, belongs_to=None, keys=KEYS, now_ms=NOW_MS).plan
    assert [(each.name, each.partition_count) for each in plan.added] == [(CONSUMER_OFFSETS, 8)]


def test_whole_metadata_that_fit_need_no_rebuild() -> None:
    sources = Sources({KEYS.cluster_id: b'"mine"'}, 1, (), is_whole=True, is_complete=True)
    assert make_plan(sources, [], belongs_to="mine", keys=KEYS, now_ms=NOW_MS).plan.is_needless


def test_producer_ids_of_metadata_that_are_older_than_the_directories_are_not_given_out_again() -> None:
    entries = {KEYS.cluster_id: b'"mine"', KEYS.producer_ids: b"2000"}
    sources = Sources(entries, 1, (), is_whole=True, is_complete=True)
    made = make_plan(sources, [TopicOnDisk(A, "a", (0,))], belongs_to="mine", keys=KEYS, now_ms=NOW_MS)
    assert [each.name for each in made.plan.added] == ["a"]
    assert decode(KEYS.producer_ids, made.entries[KEYS.producer_ids], int) >= NOW_MS
