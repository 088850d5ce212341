from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.domain.group.assign.range import assign_range
from penstock.domain.group.assign.uniform import assign_uniform
from penstock.domain.group.assign.values import Assignor, MemberFacts
from penstock.domain.group.values import Assignment, Partition

TOPICS = (b"a" * 16, b"b" * 16, b"c" * 16)
ASSIGNORS = [assign_uniform, assign_range]


def members_of(
    wishes: dict[str, tuple[bytes, ...]], previous: dict[str, Assignment] | None = None
) -> dict[str, MemberFacts]:
    held = previous or {}
    return {name: MemberFacts(name, None, topics, held.get(name, ())) for name, topics in wishes.items()}


subscriptions = st.dictionaries(
    st.sampled_from([f"m{number:02}" for number in range(12)]),
    st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda topics: tuple(sorted(topics))),
    min_size=1,
)
counts = st.fixed_dictionaries({topic: st.integers(1, 20) for topic in TOPICS})


@pytest.mark.parametrize("assign", ASSIGNORS, ids=lambda assign: assign.__name__)
@given(wishes=subscriptions, partition_counts=counts)
def test_every_partition_of_a_read_topic_has_one_reader(
    assign: Assignor, wishes: dict[str, tuple[bytes, ...]], partition_counts: dict[bytes, int]
) -> None:
    assigned = assign(members_of(wishes), partition_counts)
    holders: Counter[Partition] = Counter()
    for name, partitions in assigned.items():
        assert list(partitions) == sorted(partitions)
        assert all(topic in wishes[name] for topic, _number in partitions)
        holders.update(partitions)
    read = {topic for topics in wishes.values() for topic in topics}
    assert holders == Counter({(topic, number): 1 for topic in read for number in range(partition_counts[topic])})


@given(names=st.sets(st.integers(0, 40), min_size=1), partition_counts=counts)
def test_uniform_loads_differ_by_at_most_one(names: set[int], partition_counts: dict[bytes, int]) -> None:
    assigned = assign_uniform(members_of({f"m{name}": TOPICS for name in names}), partition_counts)
    loads = [len(partitions) for partitions in assigned.values()]
    assert max(loads) - min(loads) <= 1


@given(
    names=st.sets(st.integers(0, 20), min_size=1),
    gone=st.sets(st.integers(0, 20)),
    new=st.sets(st.integers(21, 30)),
    partition_counts=counts,
)
def test_uniform_moves_as_little_as_can_be(
    names: set[int], gone: set[int], new: set[int], partition_counts: dict[bytes, int]
) -> None:
    before = assign_uniform(members_of({f"m{name:02}": TOPICS for name in names}), partition_counts)
    staying = sorted((names - gone) | new)
    if not staying:
        return
    after = assign_uniform(members_of({f"m{name:02}": TOPICS for name in staying}, before), partition_counts)
    kept = sum(len(set(partitions) & set(before.get(name, ()))) for name, partitions in after.items())
    # Nobody keeps more than its share, and all who can keep that much do.
    share, extra = divmod(sum(partition_counts.values()), len(staying))
    held = sorted((len(before.get(f"m{name:02}", ())) for name in staying), reverse=True)
    best = sum(min(load, share + (position < extra)) for position, load in enumerate(held))
    assert kept == best


@settings(max_examples=50)
@given(wishes=subscriptions, partition_counts=counts)
def test_uniform_leaves_no_move_that_would_help(
    wishes: dict[str, tuple[bytes, ...]], partition_counts: dict[bytes, int]
) -> None:
    assigned = assign_uniform(members_of(wishes), partition_counts)
    for giver, partitions in assigned.items():
        for topic, _number in partitions:
            for taker, topics in wishes.items():
                assert topic not in topics or len(assigned[taker]) + 2 > len(partitions), (giver, taker)


def test_uniform_keeps_what_it_decided_if_nothing_changes() -> None:
    wishes = {"a": TOPICS[:2], "b": TOPICS[1:], "c": TOPICS}
    partition_counts = {TOPICS[0]: 5, TOPICS[1]: 7, TOPICS[2]: 3}
    first = assign_uniform(members_of(wishes), partition_counts)
    assert assign_uniform(members_of(wishes, first), partition_counts) == first


def test_uniform_forgets_partitions_that_are_gone() -> None:
    previous = {"a": ((TOPICS[0], 0), (TOPICS[0], 9))}
    assigned = assign_uniform(members_of({"a": TOPICS[:1]}, previous), {TOPICS[0]: 1})
    assert assigned == {"a": ((TOPICS[0], 0),)}


def test_range_cuts_topics_at_the_same_places() -> None:
    assigned = assign_range(members_of({"a": TOPICS[:2], "b": TOPICS[:2]}), {TOPICS[0]: 3, TOPICS[1]: 3})
    assert [number for _topic, number in assigned["a"]] == [0, 1, 0, 1]
    assert [number for _topic, number in assigned["b"]] == [2, 2]


def test_range_gives_a_static_member_its_place_back() -> None:
    def facts(*named: tuple[str, str]) -> dict[str, MemberFacts]:
        return {name: MemberFacts(name, instance, TOPICS[:1]) for name, instance in named}

    before = assign_range(facts(("x", "one"), ("y", "two")), {TOPICS[0]: 4})
    after = assign_range(facts(("zz", "one"), ("y", "two")), {TOPICS[0]: 4})
    assert after["zz"] == before["x"]
