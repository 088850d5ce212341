"""Groups of confluent-kafka (librdkafka, the newest): the classic protocol in all its forms, and KIP-848."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, Message, Producer
from confluent_kafka import ConsumerGroupType as GroupType
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from support.group.node import HEARTBEAT_MS, LONG_SESSION_MS, SESSION_MS, node_for_groups
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
PARTITIONS = 4

# How a member is told to behave; "consumer" is KIP-848.
PROTOCOLS: dict[str, dict[str, object]] = {
    "range": {"partition.assignment.strategy": "range"},
    "roundrobin": {"partition.assignment.strategy": "roundrobin"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
SLOW = pytest.mark.slow
# Round robin differs from range in what the leader works out, not in what the node does.
EVERY_PROTOCOL = pytest.mark.parametrize(
    "protocol", ["range", pytest.param("roundrobin", marks=SLOW), "cooperative", "consumer"]
)
CLASSIC_TIMES = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("groups-confluent")) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path / "own-node", session_ms=LONG_SESSION_MS) as running:
        yield running


@pytest.fixture
def admin(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka})


@pytest.fixture
def orders(node: NodeProcess, topic: str) -> str:
    create(node, topic)
    return topic


def create(node: NodeProcess, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(WAIT_SECONDS_MAX)


def settings(node: NodeProcess, group: str, protocol: str, **others: object) -> dict[str, object]:
    times = {} if protocol == "consumer" else CLASSIC_TIMES
    return {
        "bootstrap.servers": node.kafka,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        # A node that was killed is looked for again soon.
        "reconnect.backoff.max.ms": 200,
        **PROTOCOLS[protocol],
        **times,
        **{name.replace("_", "."): value for name, value in others.items()},
    }


class Member:
    """A consumer, and what happened to it."""

    def __init__(self, node: NodeProcess, topics: list[str], group: str, protocol: str, **others: object) -> None:
        self.held: set[tuple[str, int]] = set()
        self.gained: list[tuple[str, int]] = []
        self.given_up: list[tuple[str, int]] = []
        self.received: list[Message] = []
        self.is_incremental = protocol in ("cooperative", "consumer")
        self.consumer = Consumer(settings(node, group, protocol, **others))
        self.consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def _on_assign(self, consumer: Consumer, places: list[Place]) -> None:
        named = [(place.topic, place.partition) for place in places]
        self.held |= set(named)
        self.gained += named

    def _on_revoke(self, consumer: Consumer, places: list[Place]) -> None:
        named = [(place.topic, place.partition) for place in places]
        self.held -= set(named)
        self.given_up += named

    def poll(self) -> None:
        message = self.consumer.poll(POLL_SECONDS)
        if message is None:
            return
        if message.error() is None:
            self.received.append(message)
        else:
            # While the node is away, and until a topic is known everywhere.
            assert message.error().retriable() or message.error().code() in (
                KafkaError._ALL_BROKERS_DOWN,
                KafkaError._TRANSPORT,
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._MAX_POLL_EXCEEDED,
            ), message.error()

    def values(self) -> list[bytes | None]:
        return [message.value() for message in self.received]

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def enter(node: NodeProcess) -> Iterator[Callable[..., Member]]:
    """Members of the module's node, all closed at the end."""
    members: list[Member] = []

    def make(topics: list[str], group: str, protocol: str, **others: object) -> Member:
        members.append(Member(node, topics, group, protocol, **others))
        return members[-1]

    yield make
    for member in members:
        member.close()


