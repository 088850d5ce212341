"""OffsetCommit, OffsetFetch and OffsetDelete: what a group has read, kept and told in every version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import offset_commit as oc
from penstock.codec.kafka.messages import offset_delete as od
from penstock.codec.kafka.messages import offset_fetch as of
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.codec.kafka.messages.leave_group import LeaveGroupResponse
from support.door.conversation import Conversation, TalkingNode
from support.group.phrases import (
    GROUP,
    commit,
    commit_codes,
    enter,
    found_positions,
    leave,
    node_with_groups,
    offsets_of,
    only_member,
    positions,
)

COMMIT_VERSIONS = pytest.mark.parametrize("version", range(2, 11))
FETCH_VERSIONS = pytest.mark.parametrize("version", range(1, 11))
NOT_A_TOPIC_ID = b"not a topic's id"


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_groups() as running:
        yield running


@pytest.fixture
async def orders(node: TalkingNode) -> bytes:
    return await node.create_topic("orders", 4)


async def codes(talk: Conversation, request: oc.OffsetCommitRequest, version: int = 9) -> list[int]:
    return commit_codes(await talk.ask(request, oc.OffsetCommitResponse, version))


async def stored(talk: Conversation, version: int = 9, group: str = GROUP, topic_id: bytes = b"") -> dict[int, int]:
    request = positions([0, 1, 2, 3], group=group, topic_id=topic_id or bytes(16))
    return offsets_of(await talk.ask(request, of.OffsetFetchResponse, version))


# Commit and fetch


@COMMIT_VERSIONS
async def test_committed_offset_is_told_again_in_every_version(talk: Conversation, orders: bytes, version: int) -> None:
    assert await codes(talk, commit({0: 5, 2: 7}, topic_id=orders, metadata="so far"), version) == [0, 0]
    for fetch_version in range(1, 11):
        reply = await talk.ask(positions([0, 1, 2], topic_id=orders), of.OffsetFetchResponse, fetch_version)
        name = "orders" if fetch_version < 10 else ""
        found = found_positions(reply)
        assert list(found) == [(name, 0), (name, 1), (name, 2)]
        assert [(place.committed_offset, place.metadata) for place in found.values()] == [
            (5, "so far"),
            (-1, ""),
            (7, "so far"),
        ]
        assert {place.error_code for place in found.values()} == {ErrorCode.NONE}
        if version >= 6 and fetch_version >= 5:
            assert [place.committed_leader_epoch for place in found.values()] == [0, -1, 0]
    if version == 10:
        await talk.send(positions([0], topic_id=orders), 10)
        reply = await talk.hear(of.OffsetFetchResponse)
        assert reply.groups[0].topics[0].topic_id == orders


@COMMIT_VERSIONS
async def test_commit_is_answered_as_it_was_asked(talk: Conversation, orders: bytes, version: int) -> None:
    await talk.send(commit({3: 1, 0: 2}, topic_id=orders), version)
    partitions = [oc.OffsetCommitResponsePartition(3), oc.OffsetCommitResponsePartition(0)]
    await talk.expect(oc.OffsetCommitResponse(topics=[oc.OffsetCommitResponseTopic("orders", orders, partitions)]))


@FETCH_VERSIONS
async def test_unknown_group_has_no_offsets_and_no_error(talk: Conversation, orders: bytes, version: int) -> None:
    assert await stored(talk, version, group="missing", topic_id=orders) == {0: -1, 1: -1, 2: -1, 3: -1}
    if version >= 2:
        reply = await talk.ask(positions(None, group="missing"), of.OffsetFetchResponse, version)
        assert found_positions(reply) == {}


@pytest.mark.parametrize("version", range(2, 11))
async def test_everything_is_asked_for_by_null(
    node: TalkingNode, talk: Conversation, orders: bytes, version: int
) -> None:
    await node.create_topic("other")
    await codes(talk, commit({0: 5, 3: 7}))
    await codes(talk, commit({0: 9}, topic="other"))
    reply = await talk.ask(positions(None), of.OffsetFetchResponse, version)
    if version < 10:
        found = {place: entry.committed_offset for place, entry in found_positions(reply).items()}
        assert found == {("orders", 0): 5, ("orders", 3): 7, ("other", 0): 9}
    else:
        by_id = {topic.topic_id: len(topic.partitions) for topic in reply.groups[0].topics}
        assert by_id[orders] == 2
        assert len(by_id) == 2


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_several_groups_are_asked_for_at_once(talk: Conversation, orders: bytes, version: int) -> None:
    await codes(talk, commit({0: 5}, group="one"))
    await codes(talk, commit({0: 6}, group="two"))
    topics = (of.OffsetFetchRequestTopics("orders", orders, (0,)),)
    request = of.OffsetFetchRequest(
        groups=tuple(of.OffsetFetchRequestGroup(group, topics=topics) for group in ("two", "missing", "one"))
    )
    reply = await talk.ask(request, of.OffsetFetchResponse, version)
    assert [group.group_id for group in reply.groups] == ["two", "missing", "one"]
    assert [group.topics[0].partitions[0].committed_offset for group in reply.groups] == [6, -1, 5]


@pytest.mark.usefixtures("orders")
async def test_text_may_be_missing_and_may_not_be_endless(talk: Conversation) -> None:
    assert await codes(talk, commit({0: 1}, metadata=None)) == [0]
    assert await codes(talk, commit({0: 2}, metadata="x" * 4096)) == [0]
    assert await codes(talk, commit({0: 3}, metadata="é" * 2049)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert (await stored(talk))[0] == 2


@pytest.mark.usefixtures("orders")
async def test_group_without_a_name_may_keep_offsets(talk: Conversation) -> None:
    """Old clients that manage themselves have none; Kafka lets them."""
    assert await codes(talk, commit({0: 5}, group="")) == [0]
    assert (await stored(talk, group=""))[0] == 5


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("version", range(2, 5))
async def test_old_commit_may_say_how_long_it_counts(talk: Conversation, version: int) -> None:
    assert await codes(talk, commit({0: 5}, retention_ms=60_000), version) == [0]
    assert (await stored(talk))[0] == 5


# What is refused for one partition


@pytest.mark.parametrize("version", [2, 9])
async def test_unknown_place_is_refused_alone(talk: Conversation, orders: bytes, version: int) -> None:
    good = oc.OffsetCommitRequestPartition(partition_index=1, committed_offset=5)
    bad = oc.OffsetCommitRequestPartition(partition_index=4, committed_offset=5)
    topics = (
        oc.OffsetCommitRequestTopic("missing", orders, (good,)),
        oc.OffsetCommitRequestTopic("orders", orders, (bad, good)),
    )
    request = oc.OffsetCommitRequest(group_id=GROUP, topics=topics)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await codes(talk, request, version) == [unknown, unknown, 0]
    assert (await stored(talk))[1] == 5


async def test_unknown_id_is_refused_alone(talk: Conversation, orders: bytes) -> None:
    good = oc.OffsetCommitRequestPartition(partition_index=1, committed_offset=5)
    topics = (
        oc.OffsetCommitRequestTopic(topic_id=NOT_A_TOPIC_ID, partitions=(good,)),
        oc.OffsetCommitRequestTopic(topic_id=orders, partitions=(good,)),
        oc.OffsetCommitRequestTopic(partitions=(good,)),
    )
    reply = await talk.ask(oc.OffsetCommitRequest(group_id=GROUP, topics=topics), oc.OffsetCommitResponse, 10)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert commit_codes(reply) == [unknown, 0, unknown]
    assert [topic.topic_id for topic in reply.topics] == [NOT_A_TOPIC_ID, orders, bytes(16)]

    wanted = (of.OffsetFetchRequestTopics(topic_id=NOT_A_TOPIC_ID, partition_indexes=(1,)),)
    group = of.OffsetFetchRequestGroup(GROUP, topics=wanted)
    fetched = await talk.ask(of.OffsetFetchRequest(groups=(group,)), of.OffsetFetchResponse, 10)
    (place,) = fetched.groups[0].topics[0].partitions
    assert (place.error_code, place.committed_offset) == (unknown, -1)
    assert fetched.groups[0].topics[0].topic_id == NOT_A_TOPIC_ID


@FETCH_VERSIONS
async def test_topic_created_again_inherits_nothing(
    node: TalkingNode, talk: Conversation, orders: bytes, version: int
) -> None:
    await codes(talk, commit({0: 5}))
    await node.catalog.delete_topic("orders")
    again = await node.create_topic("orders", 4)
    assert again != orders
    assert (await stored(talk, version, topic_id=again))[0] == -1


# Who may commit


@pytest.mark.usefixtures("orders")
@COMMIT_VERSIONS
async def test_member_commits_and_others_do_not(talk: Conversation, orders: bytes, version: int) -> None:
    member_id, generation = await only_member(talk, 0)

    async def outcome(**how: object) -> list[int]:
        return await codes(talk, commit({0: 5}, topic_id=orders, **how), version)  # type: ignore[arg-type]

    assert await outcome(member_id=member_id, generation=generation) == [0]
    assert await outcome(member_id=member_id, generation=generation + 1) == [ErrorCode.ILLEGAL_GENERATION]
    assert await outcome(member_id="stranger", generation=generation) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await outcome() == [ErrorCode.UNKNOWN_MEMBER_ID]
    await talk.ask(leave((member_id, None)), LeaveGroupResponse)
    assert await outcome() == [0]


@COMMIT_VERSIONS
async def test_member_of_no_group_is_told_so(talk: Conversation, orders: bytes, version: int) -> None:
    found = await codes(talk, commit({0: 5}, topic_id=orders, member_id="m", generation=1), version)
    assert found == [ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION]


@COMMIT_VERSIONS
async def test_consumer_protocol_member_commits_by_its_epoch(talk: Conversation, orders: bytes, version: int) -> None:
    await talk.ask(enter("mine"), ConsumerGroupHeartbeatResponse)
    own = commit({0: 5}, topic_id=orders, member_id="mine", generation=1)
    late = commit({0: 6}, topic_id=orders, member_id="mine", generation=0)
    if version < 9:
        assert await codes(talk, own, version) == [ErrorCode.UNSUPPORTED_VERSION]
        return
    assert await codes(talk, own, version) == [0]
    assert await codes(talk, late, version) == [ErrorCode.STALE_MEMBER_EPOCH]
    for epoch, code in ((1, 0), (0, ErrorCode.STALE_MEMBER_EPOCH)):
        request = positions([0], topic_id=orders, member_id="mine", member_epoch=epoch)
        reply = await talk.ask(request, of.OffsetFetchResponse, version)
        assert reply.groups[0].error_code == code


# A commit acknowledged is a commit kept


async def test_offsets_and_members_outlive_the_node(tmp_path: Path) -> None:
    async with node_with_groups(data_dir=str(tmp_path)) as node:
        await node.create_topic("orders", 4)
        talk = await node.connect()
        await codes(talk, commit({0: 5, 1: 6}))
        await codes(talk, commit({1: 7}))
        member_id, generation = await only_member(talk, 0, group="members")
    async with node_with_groups(data_dir=str(tmp_path)) as node:
        talk = await node.connect()
        assert await stored(talk) == {0: 5, 1: 7, 2: -1, 3: -1}
        own = commit({0: 1}, group="members", member_id=member_id, generation=generation)
        assert await codes(talk, own) == [0]


# Delete


def delete(*partitions: int, group: str = GROUP, topic: str = "orders") -> od.OffsetDeleteRequest:
    places = tuple(od.OffsetDeleteRequestPartition(number) for number in partitions)
    return od.OffsetDeleteRequest(group_id=group, topics=(od.OffsetDeleteRequestTopic(topic, places),))


async def deleted(talk: Conversation, request: od.OffsetDeleteRequest) -> tuple[int, list[int]]:
    reply = await talk.ask(request, od.OffsetDeleteResponse)
    return reply.error_code, [place.error_code for topic in reply.topics for place in topic.partitions]


@pytest.mark.usefixtures("orders")
async def test_deleted_offset_is_gone(talk: Conversation) -> None:
    await codes(talk, commit({0: 5, 1: 6}))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await deleted(talk, delete(0, 9, 2)) == (0, [0, unknown, 0])
    assert await deleted(talk, delete(0, topic="missing")) == (0, [unknown])
    assert await stored(talk) == {0: -1, 1: 6, 2: -1, 3: -1}


@pytest.mark.usefixtures("orders")
async def test_offset_of_a_topic_that_is_read_stays(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("other")
    member_id, generation = await only_member(talk, 0)
    for topic in ("orders", "other"):
        await codes(talk, commit({0: 5}, topic=topic, member_id=member_id, generation=generation))
    assert await deleted(talk, delete(0)) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert await deleted(talk, delete(0, topic="other")) == (0, [0])
    assert (await stored(talk))[0] == 5


@pytest.mark.usefixtures("orders")
async def test_nothing_is_deleted_of_a_group_that_is_not_there(talk: Conversation) -> None:
    assert await deleted(talk, delete(0, group="missing")) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert await deleted(talk, delete(0, group="")) == (ErrorCode.INVALID_GROUP_ID, [])
