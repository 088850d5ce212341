from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.domain.group.assign.values import MemberFacts
from penstock.domain.group.values import Assignment, GroupError, TopicFact
from penstock.domain.share.assignor import assign_share
from penstock.domain.share.machine import (
    ShareAlive,
    ShareDelete,
    ShareDone,
    ShareGroup,
    ShareGroupCommand,
    ShareGroupConfig,
    ShareGroupRecord,
    ShareGroupReply,
    ShareHeartbeat,
    ShareLoad,
    ShareRefused,
    ShareTick,
)
from penstock.domain.share.settings import duration_ms, queue_options


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class Topics:
    def __init__(self, **partition_counts: int) -> None:
        self.partition_counts = partition_counts
        self.revision = 1

    def find(self, name: str) -> TopicFact | None:
        count = self.partition_counts.get(name)
        return None if count is None else TopicFact(topic_id(name), count)

    def name_of(self, topic_id: bytes) -> str | None:
        return topic_id.rstrip(b"-").decode()

    def matching(self, expression: str, principal: str = "") -> tuple[str, ...] | None:
        return None

    def grow(self, name: str, count: int) -> None:
        self.partition_counts[name] = count
        self.revision += 1


class Desk:
    def __init__(self, config: ShareGroupConfig | None = None, **partition_counts: int) -> None:
        self.topics = Topics(**partition_counts)
        self.config = config or ShareGroupConfig()
        self.group = ShareGroup(self.config, self.topics)
        self.records: list[ShareGroupRecord] = []
        self.now_ms = 1_000

    def submit(self, command: ShareGroupCommand) -> ShareGroupReply:
        decision = self.group.decide(command, self.now_ms)
        for record in decision.records:
            self.group.apply(record)
        self.records += decision.records
        return decision.reply

    def join(self, member_id: str, *names: str) -> ShareAlive:
        reply = self.submit(ShareHeartbeat(member_id, 0, names or ("orders",)))
        assert isinstance(reply, ShareAlive), reply
        return reply

    def beat(self, member_id: str, epoch: int) -> ShareAlive:
        reply = self.submit(ShareHeartbeat(member_id, epoch))
        assert isinstance(reply, ShareAlive), reply
        return reply

    def refused(self, command: ShareGroupCommand) -> GroupError:
        reply = self.submit(command)
        assert isinstance(reply, ShareRefused), reply
        return reply.error


def numbers(assignment: Assignment | None) -> list[int]:
    return [number for _topic, number in assignment or ()]


def test_a_member_alone_has_every_partition() -> None:
    desk = Desk(orders=3)
    assert numbers(desk.join("ann").assignment) == [0, 1, 2]
    assert desk.group.state == "Stable"


def test_members_share_a_partition_when_there_are_not_enough() -> None:
    desk = Desk(orders=1)
    assert numbers(desk.join("ann").assignment) == [0]
    assert numbers(desk.join("bob").assignment) == [0]


def test_a_member_learns_of_a_change_with_its_next_heartbeat() -> None:
    desk = Desk(orders=2)
    ann = desk.join("ann")
    assert numbers(desk.join("bob").assignment) == [1]
    told = desk.beat("ann", ann.member_epoch)
    assert told.member_epoch == ann.member_epoch + 1
    assert numbers(told.assignment) == [0]
    assert desk.beat("ann", told.member_epoch).assignment is None


def test_who_has_not_heard_the_last_answer_is_told_again() -> None:
    desk = Desk(orders=2)
    ann = desk.join("ann")
    desk.join("bob")
    desk.beat("ann", ann.member_epoch)
    again = desk.beat("ann", ann.member_epoch)
    assert numbers(again.assignment) == [0]


def test_a_heartbeat_without_news_writes_nothing() -> None:
    desk = Desk(orders=2)
    epoch = desk.join("ann").member_epoch
    written = len(desk.records)
    desk.beat("ann", epoch)
    assert len(desk.records) == written


def test_a_topic_that_grows_is_assigned_anew() -> None:
    desk = Desk(orders=1)
    epoch = desk.join("ann").member_epoch
    desk.topics.grow("orders", 4)
    told = desk.beat("ann", epoch)
    assert numbers(told.assignment) == [0, 1, 2, 3]
    desk.topics.grow("other", 9)
    assert desk.beat("ann", told.member_epoch).assignment is None


