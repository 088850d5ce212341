from __future__ import annotations

import itertools
import random

import pytest

from penstock.domain.log.fetch_session import (
    FetchContext,
    FetchPartition,
    FetchSessionProblem,
    FetchSessions,
    PartitionKey,
)

NO_ID = bytes(16)
FULL, SESSIONLESS = 0, -1


def want(number: int, offset: int = 0, topic: str = "t", topic_id: bytes = NO_ID) -> FetchPartition:
    return FetchPartition(topic, topic_id, number, offset, bytes_max=1000)


class Node:
    """Partitions with their marks, and fetches as a gateway would serve them."""

    def __init__(self, **limits: int) -> None:
        numbers = itertools.count(1)
        self.sessions = FetchSessions(lambda: next(numbers), **limits)
        self.now_ms = 0
        self.high_watermark: dict[int, int] = {}
        self.log_start: dict[int, int] = {}
        self.failing: set[int] = set()

    def begin(
        self,
        session_id: int,
        epoch: int,
        *partitions: FetchPartition,
        forget: tuple[PartitionKey, ...] = (),
        by_id: bool = False,
        is_replica: bool = False,
    ) -> FetchContext | FetchSessionProblem:
        return self.sessions.begin(
            session_id=session_id,
            epoch=epoch,
            partitions=partitions,
            forgotten=forget,
            by_id=by_id,
            now_ms=self.now_ms,
            is_replica=is_replica,
        )

    def answer(self, context: FetchContext) -> tuple[int, list[int]]:
        answered = [
            partition.partition
            for partition in context.partitions
            if context.keep(
                partition,
                max(0, self.high_watermark.get(partition.partition, 0) - partition.fetch_offset),
                partition.partition in self.failing,
                self.high_watermark.get(partition.partition, 0),
                self.log_start.get(partition.partition, 0),
            )
        ]
        return self.sessions.finish(context, self.now_ms), answered

    def fetch(
        self,
        session_id: int,
        epoch: int,
        *partitions: FetchPartition,
        forget: tuple[PartitionKey, ...] = (),
        by_id: bool = False,
        is_replica: bool = False,
    ) -> tuple[int, list[int]]:
        context = self.begin(session_id, epoch, *partitions, forget=forget, by_id=by_id, is_replica=is_replica)
        assert isinstance(context, FetchContext), context
        return self.answer(context)

    def open(self, *numbers: int, is_replica: bool = False) -> int:
        session_id, answered = self.fetch(0, FULL, *map(want, numbers), is_replica=is_replica)
        assert answered == list(numbers)
        return session_id


# Full fetches


def test_a_fetch_without_a_session_answers_everything_and_makes_none() -> None:
    node = Node()
    assert node.fetch(0, SESSIONLESS, want(1), want(2)) == (0, [1, 2])
    assert len(node.sessions) == 0


def test_a_full_fetch_answers_everything_and_begins_a_session() -> None:
    node = Node()
    session_id, answered = node.fetch(0, FULL, want(1), want(2))
    assert session_id > 0
    assert answered == [1, 2]
    assert (len(node.sessions), node.sessions.partition_count) == (1, 2)


def test_a_full_fetch_ends_the_session_that_it_names() -> None:
    node = Node()
    first = node.open(1)
    second, _ = node.fetch(first, FULL, want(1))
    assert second not in (0, first)
    assert node.begin(first, 1) is FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
    assert node.sessions.partition_count == 1


def test_a_last_fetch_ends_the_session() -> None:
    node = Node()
    session_id = node.open(1)
    assert node.fetch(session_id, SESSIONLESS, want(1)) == (0, [1])
    assert (len(node.sessions), node.sessions.partition_count) == (0, 0)


def test_a_full_fetch_of_nothing_makes_no_session() -> None:
    assert Node().fetch(0, FULL) == (0, [])


def test_a_session_id_is_positive_and_unused() -> None:
    numbers = iter([-1, -1, 2**40, 2**31 - 1])
    sessions = FetchSessions(lambda: next(numbers))
    ids = []
    for _ in range(3):
        context = sessions.begin(session_id=0, epoch=FULL, partitions=[want(1)], by_id=False, now_ms=0)
        assert isinstance(context, FetchContext)
        ids.append(sessions.finish(context, 0))
    assert all(0 < session_id < 2**31 for session_id in ids)
    assert len(set(ids)) == 3


