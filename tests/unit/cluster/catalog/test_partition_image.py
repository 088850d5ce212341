"""Who leads a partition: where its topic was first placed, until it has a key of its own."""

from __future__ import annotations

import pytest

from penstock.cluster.catalog.first_placement import Run, fill_runs, join_runs, make_runs, replicas_of
from penstock.cluster.catalog.partition_image import PartitionChanged, PartitionImage, Stated
from penstock.cluster.catalog.topic_image import StoredTopic, TopicImage
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Entry, Event, Range, StoreDamagedError
from penstock.cluster.store.values import encode
from penstock.domain.replication.state import NO_LEADER, PartitionState, first_state

KEYS = KeySpace()
A, B = b"a" * 16, b"b" * 16
PLACED = (Run((1, 2), life=5, count=2), Run((2, 1), life=9))
ELECTED = PartitionState(leader=2, life=9, epoch=1, replicas=(1, 2), in_sync=(2,))


class World:
    def __init__(self, *, owner: int | None = None) -> None:
        self.topics = TopicImage(KEYS, owner_of_unplaced=owner)
        self.image = PartitionImage(KEYS, self.topics)

    def put_topic(self, stored: StoredTopic, name: str = "orders") -> None:
        self.topics.apply([Event(KEYS.topic(name), encode(stored), 1, 1)])

    def put(self, topic_id: bytes, index: int, state: PartitionState | None, revision: int) -> list[PartitionChanged]:
        value = None if state is None else encode(state)
        return self.image.apply([Event(KEYS.partition(topic_id, index), value, revision, revision)])


@pytest.fixture
def world() -> World:
    world = World()
    world.put_topic(StoredTopic(A, 3, placed=PLACED))
    return world


def test_partition_without_a_key_stands_where_it_was_placed(world: World) -> None:
    first, then = Stated(first_state((1, 2), 5), 0), Stated(first_state((2, 1), 9), 0)
    assert list(world.image.of_topic(A)) == [(0, first), (1, first), (2, then)]
    assert world.image.get(A, 2) == then
    assert [world.image.get(A, -1), world.image.get(A, 3), world.image.get(B, 0)] == [None] * 3


def test_change_has_the_revision_that_the_next_one_compares(world: World) -> None:
    assert world.put(A, 1, ELECTED, 7) == [PartitionChanged(A, 1, Stated(ELECTED, 7))]
    assert world.image.get(A, 1) == Stated(ELECTED, 7)
    assert dict(world.image.of_topic(A))[1] == Stated(ELECTED, 7)
    # The same state at another revision is news: a compare-and-set has to name it.
    assert world.put(A, 1, ELECTED, 8) == [PartitionChanged(A, 1, Stated(ELECTED, 8))]
    assert world.put(A, 1, ELECTED, 8) == []


def test_partition_whose_key_is_gone_stands_where_it_was_placed_again(world: World) -> None:
    world.put(A, 1, ELECTED, 7)
    assert world.put(A, 1, None, 8) == [PartitionChanged(A, 1, Stated(first_state((1, 2), 5), 0))]


def test_nobody_hears_of_orphans(world: World) -> None:
    assert world.put(B, 10, ELECTED, 7) == []
    world.put(B, 9, ELECTED, 8)
    world.put(A, 0, ELECTED, 9)
    assert world.image.orphans() == [KEYS.partition(B, 9), KEYS.partition(B, 10)]
    world.put(B, 9, None, 10)
    world.put(B, 10, None, 11)
    assert world.image.orphans() == []


def test_range_leads_to_what_is_in_it(world: World) -> None:
    world.put(A, 0, ELECTED, 7)
    world.put(A, 1, ELECTED, 8)
    current = Range((Entry(KEYS.partition(A, 1), encode(ELECTED), 8, 9),), 12)
    changes = world.image.apply(world.image.events_to(current))
    assert changes == [
        PartitionChanged(A, 0, Stated(first_state((1, 2), 5), 0)),
        PartitionChanged(A, 1, Stated(ELECTED, 9)),
    ]


def test_value_that_cannot_be_read_changes_nothing(world: World) -> None:
    good = Event(KEYS.partition(A, 0), encode(ELECTED), 7, 7)
    with pytest.raises(StoreDamagedError):
        world.image.apply([good, Event(KEYS.partition(A, 1), b"[]", 7, 7)])
    assert world.image.get(A, 0) == Stated(first_state((1, 2), 5), 0)


def test_growth_is_seen_at_once(world: World) -> None:
    assert world.image.get(A, 3) is None
    world.put_topic(StoredTopic(A, 4, placed=(*PLACED, Run((2,)))))
    assert world.image.get(A, 3) == Stated(first_state((2,), 0), 0)


@pytest.mark.parametrize("owner", [3, None])
def test_what_a_node_alone_made_belongs_to_the_one_that_has_it(owner: int | None) -> None:
    world = World(owner=owner)
    world.put_topic(StoredTopic(A, 2))
    stated = world.image.get(A, 1)
    assert stated is not None
    if owner is None:
        assert (stated.state.leader, stated.state.replicas) == (NO_LEADER, ())
    else:
        assert stated == Stated(first_state((3,), 0), 0)


def test_neighbours_placed_alike_are_one_run() -> None:
    lives = {1: 5, 2: 9}
    assert make_runs([(1, 2), (1, 2), (2, 1)], lives) == PLACED
    assert make_runs([(1,)] * 10_000, lives) == (Run((1,), 5, 10_000),)
    assert replicas_of(PLACED) == [(1, 2), (1, 2), (2, 1)]
    assert join_runs(PLACED, (Run((2, 1), 9), Run((1, 2), 5))) == (PLACED[0], Run((2, 1), 9, 2), Run((1, 2), 5))
    # Another life is another placement, though the nodes are the same.
    assert join_runs(PLACED, (Run((2, 1), 10),)) == (*PLACED, Run((2, 1), 10))
    assert join_runs((), PLACED) == PLACED
    assert fill_runs(PLACED, 3, None) == PLACED
    assert fill_runs(PLACED, 4, None) is None
    assert fill_runs((), 4, 1) == (Run((1,), count=4),)


def test_run_of_a_node_alone_takes_little_room() -> None:
    stored = StoredTopic(A, 10_000, placed=make_runs([(1,)] * 10_000, {1: 5}))
    assert len(encode(stored)) < 200
