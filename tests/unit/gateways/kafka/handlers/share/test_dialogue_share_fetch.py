"""Messages of a share group at the door: acquired, settled, given back, delivered again, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.messages.share_fetch import LeaderIdAndEpoch, ShareFetchResponse
from penstock.domain.queue.commands import Act
from penstock.domain.queue.definition import QueueName, QueueOptions
from support.door.conversation import PATIENCE_SECONDS, TalkingNode, running_node
from support.door.kafka_phrases import batch, fetch, produce, values_in
from support.share.phrases import (
    GROUP,
    RECORD_LIMIT,
    ShareMember,
    accept,
    acquired_in,
    once,
    partitions_in,
    reject,
    release,
    renew,
    set_group,
)


@pytest.fixture
async def orders(node: TalkingNode) -> bytes:
    await set_group(node.catalog, share_auto_offset_reset="earliest")
    return await node.create_topic("orders")


@pytest.fixture
async def ann(node: TalkingNode, orders: bytes) -> ShareMember:
    return await member(node, "ann")


@pytest.fixture
async def bob(node: TalkingNode, ann: ShareMember) -> ShareMember:
    return await member(node, "bob")


async def member(node: TalkingNode, name: str, topic: str = "orders") -> ShareMember:
    joined = ShareMember(await node.connect(), name)
    await joined.join(topic)
    return joined


async def put(node: TalkingNode, *batches: bytes, topic: str = "orders") -> None:
    talk = await node.connect()
    for data in batches:
        reply = await talk.ask(produce(topic, data), ProduceResponse, 9)
        assert reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    talk.close()


async def until(node: TalkingNode, is_true: Callable[[], bool]) -> None:
    """Asks the node something between one look and the next: it gets on with what it does meanwhile."""
    talk = await node.connect()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_true():
            await talk.expect_open()
    talk.close()


def code(reply: ShareFetchResponse) -> int:
    return partitions_in(reply)[0].acknowledge_error_code


# ---------------------------------------------------------------------------- who gets what


async def test_two_members_of_one_partition_get_different_records(
    node: TalkingNode, ann: ShareMember, bob: ShareMember
) -> None:
    await put(node, batch(b"a", b"b"), batch(b"c", b"d"))
    assert await ann.fetch(count=2) == once([0, 1])
    assert await bob.fetch(count=2) == once([2, 3])
    assert await ann.fetch(wait_ms=0) == []


async def test_batches_are_passed_on_as_they_were_written(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"one", b"two", codec=Codec.ZSTD))
    reply = await ann.ask_fetch(wait_ms=5_000)
    talk = await node.connect()
    heard = await talk.ask(fetch("orders", 0, topic_id=ann.assigned[0][0]), FetchResponse)
    assert partitions_in(reply)[0].records == heard.responses[0].partitions[0].records


async def test_a_whole_batch_is_acquired_even_if_fewer_records_were_asked_for(
    node: TalkingNode, ann: ShareMember
) -> None:
    await put(node, batch(*[b"x"] * 10))
    assert await ann.fetch(count=3) == once(range(10))


async def test_a_record_limit_cuts_a_batch_and_sends_it_whole(
    node: TalkingNode, ann: ShareMember, bob: ShareMember
) -> None:
    await put(node, batch(*[b"x"] * 10))
    reply = await ann.ask_fetch(count=3, mode=RECORD_LIMIT, wait_ms=5_000)
    (data,) = partitions_in(reply)
    assert acquired_in(data) == once(range(3))
    assert len(values_in(data.records)) == 10
    assert await bob.fetch(count=100, mode=RECORD_LIMIT) == once(range(3, 10))


async def test_version_1_cannot_ask_for_a_limit_and_gets_whole_batches(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(*[b"x"] * 4))
    assert await ann.fetch(count=1, version=1) == once(range(4))


async def test_a_reply_holds_no_more_bytes_than_were_asked_for_but_one_batch_always(
    node: TalkingNode, ann: ShareMember
) -> None:
    await put(node, *[batch(b"x" * 50_000)] * 3)
    assert await ann.fetch(bytes_max=60_000) == once([0])
    assert await ann.fetch(bytes_max=10) == once([1])
    assert await ann.fetch(bytes_max=60_000) == once([2])
    assert await ann.acknowledge(release(0, 2)) == ErrorCode.NONE
    # What comes back counts as well.
    assert await ann.fetch(bytes_max=60_000) == [(0, 2)]
    assert await ann.fetch(bytes_max=120_000) == [(1, 2), (2, 2)]


async def test_what_comes_back_is_filled_up_with_what_is_new(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a"), batch(b"b"))
    await ann.fetch(count=1)
    assert await ann.acknowledge(release(0)) == ErrorCode.NONE
    assert await ann.fetch() == [(0, 2), (1, 1)]


async def test_no_more_records_are_out_than_the_group_may_have_out(node: TalkingNode, ann: ShareMember) -> None:
    await set_group(node.catalog, share_partition_max_record_locks="100")
    await until(node, lambda: options_of(node).in_flight_max == 100)
    await put(node, *[batch(*[b"x"] * 50)] * 3)
    assert await ann.fetch(count=500) == once(range(100))
    assert await ann.fetch(wait_ms=0) == []
    assert await ann.acknowledge(accept(0, 49)) == ErrorCode.NONE
    assert await ann.fetch() == once(range(100, 150))


async def test_a_group_that_says_nothing_begins_with_what_comes_after_it(node: TalkingNode) -> None:
    await node.create_topic("news")
    await put(node, batch(b"old"), topic="news")
    late = ShareMember(await node.connect(), "late", "readers")
    await late.join("news")
    await put(node, batch(b"new"), topic="news")
    assert await late.fetch() == once([1])


async def test_a_parked_fetch_is_answered_by_the_next_record(node: TalkingNode, ann: ShareMember) -> None:
    await ann.ask_fetch()
    await ann.send_fetch(wait_ms=60_000)
    await put(node, batch(b"at last"))
    reply = await ann.hear_fetch()
    assert acquired_in(partitions_in(reply)[0]) == once([0])


async def test_a_fetch_that_finds_nothing_ends_when_its_time_is_up(ann: ShareMember) -> None:
    await ann.ask_fetch()
    reply = await ann.ask_fetch(wait_ms=20)
    assert (reply.error_code, list(reply.responses)) == (0, [])


async def test_the_first_reply_of_a_session_names_every_partition(node: TalkingNode) -> None:
    await node.create_topic("many", 3)
    ann = await member(node, "ann", "many")
    first = await ann.ask_fetch()
    assert sorted(data.partition_index for data in partitions_in(first)) == [0, 1, 2]
    assert all(data.records is not None for data in partitions_in(first))


async def test_the_reply_tells_how_long_a_record_is_the_members(node: TalkingNode, ann: ShareMember) -> None:
    assert (await ann.ask_fetch()).acquisition_lock_timeout_ms == 30_000
    await set_group(node.catalog, share_record_lock_duration_ms="20000")
    assert (await ann.ask_fetch()).acquisition_lock_timeout_ms == 20_000


async def test_an_ordinary_fetch_sees_what_the_share_group_has_finished(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a", b"b"))
    await ann.fetch()
    assert await ann.acknowledge(accept(0, 1)) == ErrorCode.NONE
    talk = await node.connect()
    heard = await talk.ask(fetch("orders", 0, topic_id=ann.assigned[0][0]), FetchResponse)
    assert values_in(heard.responses[0].partitions[0].records) == [b"a", b"b"]


# ---------------------------------------------------------------------------- what becomes of it


async def test_what_is_released_comes_back_with_a_higher_count(
    node: TalkingNode, ann: ShareMember, bob: ShareMember
) -> None:
    await put(node, batch(b"a", b"b", b"c"))
    await ann.fetch()
    assert await ann.acknowledge(accept(0), release(1), accept(2)) == ErrorCode.NONE
    assert await bob.fetch() == [(1, 2)]


async def test_types_may_be_given_for_each_offset(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a", b"b", b"c", b"d"))
    await ann.fetch()
    types = (Act.ACCEPT, Act.RELEASE, Act.RELEASE, Act.ACCEPT)
    assert await ann.acknowledge((0, 3, types)) == ErrorCode.NONE
    assert await ann.fetch() == [(1, 2), (2, 2)]


async def test_acknowledgements_ride_on_a_fetch(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a"), batch(b"b"))
    assert await ann.fetch(count=1) == once([0])
    reply = await ann.ask_fetch(accept(0), count=1, wait_ms=5_000)
    assert code(reply) == ErrorCode.NONE
    assert acquired_in(partitions_in(reply)[0]) == once([1])


async def test_a_rejected_record_is_given_up(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"bad"), batch(b"good"))
    await ann.fetch(count=1)
    assert await ann.acknowledge(reject(0)) == ErrorCode.NONE
    assert await ann.fetch() == once([1])


async def test_a_record_that_was_delivered_too_often_becomes_a_dead_letter(node: TalkingNode, ann: ShareMember) -> None:
    await set_group(node.catalog, share_delivery_count_limit="2", errors_deadletterqueue_topic_name="graveyard")
    await put(node, batch(b"poison"))
    talk = await node.connect()
    await until(node, lambda: options_of(node).deliveries_max == 2)
    assert await ann.fetch() == [(0, 1)]
    assert await ann.acknowledge(release(0)) == ErrorCode.NONE
    assert await ann.fetch() == [(0, 2)]
    assert await ann.acknowledge(release(0)) == ErrorCode.NONE
    await until(node, lambda: node.broker.topic("graveyard") is not None and node.shell("graveyard").readable_end == 1)
    assert await ann.fetch(wait_ms=0) == []
    graveyard = node.broker.topic("graveyard")
    assert graveyard is not None
    heard = await talk.ask(fetch("graveyard", 0, topic_id=graveyard.topic_id), FetchResponse)
    assert values_in(heard.responses[0].partitions[0].records) == [b"poison"]


async def test_a_lock_that_runs_out_frees_the_record(node: TalkingNode, ann: ShareMember, bob: ShareMember) -> None:
    await set_group(node.catalog, share_record_lock_duration_ms="1000")
    await until(node, lambda: options_of(node).lease_ms == 1_000)
    await put(node, batch(b"a"))
    assert await ann.fetch() == once([0])
    assert await bob.fetch(wait_ms=10_000) == [(0, 2)]
    assert await ann.acknowledge(accept(0)) == ErrorCode.INVALID_RECORD_STATE


async def test_a_renewed_lock_outlives_its_first_time(node: TalkingNode, ann: ShareMember, bob: ShareMember) -> None:
    await set_group(node.catalog, share_record_lock_duration_ms="1000")
    await until(node, lambda: options_of(node).lease_ms == 1_000)
    await put(node, batch(b"a"), batch(b"b"))
    assert await ann.fetch() == once([0, 1])
    await set_group(node.catalog, share_record_lock_duration_ms="60000")
    await until(node, lambda: options_of(node).lease_ms == 60_000)
    reply = await ann.ask_acknowledge(renew(0), is_renewing=True)
    assert reply.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert reply.acquisition_lock_timeout_ms == 60_000
    assert await bob.fetch(wait_ms=10_000) == [(1, 2)]
    assert await ann.acknowledge(accept(0)) == ErrorCode.NONE


async def test_a_renewal_rides_on_a_fetch_that_fetches_nothing(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a"), batch(b"b"))
    await ann.fetch(count=1)
    reply = await ann.ask_fetch(renew(0), is_renewing=True)
    assert code(reply) == ErrorCode.NONE
    assert not partitions_in(reply)[0].acquired_records


async def test_a_group_may_forbid_renewals(node: TalkingNode, ann: ShareMember) -> None:
    await set_group(node.catalog, share_renew_acknowledge_enable="false")
    await put(node, batch(b"a"))
    await ann.fetch()
    assert await ann.acknowledge(renew(0), is_renewing=True) == ErrorCode.INVALID_RECORD_STATE


async def test_nobody_settles_what_another_member_holds(node: TalkingNode, ann: ShareMember, bob: ShareMember) -> None:
    await put(node, batch(b"a"))
    await ann.fetch()
    await bob.ask_fetch()
    assert await bob.acknowledge(accept(0)) == ErrorCode.INVALID_RECORD_STATE
    assert await ann.acknowledge(accept(0)) == ErrorCode.NONE


async def test_nothing_of_a_partition_is_settled_if_one_part_is_not_held(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a", b"b"))
    await ann.fetch()
    assert await ann.acknowledge(accept(0, 5)) == ErrorCode.INVALID_RECORD_STATE
    assert await ann.acknowledge(accept(0, 1)) == ErrorCode.NONE


@pytest.mark.parametrize(
    "acks",
    [
        ((1, 0, (1,)),),
        ((0, 1, (1, 1, 1)),),
        ((0, 1, ()),),
        ((0, 0, (9,)),),
        ((0, 0, (4,)),),
        ((1, 1, (1,)), (0, 0, (1,))),
    ],
    ids=["backwards", "too many types", "no type", "unknown type", "renewal unsaid", "out of order"],
)
async def test_acknowledgements_that_contradict_themselves_are_refused(
    node: TalkingNode, ann: ShareMember, acks: tuple[tuple[int, int, tuple[int, ...]], ...]
) -> None:
    await put(node, batch(b"a", b"b"))
    await ann.fetch()
    assert await ann.acknowledge(*acks) == ErrorCode.INVALID_REQUEST
    assert await ann.acknowledge(accept(0, 1)) == ErrorCode.NONE


# ---------------------------------------------------------------------------- sessions


async def test_a_closed_session_gives_everything_back(node: TalkingNode, ann: ShareMember, bob: ShareMember) -> None:
    await put(node, batch(b"a", b"b"))
    await ann.fetch()
    assert (await ann.close_session()).error_code == ErrorCode.NONE
    assert await bob.fetch() == [(0, 2), (1, 2)]
    assert (await ann.ask_acknowledge(accept(0))).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_a_connection_that_breaks_gives_everything_back(
    node: TalkingNode, ann: ShareMember, bob: ShareMember
) -> None:
    await put(node, batch(b"a", b"b"))
    await ann.fetch()
    ann.talk.close()
    assert await bob.fetch() == [(0, 2), (1, 2)]


async def test_a_member_that_opens_its_session_anew_keeps_what_it_holds(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a"), batch(b"b"))
    assert await ann.fetch(count=1) == once([0])
    again = ShareMember(await node.connect(), "ann")
    again.assigned = ann.assigned
    assert await again.fetch() == once([1])
    # The old connection is not the session's any more.
    ann.talk.close()
    assert await again.acknowledge(accept(0, 1)) == ErrorCode.NONE


async def test_what_lies_below_the_start_is_done_and_what_lies_beyond_the_end_is_nonsense(
    node: TalkingNode, ann: ShareMember
) -> None:
    await put(node, batch(b"a", b"b", b"c"))
    await ann.fetch()
    assert await ann.acknowledge(accept(0, 1)) == ErrorCode.NONE
    assert await ann.acknowledge(accept(0)) == ErrorCode.NONE
    assert await ann.acknowledge(accept(90)) == ErrorCode.INVALID_REQUEST
    assert await ann.acknowledge(accept(1, 2)) == ErrorCode.NONE


async def test_a_parked_fetch_of_a_broken_connection_takes_nothing(
    node: TalkingNode, ann: ShareMember, bob: ShareMember
) -> None:
    await ann.ask_fetch()
    await ann.send_fetch(wait_ms=60_000)
    await bob.talk.expect_open()
    ann.talk.close()
    await bob.ask_fetch()
    await put(node, batch(b"a"))
    assert await bob.fetch() == once([0])


async def test_epochs_that_do_not_follow_are_refused_and_change_nothing(node: TalkingNode, ann: ShareMember) -> None:
    await put(node, batch(b"a"))
    assert (await ann.ask_fetch(epoch=5)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    await ann.fetch()
    for epoch in (2, 7, -2):
        assert (await ann.ask_fetch(accept(0), epoch=epoch)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        reply = await ann.ask_acknowledge(accept(0), epoch=epoch)
        assert reply.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert await ann.acknowledge(accept(0)) == ErrorCode.NONE


async def test_a_session_is_not_opened_by_an_acknowledgement(ann: ShareMember) -> None:
    reply = await ann.ask_acknowledge(accept(0), epoch=0)
    assert reply.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert (await ann.ask_fetch(accept(0), epoch=0)).error_code == ErrorCode.INVALID_REQUEST


async def test_a_stranger_makes_no_queue(node: TalkingNode, orders: bytes) -> None:
    stranger = ShareMember(await node.connect(), "mallory", "no-such-group")
    stranger.assigned = [(orders, 0)]
    (data,) = partitions_in(await stranger.ask_fetch())
    assert data.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_topic_that_is_gone_is_told_without_waiting_for_it(node: TalkingNode, ann: ShareMember) -> None:
    ann.assigned = [(bytes(15) + b"\x07", 0)]
    (data,) = partitions_in(await ann.ask_fetch(wait_ms=60_000))
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert data.current_leader == LeaderIdAndEpoch(-1, -1), "a hint that clients would follow"


async def test_an_error_names_no_leader(node: TalkingNode, ann: ShareMember) -> None:
    """Clients move the partition to the leader that comes with an error, and there is no node 0."""
    await put(node, batch(b"a"))
    assert await ann.fetch() == once([0])
    refused = await ann.ask_acknowledge(accept(7))
    (data,) = [each for topic in refused.responses for each in topic.partitions]
    assert data.error_code != ErrorCode.NONE
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (-1, -1)
    (data,) = partitions_in(await ann.ask_fetch(accept(7)))
    assert data.acknowledge_error_code != ErrorCode.NONE
    assert data.current_leader == LeaderIdAndEpoch(-1, -1)


# ---------------------------------------------------------------------------- after a restart


async def test_locks_and_members_outlive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("share"))
    async with running_node(data_dir=directory) as node:
        await set_group(node.catalog, share_auto_offset_reset="earliest")
        await node.create_topic("orders")
        ann, bob = await member(node, "ann"), await member(node, "bob")
        await put(node, batch(b"a"), batch(b"b"), batch(b"c"))
        assert await ann.fetch(count=1) == once([0])
        assert await bob.fetch(count=1) == once([1])
        assert await ann.acknowledge(accept(0)) == ErrorCode.NONE
    async with running_node(data_dir=directory) as node:
        again = ShareMember(await node.connect(), "ann")
        again.epoch, again.assigned = ann.epoch, ann.assigned
        beat = await again.beat()
        assert beat.error_code == ErrorCode.NONE
        # 0 is finished, 1 is still bob's.
        assert await again.fetch() == once([2])
        back = ShareMember(await node.connect(), "bob")
        back.assigned = bob.assigned
        assert await back.fetch() == once([1])


def options_of(node: TalkingNode) -> QueueOptions:
    definition = node.shares.queues.get(QueueName("orders", GROUP))
    assert definition is not None
    return definition.options
