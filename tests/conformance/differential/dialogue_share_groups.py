"""Share groups (KIP-932): members, deliveries, acknowledgements, where a group begins."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from conformance.differential.dialogue_classic_groups import Group
from conformance.differential.dialogue_configs import SET, change
from conformance.differential.dialogue_consumer_groups import Consumers
from conformance.differential.talk import PATIENCE_SECONDS, Talk, dialogue
from penstock.codec.kafka.messages import alter_share_group_offsets as ao
from penstock.codec.kafka.messages import delete_share_group_offsets as do
from penstock.codec.kafka.messages import describe_share_group_offsets as so
from penstock.codec.kafka.messages import share_acknowledge as sa
from penstock.codec.kafka.messages import share_fetch as sf
from penstock.codec.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from penstock.codec.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from support.door.kafka_phrases import batch, produce
from support.group.phrases import commit, enter, join, positions

GROUP_SETTINGS = 32
ACCEPT, RELEASE, REJECT = 1, 2, 3
Ranges = Sequence[tuple[int, int, int]]


class Sharers:
    """One share group of a talk."""

    def __init__(self, talk: Talk, word: str = "group") -> None:
        self.talk = talk
        self.name = talk.name(word)

    def member(self, word: str) -> str:
        """Kafka reads a member's id as a UUID in its own text form."""
        return base64.urlsafe_b64encode(hashlib.md5(self.talk.name(word).encode()).digest()).decode()[:22]

    def report(self, step: str, word: str, epoch: int, topics: Sequence[str] | None = None, **how: Any) -> Any:
        request = ShareGroupHeartbeatRequest(self.name, self.member(word), epoch, None, topics)
        return self.talk.ask(step, request, **how)

    def enter(self, step: str, word: str, topic: str) -> Any:
        """Joins, and reports until it is assigned something: Kafka first makes room for the group's state."""
        reply = self.report(step, word, 0, (topic,), show=lambda answer: answer.error_code)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while reply.assignment is None or not reply.assignment.topic_partitions:
            assert time.monotonic() < deadline, f"nothing was assigned, last heard {reply}"
            reply = self.talk.quietly(
                ShareGroupHeartbeatRequest(self.name, self.member(word), reply.member_epoch, None, (topic,))
            )
        # Which partitions is the assignor's own affair: it looks at the members' ids, and those are new in every run.
        assigned = {each.topic_id: len(each.partitions) for each in reply.assignment.topic_partitions}
        topics = sorted(name for name, topic_id in self.talk.ids.items() if topic_id in assigned)
        self.talk.note(f"{step}, assigned", [topics, sum(assigned.values())])
        return reply

    def describe(self, step: str) -> None:
        self.talk.ask(step, ShareGroupDescribeRequest(group_ids=(self.name,)))