# Incremental fetches


def test_nothing_new_is_answered_with_nothing() -> None:
    node = Node()
    session_id = node.open(1, 2)
    assert node.fetch(session_id, 1) == (session_id, [])
    assert node.fetch(session_id, 2) == (session_id, [])


def test_partitions_with_data_are_answered() -> None:
    node = Node()
    session_id = node.open(1, 2, 3)
    node.high_watermark[2] = 5
    assert node.fetch(session_id, 1) == (session_id, [2])
    assert node.fetch(session_id, 2, want(2, offset=5)) == (session_id, [])


def test_data_is_answered_until_the_client_moves_on() -> None:
    node = Node()
    session_id = node.open(1)
    node.high_watermark[1] = 5
    for epoch in (1, 2, 3):
        assert node.fetch(session_id, epoch) == (session_id, [1])


def test_a_moved_mark_is_told_once() -> None:
    node = Node()
    session_id, _ = node.fetch(0, FULL, want(1, offset=100), want(2, offset=100))
    node.high_watermark[1] = 50
    assert node.fetch(session_id, 1) == (session_id, [1])
    assert node.fetch(session_id, 2) == (session_id, [])
    node.log_start[2] = 3
    assert node.fetch(session_id, 3) == (session_id, [2])
    assert node.fetch(session_id, 4) == (session_id, [])


def test_an_error_is_answered_each_time_and_its_end_once() -> None:
    node = Node()
    session_id = node.open(1, 2)
    node.failing = {1}
    assert node.fetch(session_id, 1) == (session_id, [1])
    assert node.fetch(session_id, 2) == (session_id, [1])
    node.failing = set()
    assert node.fetch(session_id, 3) == (session_id, [1])
    assert node.fetch(session_id, 4) == (session_id, [])


def test_partitions_are_added_changed_and_forgotten() -> None:
    node = Node()
    session_id = node.open(1, 2)
    context = node.begin(session_id, 1, want(2, offset=7), want(3), forget=(("t", 1),))
    assert isinstance(context, FetchContext)
    assert [(each.partition, each.fetch_offset) for each in context.partitions] == [(2, 7), (3, 0)]
    assert node.answer(context) == (session_id, [3])
    assert node.sessions.partition_count == 2


def test_changed_partitions_take_every_field() -> None:
    node = Node()
    session_id = node.open(1)
    update = FetchPartition("t", NO_ID, 1, 7, 2000, leader_epoch=3, last_fetched_epoch=2, log_start=1)
    context = node.begin(session_id, 1, update)
    assert isinstance(context, FetchContext)
    (known,) = context.partitions
    fields = (known.fetch_offset, known.bytes_max, known.leader_epoch, known.last_fetched_epoch, known.log_start)
    assert fields == (7, 2000, 3, 2, 1)
    assert node.answer(context) == (session_id, [])


def test_a_partition_forgotten_and_named_again_is_new() -> None:
    node = Node()
    session_id = node.open(1, 2)
    node.fetch(session_id, 1, forget=(("t", 1),))
    assert node.fetch(session_id, 2, want(1)) == (session_id, [1])


def test_a_session_without_partitions_ends() -> None:
    node = Node()
    session_id = node.open(1)
    assert node.fetch(session_id, 1, forget=(("t", 1), ("t", 9))) == (0, [])
    assert (len(node.sessions), node.sessions.partition_count) == (0, 0)


