"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, inside a group and outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.differential.dialogue_classic_groups import Group
from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages import offset_delete as od
from penstock.codec.kafka.messages import offset_fetch as of
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest
from penstock.codec.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from support.group.phrases import commit, found_positions, positions


@dialogue(OffsetCommitRequest, of.OffsetFetchRequest)
def offsets_without_members(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    topic_id, group = talk.ids[topic], talk.name("group")

    def put(step: str, offsets: dict[int, int], **how: Any) -> None:
        talk.ask(step, commit(offsets, group=group, topic=topic, topic_id=topic_id, **how))

    def look(step: str, partitions: Sequence[int] | None, **how: Any) -> None:
        talk.ask(step, positions(partitions, **{"group": group, "topic": topic, "topic_id": topic_id, **how}))

    look("unknown group", [0, 1])
    if talk.version(of.OffsetFetchRequest) >= 2:
        look("all of an unknown group", None)
    put("commit", {0: 5, 1: 7})
    look("fetch", [0, 1])
    look("one of them", [1])
    look("no such partition", [0, 9])
    look("no such topic", [0], topic=talk.name("absent"), topic_id=bytes(15) + b"\x05")
    if talk.version(of.OffsetFetchRequest) >= 2:
        look("all", None)
    if talk.version(of.OffsetFetchRequest) >= 7:
        look("stable", [0], stable=True)
    put("with a text", {0: 6}, metadata="a note")
    put("null text", {1: 8}, metadata=None)
    put("text too long", {0: 6}, metadata="x" * 5000)
    put("backwards", {0: 1})
    put("negative", {0: -1})
    put("no such partition", {9: 1})
    look("then", [0, 1, 9])
    absent = commit({0: 1}, group=group, topic=talk.name("absent"), topic_id=bytes(15) + b"\x05")
    talk.ask("no such topic to commit", absent)
    talk.ask("no group id", commit({0: 1}, group="", topic=topic, topic_id=topic_id))
    put("a member of no group", {0: 1}, member_id="somebody", generation=1)
    put("a generation without a member", {0: 1}, generation=3)
    look("no group id to fetch", [0], group="")
    # The group without a name belongs to every run, so it is left as it was found.
    talk.quietly(DeleteGroupsRequest(groups_names=("",)))


@dialogue(OffsetCommitRequest, of.OffsetFetchRequest)
def offsets_of_members(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    group = Group(talk)

    def put(step: str, **how: Any) -> None:
        talk.ask(step, commit({0: 5}, group=group.name, topic=topic, topic_id=talk.ids[topic], **how))

    me = group.join("join")
    put("before sync", member_id=me.member_id, generation=me.generation_id)
    group.sync("sync", me.member_id, me.generation_id)
    put("commit", member_id=me.member_id, generation=me.generation_id)
    put("old generation", member_id=me.member_id, generation=me.generation_id - 1)
    put("generation too high", member_id=me.member_id, generation=me.generation_id + 1)
    put("unknown member", member_id="somebody", generation=me.generation_id)
    put("no member", member_id="", generation=-1)
    if talk.version(OffsetCommitRequest) >= 7:
        put("unknown instance", member_id=me.member_id, generation=me.generation_id, instance_id="who")
    group.leave("leave", (me.member_id, None))
    put("after leaving", member_id=me.member_id, generation=me.generation_id)
    put("when empty", member_id="", generation=-1)
    talk.ask("then", positions([0], group=group.name, topic=topic, topic_id=talk.ids[topic]))


@dialogue(of.OffsetFetchRequest)
def offsets_of_several_groups(talk: Talk) -> None:
    version = talk.version(of.OffsetFetchRequest)
    if version < 8:
        return
    topic = talk.topic("orders")
    topic_id = talk.ids[topic]
    names = [talk.name(word) for word in ("one", "two", "three")]
    for number, name in enumerate(names[:2]):
        talk.quietly(commit({0: number}, group=name, topic=topic, topic_id=topic_id))
    wanted = (of.OffsetFetchRequestTopics(topic, topic_id, (0,)),)
    groups = [of.OffsetFetchRequestGroup(group_id=name, topics=wanted) for name in names]
    groups.append(of.OffsetFetchRequestGroup(group_id=names[0], topics=None))
    talk.ask("four", of.OffsetFetchRequest(groups=tuple(groups)))
    talk.ask("nobody", of.OffsetFetchRequest(groups=()))
    if version >= 9:
        group = of.OffsetFetchRequestGroup(group_id=names[0], member_id="somebody", member_epoch=3, topics=wanted)
        talk.ask("as a member", of.OffsetFetchRequest(groups=(group,)))


@dialogue(od.OffsetDeleteRequest)
def offsets_deleted(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    topic_id, group = talk.ids[topic], talk.name("group")

    def drop(step: str, name: str, *partitions: int, group: str = group) -> None:
        places = tuple(od.OffsetDeleteRequestPartition(number) for number in partitions)
        request = od.OffsetDeleteRequest(group_id=group, topics=(od.OffsetDeleteRequestTopic(name, places),))
        talk.ask(step, request)

    drop("no such group", topic, 0)
    drop("no group id", topic, 0, group="")
    talk.quietly(commit({0: 1, 1: 2}, group=group, topic=topic, topic_id=topic_id))
    drop("one", topic, 0)
    drop("again", topic, 0)
    drop("no such partition", topic, 9)
    drop("no such topic", talk.name("absent"), 0)
    talk.ask("then", positions(None, group=group))
    members = Group(talk, "members")
    me = members.join("join", topics=(topic,))
    members.sync("sync", me.member_id, me.generation_id)
    talk.quietly(
        commit(
            {0: 1}, group=members.name, topic=topic, topic_id=topic_id, member_id=me.member_id,
            generation=me.generation_id,
        )
    )  # fmt: skip
    drop("while subscribed", topic, 0, group=members.name)
    drop("another topic while subscribed", talk.topic("other"), 0, group=members.name)
    others = Group(talk, "connect")
    other = others.join("another protocol type joins", protocol_type="connect")
    others.sync("and syncs", other.member_id, other.generation_id)
    drop("while members of another protocol are there", topic, 0, group=others.name)


@dialogue(of.OffsetFetchRequest)
def offsets_of_deleted_topics(talk: Talk) -> None:
    topic = talk.topic("short-lived")
    topic_id, group = talk.ids[topic], talk.name("group")
    talk.quietly(commit({0: 4}, group=group, topic=topic, topic_id=topic_id))
    talk.quietly(DeleteTopicsRequest(topics=(DeleteTopicState(name=topic),), topic_names=(topic,), timeout_ms=10_000))
    talk.await_gone(topic)
    talk.ask(
        "forgotten",
        positions([0], group=group, topic=topic, topic_id=topic_id),
        until=lambda reply: all(place.committed_offset == -1 for place in found_positions(reply).values()),
    )
