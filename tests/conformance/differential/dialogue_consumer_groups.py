"""The KIP-848 protocol: heartbeats that join, report, are assigned and leave."""

from __future__ import annotations

import time
from typing import Any

from conformance.differential.talk import PATIENCE_SECONDS, Talk, dialogue
from penstock.codec.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from support.group.phrases import LONG_MS, commit, enter, join, positions, report

ABOUT = (ConsumerGroupHeartbeatRequest, ConsumerGroupDescribeRequest)


class Consumers:
    """One KIP-848 group of a talk."""

    def __init__(self, talk: Talk, word: str = "group") -> None:
        self.talk = talk
        self.name = talk.name(word)

    def enter(self, step: str, member: str, topic: str | None, **how: Any) -> ConsumerGroupHeartbeatResponse:
        topics = None if topic is None else (topic,)
        if topic in self.talk.ids:
            self.await_topic(topic)
        return self._ask(step, enter(self._member(member), topics=topics, group=self.name, **how))

    def report(self, step: str, member: str, epoch: int, **how: Any) -> ConsumerGroupHeartbeatResponse:
        return self._ask(step, report(self._member(member), epoch, group=self.name, **how))

    def await_topic(self, topic: str) -> None:
        """Kafka's coordinator hears of a new topic a moment after its broker: a group that nobody looks at tries."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        probe = self.talk.name("probe")
        while True:
            reply = self.talk.quietly(enter(probe, topics=(topic,), group=probe))
            self.talk.quietly(report(reply.member_id, -1, group=probe))
            if reply.assignment is not None and reply.assignment.topic_partitions:
                return
            assert time.monotonic() < deadline, f"{topic} is not assigned to anybody"

    def settle(self, step: str, member: str, reply: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        """Reports what it was given as owned, as a client does, until nothing is new; writes the last answer down."""
        owned: dict[bytes, list[int]] = {}
        for number in range(20):
            if reply.assignment is not None:
                owned = {each.topic_id: list(each.partitions) for each in reply.assignment.topic_partitions}
            elif number:
                break
            request = report(self._member(member), reply.member_epoch, owned=owned, group=self.name)
            reply = self.talk.quietly(request)
        self.talk.note(step, (reply, sorted(number for each in owned.values() for number in each)))
        return reply

    def describe(self, step: str) -> None:
        self.talk.ask(step, ConsumerGroupDescribeRequest(group_ids=(self.name,)))

    def _member(self, word: str) -> str:
        """In version 0 the broker draws the id of a new member; a name of ours does no harm there."""
        return self.talk.name(word) if word else ""

    def _ask(self, step: str, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        return self.talk.ask(step, request)  # type: ignore[no-any-return]


@dialogue(*ABOUT)
def consumer_group_of_one(talk: Talk) -> None:
    topic = talk.topic("orders", 3)
    topic_id = talk.ids[topic]
    group = Consumers(talk)
    group.describe("before")
    me = group.enter("join", "a", topic)
    group.describe("joined")
    all_of_it = {topic_id: [0, 1, 2]}
    group.report("owns all", "a", me.member_epoch, owned=all_of_it)
    group.report("nothing to tell", "a", me.member_epoch)
    group.describe("stable")
    group.report("epoch too high", "a", me.member_epoch + 1)
    group.report("another member", "b", me.member_epoch)
    group.enter("joins again", "a", topic)
    group.report("leave", "a", -1)
    group.report("after leaving", "a", me.member_epoch)
    group.report("leave again", "a", -1)
    group.describe("empty")


@dialogue(*ABOUT)
def consumer_group_old_epochs(talk: Talk) -> None:
    topic, other = talk.topic("orders", 3), talk.topic("invoices")
    group = Consumers(talk)
    group.await_topic(other)
    me = group.settle("has all", "a", group.enter("join", "a", topic))
    me = group.settle("has both", "a", group.report("subscribes", "a", me.member_epoch, topics=(topic, other)))
    me = group.settle("has one", "a", group.report("changes", "a", me.member_epoch, topics=(other,)))
    me = group.settle("has the other", "a", group.report("changes again", "a", me.member_epoch, topics=(topic,)))
    group.report("long past", "a", me.member_epoch - 2)
    group.report("the one before", "a", me.member_epoch - 1)
    group.report("the one before, owning too much", "a", me.member_epoch - 1, owned={talk.ids[other]: [0]})
    group.report("the one before, owning what it has", "a", me.member_epoch - 1, owned={talk.ids[topic]: [0, 1, 2]})
    group.report("now", "a", me.member_epoch)


@dialogue(*ABOUT)
def consumer_group_of_two(talk: Talk) -> None:
    topic = talk.topic("orders", 4)
    group = Consumers(talk)
    first = group.settle("first has all", "a", group.enter("first joins", "a", topic))
    second = group.enter("second joins", "b", topic)
    group.describe("not yet balanced")
    group.report("second waits", "b", second.member_epoch)
    told = group.report("first is told", "a", first.member_epoch)
    if told.assignment is not None:
        kept = {each.topic_id: list(each.partitions) for each in told.assignment.topic_partitions}
        group.report("first gives up", "a", told.member_epoch, owned=kept)
    group.settle("second has its share", "b", second)
    group.describe("balanced")
    group.report("second leaves", "b", -1)
    group.describe("one left")


@dialogue(*ABOUT)
def consumer_group_errors(talk: Talk) -> None:
    topic = talk.topic("orders")
    group = Consumers(talk)
    group.report("no such group", "a", 3)
    group.report("leave no group", "a", -1)
    nameless = Consumers(talk)
    nameless.name = ""
    nameless.enter("no group id", "a", topic)
    group.enter("no subscription", "a", None)
    version = talk.version(ConsumerGroupHeartbeatRequest)
    if version >= 1:
        group.enter("no member id", "", topic)
    request = report(talk.name("a"), 0, topics=(topic,), owned={}, group=group.name, rebalance_ms=-1)
    talk.ask("no rebalance timeout", request)
    request = report(talk.name("a"), 0, topics=(topic,), owned=None, group=group.name, rebalance_ms=LONG_MS)
    talk.ask("owns null", request)
    owned = {talk.ids[topic]: [0]}
    request = report(talk.name("a"), 0, topics=(topic,), owned=owned, group=group.name, rebalance_ms=LONG_MS)
    talk.ask("owns something", request)
    group.enter("no such assignor", "a", topic, assignor="clever")
    group.enter("empty assignor", "a", topic, assignor="")
    group.enter("empty rack", "a", topic, rack_id="")
    group.enter("empty instance", "a", topic, instance_id="")
    group.report("epoch minus three", "a", -3)
    group.report("static leave without an instance", "a", -2)
    group.describe("afterwards")


@dialogue(*ABOUT)
def consumer_group_subscriptions(talk: Talk) -> None:
    topic, other = talk.topic("orders", 2), talk.topic("invoices")
    group = Consumers(talk)
    group.await_topic(topic)
    group.await_topic(other)
    me = group.enter("a topic that is not", "a", talk.name("absent"))
    me = group.report("another topic", "a", me.member_epoch, topics=(topic,))
    me = group.settle("has it", "a", me)
    me = group.report("two topics", "a", me.member_epoch, topics=(topic, other))
    me = group.settle("has both", "a", me)
    me = group.report("no topics", "a", me.member_epoch, topics=())
    group.settle("has none", "a", me)
    if talk.version(ConsumerGroupHeartbeatRequest) >= 1:
        bad = Consumers(talk, "bad")
        bad.enter("bad expression", "a", None, regex="(")
        bad.enter("range assignor", "a", topic, assignor="range")
        bad.describe("range")


@dialogue(ConsumerGroupHeartbeatRequest)
def consumer_group_expressions(talk: Talk) -> None:
    if talk.version(ConsumerGroupHeartbeatRequest) < 1:
        return
    talk.topic("orders-1", 2)
    talk.topic("orders-2")
    group = Consumers(talk)
    request = enter(talk.name("a"), topics=None, group=group.name, regex=talk.name("orders-.*"))
    me = talk.quietly(request)
    # Kafka resolves an expression in the background, so how many heartbeats it takes is not compared.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while me.assignment is None or len(me.assignment.topic_partitions) < 2:
        assert time.monotonic() < deadline, f"no topics for the expression, last heard {me}"
        me = talk.quietly(report(talk.name("a"), me.member_epoch, group=group.name))
    group.settle("has all", "a", me)
    group.describe("described")


@dialogue(*ABOUT)
def consumer_group_static(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    group = Consumers(talk)
    me = group.settle("has all", "a", group.enter("join", "a", topic, instance_id="one"))
    group.enter("the same instance, another member", "b", topic, instance_id="one")
    group.report("temporary leave", "a", -2, instance_id="one")
    back = group.enter("taken over", "b", topic, instance_id="one")
    group.report("the old member", "a", me.member_epoch, instance_id="one")
    group.report("the new member", "b", back.member_epoch, instance_id="one")
    group.report("unknown instance", "c", 1, instance_id="two")
    group.report("a leave of an unknown instance", "b", -1, instance_id="two")
    group.describe("described")
    group.report("leave", "b", -1, instance_id="one")
    group.describe("empty")


@dialogue(OffsetCommitRequest, OffsetFetchRequest)
def consumer_group_offsets(talk: Talk) -> None:
    topic, other = talk.topic("orders", 2), talk.topic("other")
    topic_id = talk.ids[topic]
    group = Consumers(talk)
    group.await_topic(other)
    me = group.settle("has all", "a", group.enter("join", "a", topic))

    def put(step: str, member: str, epoch: int) -> None:
        member_id = talk.name(member) if member else ""
        request = commit(
            {0: 5}, group=group.name, topic=topic, topic_id=topic_id, member_id=member_id, generation=epoch
        )
        talk.ask(step, request)

    put("commit", "a", me.member_epoch)
    put("epoch too high", "a", me.member_epoch + 1)
    me = group.settle("changed", "a", group.report("changes", "a", me.member_epoch, topics=(other, topic)))
    put("epoch before", "a", me.member_epoch - 1)
    put("epoch before it joined", "a", 0)
    put("negative epoch", "a", -5)
    put("unknown member", "x", me.member_epoch)
    put("no member", "", -1)
    for step, member, epoch in (("fetch", "a", me.member_epoch), ("stale", "a", 99), ("unknown", "x", me.member_epoch)):
        request = positions(
            [0], group=group.name, topic=topic, topic_id=topic_id, member_id=talk.name(member), member_epoch=epoch
        )
        talk.ask(f"{step} fetches", request)
    talk.ask("nobody fetches", positions([0], group=group.name, topic=topic, topic_id=topic_id))


@dialogue(*ABOUT)
def consumer_and_classic(talk: Talk) -> None:
    """Members of the other protocol at a group that has members."""
    topic = talk.topic("orders", 2)
    group = Consumers(talk)
    group.settle("consumer has all", "a", group.enter("consumer joins", "a", topic))
    talk.ask("classic of another type", join(group=group.name, protocol_type="connect", topics=(topic,)))
    group.report("consumer leaves", "a", -1)
    group.describe("empty")
