"""Groups in motion: commits and heartbeats during a rebalance, and groups that change their protocol."""

from __future__ import annotations

from conformance.differential.dialogue_classic_groups import Group
from conformance.differential.dialogue_consumer_groups import Consumers
from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest
from penstock.codec.kafka.messages.join_group import JoinGroupRequest
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from penstock.codec.kafka.messages.sync_group import SyncGroupRequest
from support.group.phrases import assigned, commit, join, sync


@dialogue(JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, OffsetCommitRequest)
def classic_group_in_motion(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    group = Group(talk)

    def put(step: str, member: str, generation: int) -> None:
        request = commit(
            {0: 1}, group=group.name, topic=topic, topic_id=talk.ids[topic], member_id=member, generation=generation
        )
        talk.ask(step, request)

    first = group.join("first joins", topics=(topic,))
    group.sync("first syncs", first.member_id, first.generation_id)
    second_id = ""
    if talk.version(JoinGroupRequest) >= 4:
        second_id = talk.ask("second is named", join(group=group.name, topics=(topic,)), on="second").member_id
    waiting = talk.send("second joins", join(second_id, group=group.name, topics=(topic,)), on="second")
    group.until("PreparingRebalance")
    put("commit while the group prepares", first.member_id, first.generation_id)
    group.sync("sync while the group prepares", first.member_id, first.generation_id)
    put("a stranger commits", "somebody", first.generation_id)
    group.describe("preparing")
    again = group.join("first joins again", first.member_id, topics=(topic,))
    second = talk.hear(waiting)
    group.describe("completing")
    put("commit while the group completes", first.member_id, again.generation_id)
    put("commit with the generation before", first.member_id, first.generation_id)
    group.beat("heartbeat while the group completes", first.member_id, again.generation_id)
    follower = talk.send(
        "follower waits", sync(second.member_id, second.generation_id, {}, group=group.name), on="second"
    )
    # Only the leader's word counts: whatever others assign is not looked at.
    group.sync(
        "leader leaves one out", first.member_id, again.generation_id, given={first.member_id: assigned(topic, 0)}
    )
    talk.hear(follower)
    group.leave("second leaves", (second.member_id, None))
    group.describe("preparing again")
    group.beat("first is told", first.member_id, again.generation_id)


@dialogue(ConsumerGroupHeartbeatRequest, ConsumerGroupDescribeRequest)
def group_goes_to_the_consumer_protocol(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    classic = Group(talk)
    consumers = Consumers(talk)
    consumers.await_topic(topic)
    old = classic.join("classic joins", topics=(topic,))
    given = {old.member_id: assigned(topic, 0, 1)}
    classic.sync("classic syncs", old.member_id, old.generation_id, given=given)
    new = consumers.enter("consumer joins", "new", topic)
    consumers.describe("both")
    talk.ask("as classic", DescribeGroupsRequest(groups=(classic.name,)))
    classic.beat("classic is told", old.member_id, old.generation_id)
    again = classic.join("classic joins again", old.member_id, topics=(topic,))
    classic.sync("classic syncs again", old.member_id, again.generation_id, given={})
    consumers.settle("consumer has its share", "new", new)
    consumers.describe("balanced")
    classic.leave("classic leaves", (old.member_id, None))
    consumers.settle("consumer has all", "new", consumers.report("consumer asks", "new", new.member_epoch))
    consumers.describe("one left")


@dialogue(ConsumerGroupHeartbeatRequest, ConsumerGroupDescribeRequest)
def empty_group_changes_its_protocol(talk: Talk) -> None:
    topic = talk.topic("orders")
    classic, consumers = Group(talk), Consumers(talk)
    consumers.await_topic(topic)
    old = classic.join("classic joins", topics=(topic,))
    classic.sync("classic syncs", old.member_id, old.generation_id)
    talk.ask(
        "classic commits",
        commit(
            {0: 3}, group=classic.name, topic=topic, topic_id=talk.ids[topic], member_id=old.member_id,
            generation=old.generation_id,
        ),
    )  # fmt: skip
    classic.leave("classic leaves", (old.member_id, None))
    consumers.settle("consumer settles", "new", consumers.enter("consumer joins", "new", topic))
    consumers.describe("as a consumer group")
    talk.ask("as a classic group", DescribeGroupsRequest(groups=(classic.name,)))
    consumers.report("consumer leaves", "new", -1)
    back = classic.join("classic is back", topics=(topic,))
    classic.sync("classic syncs again", back.member_id, back.generation_id)
    consumers.describe("no consumer group any more")
    talk.ask("as a classic group again", DescribeGroupsRequest(groups=(classic.name,)))


@dialogue(OffsetCommitRequest)
def offsets_of_another_protocol(talk: Talk) -> None:
    """Members of one protocol that commit as those of the other would."""
    topic = talk.topic("orders")
    consumers, classic = Consumers(talk, "consumers"), Group(talk, "classic")
    new = consumers.settle("consumer settles", "new", consumers.enter("consumer joins", "new", topic))
    old = classic.join("classic joins", topics=(topic,))
    classic.sync("classic syncs", old.member_id, old.generation_id)

    def put(step: str, group: str, member: str, epoch: int) -> None:
        request = commit({0: 1}, group=group, topic=topic, topic_id=talk.ids[topic], member_id=member, generation=epoch)
        talk.ask(step, request)

    put("a consumer", consumers.name, talk.name("new"), new.member_epoch)
    put("a classic member in a consumer group", consumers.name, old.member_id, old.generation_id)
    put("a consumer in a classic group", classic.name, talk.name("new"), new.member_epoch)
    put("nobody in a consumer group", consumers.name, "", -1)
    put("nobody in a classic group", classic.name, "", -1)
    classic_join = join(group=consumers.name, topics=(topic,), protocols=("roundrobin",), protocol_type="other")
    talk.ask("another protocol type at a consumer group", classic_join)