def test_partitions_with_data_go_to_the_end() -> None:
    node = Node()
    session_id = node.open(1, 2, 3)
    node.high_watermark = {1: 5, 2: 5, 3: 5}
    orders = []
    for epoch in (1, 2, 3):
        context = node.begin(session_id, epoch)
        assert isinstance(context, FetchContext)
        orders.append([each.partition for each in context.partitions])
        # The byte limit lets one partition through.
        for place, partition in enumerate(context.partitions):
            context.keep(partition, 5 if place == 0 else 0, False, 5, 0)
        node.sessions.finish(context, 0)
    assert orders == [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


def test_partitions_served_by_the_first_fetch_go_to_the_end_too() -> None:
    node = Node()
    node.high_watermark[1] = 5
    session_id = node.open(1, 2)
    context = node.begin(session_id, 1)
    assert isinstance(context, FetchContext)
    assert [each.partition for each in context.partitions] == [2, 1]


def test_a_parked_fetch_is_not_disturbed_by_the_next_one() -> None:
    node = Node()
    session_id = node.open(1, 2, 3)
    parked = node.begin(session_id, 1)
    assert isinstance(parked, FetchContext)
    node.high_watermark[3] = 5
    assert node.fetch(session_id, 2, forget=(("t", 2),)) == (session_id, [3])
    assert [each.partition for each in parked.partitions] == [1, 2, 3]
    node.high_watermark[2] = 5
    assert node.answer(parked) == (session_id, [2, 3])
    context = node.begin(session_id, 3)
    assert isinstance(context, FetchContext)
    assert [each.partition for each in context.partitions] == [1, 3]


# Topic ids


def test_a_session_by_id_knows_its_partitions_by_id() -> None:
    node = Node()
    first, second = b"1" * 16, b"2" * 16
    session_id, _ = node.fetch(
        0, FULL, want(0, topic="", topic_id=first), want(0, topic="", topic_id=second), by_id=True
    )
    context = node.begin(session_id, 1, want(0, 9, "", second), forget=((first, 0),), by_id=True)
    assert isinstance(context, FetchContext)
    assert [(each.topic_id, each.fetch_offset) for each in context.partitions] == [(second, 9)]


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    node = Node()
    session_id = node.open(1)
    assert node.begin(session_id, 1, by_id=True) is FetchSessionProblem.FETCH_SESSION_TOPIC_ID_ERROR


# Epochs


def test_an_unknown_session_is_told() -> None:
    assert Node().begin(77, 1) is FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [2, 3, -2, 2**31 - 1])
def test_a_wrong_epoch_is_told_and_changes_nothing(epoch: int) -> None:
    node = Node()
    session_id = node.open(1)
    problem = FetchSessionProblem.INVALID_FETCH_SESSION_EPOCH
    assert node.begin(session_id, epoch, want(2), forget=(("t", 1),)) is problem
    assert node.fetch(session_id, 1) == (session_id, [])


def test_a_repeated_epoch_is_wrong() -> None:
    node = Node()
    session_id = node.open(1)
    node.fetch(session_id, 1)
    assert node.begin(session_id, 1) is FetchSessionProblem.INVALID_FETCH_SESSION_EPOCH


def test_epochs_begin_again_at_one() -> None:
    node = Node()
    session_id = node.open(1)
    node.sessions._sessions[session_id].epoch = 2**31 - 1
    assert node.fetch(session_id, 2**31 - 1) == (session_id, [])
    assert node.fetch(session_id, 1) == (session_id, [])


# Bounds


def test_who_finds_no_slot_is_served_in_full() -> None:
    node = Node(slots_max=2)
    first, second = node.open(1, 2), node.open(1, 2)
    assert node.open(1, 2) == 0
    assert node.fetch(0, FULL, want(1), want(2)) == (0, [1, 2])
    assert node.fetch(first, 1)[0] == first
    assert node.fetch(second, 1)[0] == second


def test_a_session_unused_for_long_gives_way_to_anyone() -> None:
    node = Node(slots_max=2)
    idle, busy = node.open(1, 2, 3), node.open(1, 2, 3)
    node.now_ms = 120_000
    node.fetch(busy, 1)
    assert node.open(1) == 0
    node.now_ms = 120_001
    assert node.open(1) > 0
    assert node.begin(idle, 1) is FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
    assert node.fetch(busy, 2)[0] == busy
    assert node.sessions.evictions == 1


def keep_busy(node: Node, *session_ids: int, until_ms: int) -> None:
    epoch = dict.fromkeys(session_ids, 1)
    while node.now_ms < until_ms:
        node.now_ms += 60_000
        for session_id in session_ids:
            node.fetch(session_id, epoch[session_id])
            epoch[session_id] += 1


