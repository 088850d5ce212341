"""One lookup for partitions: the shell of one that this node leads, or why there is none and who has it."""

from __future__ import annotations

import pytest

from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.role import Following, Idle, Leading, Role
from penstock.broker.topic.not_here import Absence, NotHere, no_topic
from penstock.gateways.http.door import not_here as told_by_http
from penstock.gateways.kafka.errors import ABSENCE_CODES
from penstock.gateways.sqs.context import not_here as told_by_sqs
from support.door.conversation import running_node

FOLLOWING = Following(epoch=4, leader=2)
ELSEWHERE = NotHere(Absence.NOT_LED_HERE, "orders-1 is led by node 2, in epoch 4", 2, 4)
NOBODY = NotHere(Absence.NO_LEADER, "orders-1 has no leader: its replicas are gone")
NO_TOPIC = NotHere(Absence.NO_TOPIC, "there is no topic 'missing'")


async def test_only_a_partition_that_this_node_leads_is_found() -> None:
    async with running_node() as node:
        await node.create_topic("orders", 2)
        broker = node.broker
        topic = broker.topic("orders")
        assert topic is not None
        assert broker.find("orders", 1) is node.shell("orders", 1)
        assert broker.find("missing", 0) == NO_TOPIC
        for index in (-1, 2):
            assert not topic.has_partition(index)
            gone = NotHere(Absence.NO_PARTITION, f"topic 'orders' has no partition {index}")
            assert broker.find("orders", index) == topic.find(index) == gone
        roles: list[tuple[Role, NotHere]] = [(FOLLOWING, ELSEWHERE), (Idle("its replicas are gone"), NOBODY)]
        for role, answer in roles:
            node.shell("orders", 1).take_role(role)
            assert broker.find("orders", 1) == answer
            assert topic.has_partition(1), "there is one, on some node"
            assert (topic.partition_count, len(topic.shells)) == (2, 2)
            assert topic.led() == [node.shell("orders", 0)]
        node.shell("orders", 1).take_role(Leading(5))
        assert broker.find("orders", 1) is node.shell("orders", 1)


def test_name_of_any_length_is_cut_where_names_end() -> None:
    assert len(no_topic("x" * 1_000_000).detail) < 300


@pytest.mark.parametrize(
    ("found", "believed", "problem"),
    [
        (NO_TOPIC, 3, ReadProblem.UNKNOWN_PARTITION),
        (ELSEWHERE, -1, ReadProblem.NOT_LEADER),
        (ELSEWHERE, 3, ReadProblem.FENCED_EPOCH),
        (ELSEWHERE, 4, ReadProblem.NOT_LEADER),
        (ELSEWHERE, 5, ReadProblem.UNKNOWN_EPOCH),
    ],
)
def test_reader_is_told_the_same_as_by_a_shell(found: NotHere, believed: int, problem: ReadProblem) -> None:
    assert found.read_problem(believed) is problem


def test_writer_is_told_whether_it_is_worth_asking_another_node() -> None:
    assert [found.refusal().refusal for found in (NO_TOPIC, ELSEWHERE)] == [Refusal.OFFLINE, Refusal.NOT_LEADER]


def test_every_door_has_a_word_for_each_reason() -> None:
    assert set(ABSENCE_CODES) == set(Absence)
    for found, status in ((NO_TOPIC, 404), (ELSEWHERE, 503), (NOBODY, 503)):
        http = told_by_http(found)
        assert (http.problem.status, http.problem.detail) == (status, found.detail)
        assert str(told_by_sqs(found)) == found.detail
    assert told_by_sqs(NO_TOPIC).error.is_sender_fault
    assert not told_by_sqs(ELSEWHERE).error.is_sender_fault