def test_a_member_that_leaves_or_is_silent_makes_room() -> None:
    desk = Desk(orders=2)
    desk.join("ann")
    bob = desk.join("bob")
    desk.submit(ShareHeartbeat("ann", -1))
    told = desk.beat("bob", bob.member_epoch)
    assert numbers(told.assignment) == [0, 1]
    desk.now_ms += desk.config.session_timeout_ms
    deadline_ms = desk.group.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms <= desk.now_ms
    desk.submit(ShareTick())
    assert desk.group.state == "Empty"
    assert desk.refused(ShareHeartbeat("bob", told.member_epoch)) is GroupError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (ShareHeartbeat("", 0, ("orders",)), GroupError.INVALID_REQUEST),
        (ShareHeartbeat("eve", 0), GroupError.INVALID_REQUEST),
        (ShareHeartbeat("eve", -2), GroupError.INVALID_REQUEST),
        (ShareHeartbeat("eve", 5), GroupError.UNKNOWN_MEMBER_ID),
        (ShareHeartbeat("eve", -1), GroupError.UNKNOWN_MEMBER_ID),
        (ShareHeartbeat("ann", 5), GroupError.FENCED_MEMBER_EPOCH),
        (ShareHeartbeat("cleo", 0, ("orders",)), GroupError.GROUP_MAX_SIZE_REACHED),
        (ShareDelete(), GroupError.NON_EMPTY_GROUP),
    ],
)
def test_requests_that_cannot_be_are_refused(command: ShareGroupCommand, error: GroupError) -> None:
    desk = Desk(ShareGroupConfig(members_max=2), orders=2)
    desk.join("ann")
    desk.join("bob")
    assert desk.refused(command) is error


def test_a_fenced_member_may_join_again_under_its_id() -> None:
    desk = Desk(orders=2)
    desk.join("ann")
    desk.join("bob")
    assert desk.refused(ShareHeartbeat("ann", 9)) is GroupError.FENCED_MEMBER_EPOCH
    assert numbers(desk.join("ann").assignment) == [0]


def test_an_empty_group_can_be_deleted_and_one_that_never_was_cannot() -> None:
    desk = Desk(orders=1)
    assert desk.refused(ShareDelete()) is GroupError.GROUP_ID_NOT_FOUND
    desk.join("ann")
    desk.submit(ShareHeartbeat("ann", -1))
    assert desk.submit(ShareDelete()) == ShareDone()
    assert desk.group.state == "Dead"
    assert desk.group.snapshot() == []


def test_a_compacted_log_makes_the_same_group() -> None:
    desk = Desk(orders=5, bills=3)
    for number in range(6):
        desk.join(f"m{number}", *(("orders",) if number % 2 else ("orders", "bills")))
    desk.submit(ShareHeartbeat("m3", -1))
    desk.beat("m1", desk.group.members["m1"].epoch)
    last = {record.key: record for record in desk.records}
    for records in (desk.records, list(last.values()), list(reversed(last.values())), desk.group.snapshot()):
        other = ShareGroup(desk.config, desk.topics)
        for record in records:
            stored = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=ShareGroupRecord)
            other.apply(stored)
        assert other.snapshot() == desk.group.snapshot()
        other.decide(ShareLoad(), desk.now_ms)
        assert other.next_deadline_ms() == desk.now_ms + desk.config.session_timeout_ms


members_and_topics = st.tuples(
    st.lists(st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.booleans()), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), min_size=3),
)


@settings(max_examples=100, deadline=None)
@given(members_and_topics)
def test_every_partition_has_a_member_and_every_member_a_partition(
    world: tuple[list[tuple[set[str], bool]], dict[str, int]],
) -> None:
    wishes, counts = world
    partition_counts = {topic_id(name): count for name, count in counts.items()}
    facts = {
        f"m{number:02}": MemberFacts(f"m{number:02}", None, tuple(sorted(topic_id(name) for name in names)))
        for number, (names, _stays) in enumerate(wishes)
    }
    targets = assign_share(facts, partition_counts)
    check_even(facts, targets, partition_counts)
    staying = {
        member_id: msgspec.structs.replace(fact, previous=targets[member_id])
        for (member_id, fact), (_names, stays) in zip(facts.items(), wishes, strict=True)
        if stays
    }
    after = assign_share(staying, partition_counts)
    check_even(staying, after, partition_counts)
    again = {each: msgspec.structs.replace(fact, previous=after[each]) for each, fact in staying.items()}
    assert assign_share(again, partition_counts) == after


def check_even(
    facts: dict[str, MemberFacts], targets: dict[str, Assignment], partition_counts: dict[bytes, int]
) -> None:
    for topic, count in partition_counts.items():
        readers = [member_id for member_id, fact in facts.items() if topic in fact.topics]
        mine = {each: [number for owner, number in targets[each] if owner == topic] for each in facts}
        assert all(mine[each] for each in readers)
        assert not any(mine[each] for each in facts if each not in readers)
        if readers:
            loads = [sum(number in numbers for numbers in mine.values()) for number in range(count)]
            assert min(loads) >= 1
            assert max(loads) - min(loads) <= 1
            sizes = [len(mine[each]) for each in readers]
            assert max(sizes) - min(sizes) <= 1
            assert sum(sizes) == max(len(readers), count)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("PT1H", 3_600_000), ("P2D", 172_800_000), ("P1DT2H3M4.5S", 93_784_500), ("PT0.007S", 7), ("PT90M", 5_400_000)],
)
def test_a_duration_is_read_as_it_is_written(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


def test_a_group_may_begin_some_time_ago_and_want_bare_dead_letters() -> None:
    options = queue_options(
        {
            "share.auto.offset.reset": "by_duration:PT1H",
            "errors.deadletterqueue.copy.record.enable": "false",
        }
    )
    assert (options.start_ago_ms, options.copies_dead_letters) == (3_600_000, False)