class ShareReader:
    """A member's share session with one topic."""

    def __init__(self, group: Sharers, word: str, topic: str) -> None:
        self.group, self.word, self.topic_id = group, word, group.talk.ids[topic]
        self.epoch = 0

    def request(
        self, partitions: Sequence[int] = (0,), acks: Ranges = (), *, records: int = 100, epoch: int | None = None
    ) -> sf.ShareFetchRequest:
        batches = tuple(sf.AcknowledgementBatch(first, last, (kind,)) for first, last, kind in acks)
        places = tuple(sf.FetchPartition(number, batches if number == 0 else ()) for number in partitions)
        return sf.ShareFetchRequest(
            group_id=self.group.name,
            member_id=self.group.member(self.word),
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=200,
            min_bytes=1,
            max_records=records,
            batch_size=records,
            topics=(sf.FetchTopic(self.topic_id, places),) if partitions else (),
        )

    def fetch(self, step: str, partitions: Sequence[int] = (0,), acks: Ranges = (), *, records: int = 100) -> Any:
        reply = self.group.talk.ask(step, self.request(partitions, acks, records=records))
        self.epoch += 1
        return reply

    def until_something(self, step: str) -> Any:
        """Kafka loads a share partition when it is first asked for; how long that takes is not compared."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            reply = self.group.talk.quietly(self.request())
            self.epoch += 1
            if any(place.acquired_records for topic in reply.responses for place in topic.partitions):
                break
            assert time.monotonic() < deadline, f"nothing was delivered, last heard {reply}"
        self.group.talk.note(step, reply)
        return reply

    def acknowledge(self, step: str, acks: Ranges, partition: int = 0, *, epoch: int | None = None) -> Any:
        batches = tuple(sa.AcknowledgementBatch(first, last, (kind,)) for first, last, kind in acks)
        topic = sa.AcknowledgeTopic(self.topic_id, (sa.AcknowledgePartition(partition, batches),))
        request = sa.ShareAcknowledgeRequest(
            group_id=self.group.name,
            member_id=self.group.member(self.word),
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=(topic,) if acks else (),
        )
        reply = self.group.talk.ask(step, request)
        if epoch is None:
            self.epoch += 1
        return reply


def from_the_start(talk: Talk, group: Sharers) -> None:
    talk.quietly(change(group.name, ("share.auto.offset.reset", SET, "earliest"), kind=GROUP_SETTINGS))


def filled(talk: Talk, count: int = 6) -> str:
    topic = talk.topic("jobs")
    for number in range(count):
        talk.quietly(produce(topic, batch(b"job %d" % number), topic_id=talk.ids[topic]))
    return topic


@dialogue(ShareGroupHeartbeatRequest, ShareGroupDescribeRequest)
def share_group_members(talk: Talk) -> None:
    topic = talk.topic("jobs", 2)
    group = Sharers(talk)
    group.describe("before")
    group.report("no such group", "a", 3)
    me = group.enter("join", "a", topic)
    group.describe("one")
    group.report("on", "a", me.member_epoch)
    group.report("epoch too high", "a", me.member_epoch + 1)
    group.report("another member", "b", me.member_epoch)
    group.enter("another joins", "b", topic)
    group.report("leave", "a", -1)
    group.report("after leaving", "a", me.member_epoch)
    group.report("leave again", "a", -1)
    group.report("epoch minus two", "b", -2)
    nameless = Sharers(talk)
    nameless.name = ""
    nameless.report("no group id", "a", 0, (topic,))
    group.report("no topics", "c", 0, None)
    group.report("empty topics", "c", 0, ())


@dialogue(sf.ShareFetchRequest, sa.ShareAcknowledgeRequest)
def share_deliveries(talk: Talk) -> None:
    topic = filled(talk)
    group = Sharers(talk)
    from_the_start(talk, group)
    group.enter("join", "a", topic)
    reader = ShareReader(group, "a", topic)
    reader.until_something("delivered")
    reader.fetch("nothing more")
    reader.fetch("accept two, release two", acks=((0, 1, ACCEPT), (2, 3, RELEASE)))
    reader.fetch("what was released, maybe")
    reader.acknowledge("reject one", ((4, 4, REJECT),))
    reader.acknowledge("accept again", ((0, 0, ACCEPT),))
    reader.acknowledge("accept what is not there", ((90, 91, ACCEPT),))
    reader.acknowledge("backwards", ((5, 4, ACCEPT),))
    reader.acknowledge("no such kind", ((5, 5, 9),))
    reader.acknowledge("no such partition", ((5, 5, ACCEPT),), 7)
    reader.acknowledge("accept the rest", ((5, 5, ACCEPT),))


@dialogue(sf.ShareFetchRequest, sa.ShareAcknowledgeRequest)
def share_sessions(talk: Talk) -> None:
    topic = filled(talk, 2)
    group = Sharers(talk)
    from_the_start(talk, group)
    group.enter("join", "a", topic)
    reader = ShareReader(group, "a", topic)
    reader.acknowledge("before there is one", ((0, 0, ACCEPT),), epoch=1)
    reader.acknowledge("opened by an acknowledgement", ((0, 0, ACCEPT),), epoch=0)
    reader.until_something("delivered")
    talk.ask("epoch again", reader.request(epoch=reader.epoch - 1))
    talk.ask("epoch too far", reader.request(epoch=reader.epoch + 5))
    reader.acknowledge("epoch too far to acknowledge", ((0, 0, ACCEPT),), epoch=reader.epoch + 5)
    reader.fetch("no such partition", (0, 9))
    talk.ask("closed, with an acknowledgement", reader.request((0,), ((0, 0, ACCEPT),), epoch=-1))
    talk.ask("after the end", reader.request())
    stranger = ShareReader(group, "stranger", topic)
    talk.ask("a stranger", stranger.request())
    nobody = sf.ShareFetchRequest(group_id=None, member_id=None)
    talk.ask("nobody", nobody)


@dialogue(so.DescribeShareGroupOffsetsRequest, ao.AlterShareGroupOffsetsRequest, do.DeleteShareGroupOffsetsRequest)
def share_group_offsets(talk: Talk) -> None:
    topic = filled(talk)
    group = Sharers(talk)

    def look(step: str, name: str | None = topic, *, group_id: str = group.name) -> None:
        topics = None if name is None else (so.DescribeShareGroupOffsetsRequestTopic(name, (0,)),)
        wish = so.DescribeShareGroupOffsetsRequestGroup(group_id, topics)
        talk.ask(step, so.DescribeShareGroupOffsetsRequest(groups=(wish,)))

    def alter(step: str, offset: int, name: str = topic, partition: int = 0) -> None:
        place = ao.AlterShareGroupOffsetsRequestPartition(partition, offset)
        wish = ao.AlterShareGroupOffsetsRequestTopic(name, (place,))
        talk.ask(step, ao.AlterShareGroupOffsetsRequest(group_id=group.name, topics=(wish,)))

    def delete(step: str, name: str) -> None:
        wish = do.DeleteShareGroupOffsetsRequestTopic(name)
        talk.ask(step, do.DeleteShareGroupOffsetsRequest(group_id=group.name, topics=(wish,)))

    look("no such group")
    alter("no such group to alter", 1)
    delete("no such group to delete from", topic)
    from_the_start(talk, group)
    me = group.enter("join", "a", topic)
    reader = ShareReader(group, "a", topic)
    reader.until_something("delivered")
    reader.acknowledge("accept two", ((0, 1, ACCEPT),))
    look("two are done")
    alter("with members", 3)
    delete("with members to delete", topic)
    talk.ask("closed", reader.request((), epoch=-1))
    group.report("leave", "a", -1)
    talk.note("epoch", me.member_epoch > 0)
    look("all of it", None)
    alter("to three", 3)
    look("three")
    alter("no such partition", 3, partition=9)
    alter("no such topic", 3, talk.name("absent"))
    look("no such topic to look at", talk.name("absent"))
    delete("no such topic to delete", talk.name("absent"))
    delete("delete", topic)
    look("deleted")


@dialogue(ShareGroupHeartbeatRequest)
def share_groups_among_others(talk: Talk) -> None:
    """One name, another kind of group: whoever comes second is refused."""
    topic = talk.topic("jobs")
    topic_id = talk.ids[topic]
    shared, consumers, classic = Sharers(talk, "shared"), Consumers(talk, "consumers"), Group(talk, "classic")
    shared.enter("share joins", "a", topic)
    consumers.settle("consumer settles", "a", consumers.enter("consumer joins", "a", topic))
    old = classic.join("classic joins", topics=(topic,))
    classic.sync("classic syncs", old.member_id, old.generation_id)
    names = (shared.name, consumers.name, classic.name)
    talk.ask("classic at a share group", join(group=shared.name, topics=(topic,)))
    talk.ask("consumer at a share group", enter(talk.name("x"), topics=(topic,), group=shared.name))
    for name, word in ((consumers.name, "consumer"), (classic.name, "classic")):
        request = ShareGroupHeartbeatRequest(name, shared.member("x"), 0, None, (topic,))
        talk.ask(f"share at a {word} group", request)
    talk.ask("described as classic", DescribeGroupsRequest(groups=names))
    talk.ask("described as consumers", ConsumerGroupDescribeRequest(group_ids=names))
    talk.ask("described as share groups", ShareGroupDescribeRequest(group_ids=names), show=states)
    talk.ask("commit to a share group", commit({0: 1}, group=shared.name, topic=topic, topic_id=topic_id))
    talk.ask("fetch from a share group", positions([0], group=shared.name, topic=topic, topic_id=topic_id))

    def own(reply: ListGroupsResponse) -> ListGroupsResponse:
        return msgspec.structs.replace(reply, groups=[each for each in reply.groups if each.group_id in names])

    talk.ask("listed", ListGroupsRequest(), show=own)
    talk.ask("share groups listed", ListGroupsRequest(types_filter=("share",)), show=own)
    talk.ask("deleted", DeleteGroupsRequest(groups_names=names))
    shared.report("share leaves", "a", -1)
    talk.ask("empty", ShareGroupDescribeRequest(group_ids=names[:1]), show=states)
    talk.ask("empty ones listed", ListGroupsRequest(states_filter=("Empty",)), show=own)
    talk.ask("deleted when empty", DeleteGroupsRequest(groups_names=names[:1]))
    shared.describe("gone")


def states(reply: ShareGroupDescribeResponse) -> list[tuple[str, int, str, int]]:
    """Without their epochs: those of different groups say nothing about each other."""
    return sorted((each.group_id, each.error_code, each.group_state, len(each.members)) for each in reply.groups)