def test_a_larger_newcomer_takes_the_slot_of_the_smallest_once_that_has_had_its_time() -> None:
    node = Node(slots_max=2)
    small, large = node.open(1), node.open(1, 2, 3)
    assert node.open(1, 2) == 0
    keep_busy(node, small, large, until_ms=180_000)
    assert node.open(1) == 0
    assert node.open(1, 2) > 0
    assert node.begin(small, 4) is FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
    assert node.fetch(large, 4)[0] == large


def test_a_replica_takes_a_consumers_slot_at_once_but_not_a_replicas() -> None:
    node = Node(slots_max=1)
    consumer = node.open(1, 2, 3)
    replica = node.open(1, is_replica=True)
    assert replica > 0
    assert node.begin(consumer, 1) is FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
    assert node.open(1, 2, is_replica=True) == 0
    keep_busy(node, replica, until_ms=180_000)
    assert node.open(1, 2, 3, 4) == 0
    assert node.open(1, 2, is_replica=True) > 0


def test_a_search_in_vain_is_not_repeated_at_once_but_a_free_slot_is_seen() -> None:
    node = Node(slots_max=1)
    session_id = node.open(1)
    assert node.open(1) == 0
    node.fetch(session_id, SESSIONLESS)
    assert node.open(1) > 0


def test_partitions_are_bounded_over_all_sessions() -> None:
    node = Node(partitions_max=5)
    assert node.open(1, 2, 3) > 0
    assert node.open(1, 2, 3) == 0
    assert node.open(1, 2) > 0
    assert node.open(*range(6)) == 0
    assert node.sessions.partition_count == 5


def test_who_can_never_fit_pushes_nobody_out() -> None:
    node = Node(partitions_max=5)
    node.open(1, 2)
    node.now_ms = 1_000_000
    assert node.open(*range(6)) == 0
    assert (len(node.sessions), node.sessions.evictions) == (1, 0)


def test_a_session_that_grows_beyond_the_bound_ends() -> None:
    node = Node(partitions_max=3)
    session_id = node.open(1, 2)
    problem = node.begin(session_id, 1, want(3), want(4))
    assert problem is FetchSessionProblem.FETCH_SESSION_ID_NOT_FOUND
    assert (len(node.sessions), node.sessions.partition_count) == (0, 0)


# Against a plain model


@pytest.mark.parametrize("seed", range(200))
def test_a_client_that_follows_its_session_knows_everything(seed: int) -> None:
    """A client that believes what it was told last is never wrong about a partition it asked for."""
    chance = random.Random(seed)
    node = Node()
    wanted = {number: want(number) for number in range(chance.randrange(1, 6))}
    believed: dict[int, tuple[int, int, bool]] = {}
    session_id, epoch = 0, FULL
    for _ in range(60):
        for number in range(8):
            if chance.random() < 0.1:
                node.high_watermark[number] = node.high_watermark.get(number, 0) + chance.randrange(3)
            if chance.random() < 0.05:
                node.log_start[number] = node.log_start.get(number, 0) + 1
        node.failing = {number for number in range(8) if chance.random() < 0.05}
        named, forget = {}, []
        if epoch == FULL:
            named = wanted
        else:
            for number in range(8):
                if number in wanted and chance.random() < 0.1:
                    del wanted[number]
                    forget.append(("t", number))
                elif number not in wanted and chance.random() < 0.1:
                    named[number] = wanted[number] = want(number)
                elif number in wanted and wanted[number].fetch_offset < believed[number][0]:
                    named[number] = wanted[number] = want(number, believed[number][0])
        if epoch == FULL:
            believed.clear()
        fresh = [want(number, partition.fetch_offset) for number, partition in named.items()]
        session_id, answered = node.fetch(session_id, epoch, *fresh, forget=tuple(forget))
        for number in answered:
            believed[number] = (
                node.high_watermark.get(number, 0),
                node.log_start.get(number, 0),
                number in node.failing,
            )
        for number in wanted:
            truth = (node.high_watermark.get(number, 0), node.log_start.get(number, 0), number in node.failing)
            assert believed[number] == truth
        epoch = epoch + 1 if session_id else FULL
        assert node.sessions.partition_count == len(wanted) or session_id == 0