def settle(members: list[Member], is_settled: Callable[[], bool]) -> None:
    """Everybody polls until it is so."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_settled():
        for member in members:
            member.poll()
        held = [sorted(member.held) for member in members]
        assert time.monotonic() < deadline, f"never settled: {held}"


def share(members: list[Member], topic: str, partitions: int = PARTITIONS) -> Callable[[], bool]:
    """Every partition has one owner, and everybody who could have one has one."""

    def is_shared() -> bool:
        held = [place for member in members for place in member.held if place[0] == topic]
        counts = sorted(len(member.held) for member in members)
        return sorted(held) == [(topic, number) for number in range(partitions)] and counts[-1] - counts[0] <= 1

    return is_shared


def send(node: NodeProcess, topic: str, count: int, *, first: int = 0, partitions: int = PARTITIONS) -> list[bytes]:
    producer = Producer({"bootstrap.servers": node.kafka})
    values = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return values


def committed(node: NodeProcess, group: str, topic: str, partitions: int = PARTITIONS) -> list[int]:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": group})
    places = consumer.committed([Place(topic, number) for number in range(partitions)], WAIT_SECONDS_MAX)
    consumer.close()
    return [place.offset for place in places]


# Reading and committing


@EVERY_PROTOCOL
def test_member_reads_commits_and_is_taken_up_by_the_next(
    node: NodeProcess, orders: str, enter: Callable[..., Member], protocol: str
) -> None:
    sent = send(node, orders, 20)
    first = enter([orders], orders, protocol)
    settle([first], lambda: len(first.received) == 20)
    assert sorted(first.values()) == sorted(sent)
    first.consumer.commit(asynchronous=False)
    first.close()
    assert committed(node, orders, orders) == [5, 5, 5, 5]
    more = send(node, orders, 8, first=20)
    second = enter([orders], orders, protocol)
    settle([second], lambda: len(second.received) == 8)
    assert sorted(second.values()) == sorted(more)


@EVERY_PROTOCOL
def test_automatic_commits_are_kept(
    node: NodeProcess, orders: str, enter: Callable[..., Member], protocol: str
) -> None:
    send(node, orders, 8)
    member = enter([orders], orders, protocol, enable_auto_commit=True, auto_commit_interval_ms=100)
    settle([member], lambda: len(member.received) == 8)
    member.close()
    assert committed(node, orders, orders) == [2, 2, 2, 2]


# Members come and go


@EVERY_PROTOCOL
def test_partitions_are_shared_as_members_come_and_go(
    node: NodeProcess, orders: str, enter: Callable[..., Member], protocol: str
) -> None:
    first = enter([orders], orders, protocol)
    settle([first], share([first], orders))
    second = enter([orders], orders, protocol)
    settle([first, second], share([first, second], orders))
    sent = send(node, orders, 40)
    settle([first, second], lambda: len(first.received) + len(second.received) >= 40)
    assert sorted(first.values() + second.values()) == sorted(sent)
    assert first.received
    assert second.received
    second.close()
    settle([first], share([first], orders))


@EVERY_PROTOCOL
def test_only_what_moves_is_given_up(orders: str, enter: Callable[..., Member], protocol: str) -> None:
    first = enter([orders], orders, protocol)
    settle([first], share([first], orders))
    second = enter([orders], orders, protocol)
    settle([first, second], share([first, second], orders))
    # Eager members give up everything at every rebalance; the others keep reading what stays theirs.
    assert len(first.given_up) == (2 if first.is_incremental else 4)


@EVERY_PROTOCOL
def test_dead_member_is_replaced(node: NodeProcess, orders: str, enter: Callable[..., Member], protocol: str) -> None:
    program = (
        "import ast, sys\n"
        "from confluent_kafka import Consumer\n"
        "consumer = Consumer(ast.literal_eval(sys.argv[1]))\n"
        "consumer.subscribe([sys.argv[2]], on_assign=lambda _, places: print('assigned', len(places), flush=True))\n"
        "while True: consumer.poll(0.1)\n"
    )
    words = [sys.executable, "-c", program, repr(settings(node, orders, protocol)), orders]
    doomed = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == f"assigned {PARTITIONS}\n"
        member = enter([orders], orders, protocol)
        settle([member], lambda: len(member.held) == PARTITIONS // 2)
        doomed.kill()
        settle([member], share([member], orders))
    finally:
        doomed.kill()
        doomed.communicate()


@EVERY_PROTOCOL
def test_static_member_that_restarts_disturbs_nobody(orders: str, enter: Callable[..., Member], protocol: str) -> None:
    # Long enough to be away for: what is proved is that nobody moves before it is over.
    long = {} if protocol == "consumer" else {"session_timeout_ms": LONG_SESSION_MS}
    first = enter([orders], orders, protocol, group_instance_id="one", **long)
    second = enter([orders], orders, protocol, group_instance_id="two", **long)
    settle([first, second], share([first, second], orders))
    gained, given_up, before = list(first.gained), list(first.given_up), set(second.held)
    second.close()
    again = enter([orders], orders, protocol, group_instance_id="two", **long)
    settle([first, again], lambda: again.held == before)
    settle([first, again], share([first, again], orders))
    assert (first.gained, first.given_up) == (gained, given_up)


@EVERY_PROTOCOL
def test_new_partitions_are_read(
    node: NodeProcess, orders: str, admin: AdminClient, enter: Callable[..., Member], protocol: str
) -> None:
    # A classic leader sees them when it next looks at the topic.
    member = enter([orders], orders, protocol, topic_metadata_refresh_interval_ms=300)
    settle([member], share([member], orders))
    admin.create_partitions([NewPartitions(orders, 6)])[orders].result(WAIT_SECONDS_MAX)
    settle([member], share([member], orders, 6))
    send(node, orders, 6, partitions=6)
    settle([member], lambda: len(member.received) == 6)


@EVERY_PROTOCOL
def test_expression_subscribes_to_topics_that_come_later(
    node: NodeProcess, topic: str, enter: Callable[..., Member], protocol: str
) -> None:
    create(node, f"{topic}-1", 1)
    member = enter([f"^{topic}-.*"], topic, protocol, topic_metadata_refresh_interval_ms=300)
    settle([member], lambda: member.held == {(f"{topic}-1", 0)})
    create(node, f"{topic}-2", 1)
    settle([member], lambda: member.held == {(f"{topic}-1", 0), (f"{topic}-2", 0)})


def test_group_moves_online_to_the_new_protocol_and_back(
    node: NodeProcess, orders: str, enter: Callable[..., Member]
) -> None:
    # Cooperative: an eager member holds nothing between two generations.
    classic = enter([orders], orders, "cooperative")
    settle([classic], share([classic], orders))
    modern = enter([orders], orders, "consumer")
    settle([classic, modern], share([classic, modern], orders))
    sent = send(node, orders, 20)
    settle([classic, modern], lambda: len(classic.received) + len(modern.received) >= 20)
    assert sorted(classic.values() + modern.values()) == sorted(sent)
    modern.close()
    settle([classic], share([classic], orders))
    send(node, orders, 4, first=20)
    settle([classic], lambda: Counter(classic.values()).keys() >= {b"20", b"21", b"22", b"23"})


# A commit acknowledged is a commit kept


@pytest.mark.parametrize(
    "protocol", ["range", pytest.param("roundrobin", marks=SLOW), pytest.param("cooperative", marks=SLOW), "consumer"]
)
def test_commits_and_members_outlive_a_killed_node(own_node: NodeProcess, topic: str, protocol: str) -> None:
    create(own_node, topic)
    send(own_node, topic, 40)
    long = {} if protocol == "consumer" else {"session_timeout_ms": LONG_SESSION_MS}
    member = Member(own_node, [topic], topic, protocol, **long)
    try:
        settle([member], lambda: len(member.received) == 40)
        answered = member.consumer.commit(asynchronous=False)
        own_node.kill()
        own_node.start()
        assert committed(own_node, topic, topic) == [10, 10, 10, 10]
        assert [place.offset for place in answered] == [10, 10, 10, 10]
        sent = send(own_node, topic, 8, first=40)
        settle([member], lambda: len(member.received) >= 48)
        # None again and none left out: the member is still, or again, where it was.
        assert sorted(member.values()[40:]) == sorted(sent)
        member.consumer.commit(asynchronous=False)
        assert committed(own_node, topic, topic) == [12, 12, 12, 12]
    finally:
        member.close()


# Operators


def test_groups_are_listed_described_and_deleted(
    node: NodeProcess, orders: str, admin: AdminClient, enter: Callable[..., Member]
) -> None:
    classic = enter([orders], f"{orders}-classic", "range", client_id="reader")
    modern = enter([orders], f"{orders}-modern", "consumer")
    settle([classic, modern], lambda: len(classic.held) == len(modern.held) == PARTITIONS)

    def listed(**filters: object) -> dict[str, GroupType]:
        found = admin.list_consumer_groups(**filters).result(WAIT_SECONDS_MAX)
        assert not found.errors
        return {group.group_id: group.type for group in found.valid if group.group_id.startswith(orders)}

    both = {f"{orders}-classic": GroupType.CLASSIC, f"{orders}-modern": GroupType.CONSUMER}
    assert listed() == both
    assert listed(states={ConsumerGroupState.STABLE}) == both
    assert listed(states={ConsumerGroupState.EMPTY}) == {}
    assert listed(types={GroupType.CONSUMER}) == {f"{orders}-modern": GroupType.CONSUMER}
    for member, group in ((classic, f"{orders}-classic"), (modern, f"{orders}-modern")):
        found = admin.describe_consumer_groups([group])[group].result(WAIT_SECONDS_MAX)
        assert found.state == ConsumerGroupState.STABLE
        (described,) = found.members
        assert described.host.lstrip("/") == "127.0.0.1"
        assert {(place.topic, place.partition) for place in described.assignment.topic_partitions} == member.held
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([f"{orders}-classic"])[f"{orders}-classic"].result(WAIT_SECONDS_MAX)
    classic.close()
    assert admin.delete_consumer_groups([f"{orders}-classic"])[f"{orders}-classic"].result(WAIT_SECONDS_MAX) is None
    assert list(listed()) == [f"{orders}-modern"]


def test_offsets_and_lag_are_told_and_altered(node: NodeProcess, orders: str, admin: AdminClient) -> None:
    send(node, orders, 40)
    places = [Place(orders, number, 3 + number) for number in range(PARTITIONS)]
    wanted = ConsumerGroupTopicPartitions(orders, places)
    altered = admin.alter_consumer_group_offsets([wanted])[orders].result(WAIT_SECONDS_MAX)
    assert [place.error for place in altered.topic_partitions] == [None] * PARTITIONS
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(orders)])[orders].result(WAIT_SECONDS_MAX)
    told = {place.partition: place.offset for place in asked.topic_partitions}
    assert told == {0: 3, 1: 4, 2: 5, 3: 6}
    ends = admin.list_offsets({Place(orders, number): OffsetSpec.latest() for number in told})
    lag = {place.partition: end.result(WAIT_SECONDS_MAX).offset - told[place.partition] for place, end in ends.items()}
    assert lag == {0: 7, 1: 6, 2: 5, 3: 4}
