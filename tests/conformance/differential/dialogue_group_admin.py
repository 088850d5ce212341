"""ListGroups, DescribeGroups, DeleteGroups over groups of both kinds and in every state."""

from __future__ import annotations

import msgspec

from conformance.differential.dialogue_classic_groups import Group
from conformance.differential.dialogue_consumer_groups import Consumers
from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from support.group.phrases import commit, positions


def population(talk: Talk) -> tuple[str, ...]:
    """One group of each sort: offsets alone, classic with a member, classic and empty, consumer, consumer and empty."""
    topic = talk.topic("orders")
    talk.quietly(commit({0: 1}, group=talk.name("offsets"), topic=topic, topic_id=talk.ids[topic]))
    for word in ("classic", "left"):
        group = Group(talk, word)
        me = group.join(f"{word} joins")
        group.sync(f"{word} syncs", me.member_id, me.generation_id)
        if word == "left":
            group.leave("left leaves", (me.member_id, None))
    for word in ("consumer", "gone"):
        consumers = Consumers(talk, word)
        consumers.settle(f"{word} settles", "a", consumers.enter(f"{word} joins", "a", topic))
        if word == "gone":
            consumers.report("gone leaves", "a", -1)
    return tuple(talk.name(word) for word in ("offsets", "classic", "left", "consumer", "gone", "absent"))


@dialogue(ListGroupsRequest)
def list_groups(talk: Talk) -> None:
    names = population(talk)

    def own(reply: ListGroupsResponse) -> ListGroupsResponse:
        return msgspec.structs.replace(reply, groups=[each for each in reply.groups if each.group_id in names])

    def ask(step: str, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> None:
        talk.ask(step, ListGroupsRequest(states_filter=states, types_filter=types), show=own)

    ask("all")
    ask("stable", ("Stable",))
    ask("empty, lower case", ("empty",))
    ask("no such state", ("Happy",))
    ask("classic", types=("classic",))
    ask("consumer, upper case", types=("CONSUMER",))
    ask("no such type", types=("club",))
    ask("empty consumer", ("Empty",), ("consumer",))


@dialogue(DescribeGroupsRequest)
def describe_groups(talk: Talk) -> None:
    names = population(talk)
    talk.ask("all sorts", DescribeGroupsRequest(groups=names))
    talk.ask("with operations", DescribeGroupsRequest(groups=names[:1], include_authorized_operations=True))
    talk.ask("twice", DescribeGroupsRequest(groups=(names[1], names[1])))
    talk.ask("no id", DescribeGroupsRequest(groups=("",)))
    talk.ask("none", DescribeGroupsRequest(groups=()))


@dialogue(ConsumerGroupDescribeRequest)
def consumer_group_describe(talk: Talk) -> None:
    names = population(talk)
    talk.ask("all sorts", ConsumerGroupDescribeRequest(group_ids=names))
    request = ConsumerGroupDescribeRequest(group_ids=names[3:4], include_authorized_operations=True)
    talk.ask("with operations", request)
    talk.ask("no id", ConsumerGroupDescribeRequest(group_ids=("",)))


@dialogue(DeleteGroupsRequest)
def delete_groups(talk: Talk) -> None:
    names = population(talk)
    talk.ask("all sorts", DeleteGroupsRequest(groups_names=names))
    talk.ask("again", DeleteGroupsRequest(groups_names=names))
    talk.ask("no id", DeleteGroupsRequest(groups_names=("",)))
    talk.ask("twice", DeleteGroupsRequest(groups_names=(names[0], names[0])))
    talk.ask("described", DescribeGroupsRequest(groups=names[:3]))
    talk.ask("offsets are gone", positions(None, group=names[0]))


@dialogue(OffsetDeleteRequest)
def group_outlives_its_offsets(talk: Talk) -> None:
    """Of a group that never had members nothing is left but that it was there."""
    topic, group = talk.topic("orders"), talk.name("offsets")
    talk.ask("committed", commit({0: 1}, group=group, topic=topic, topic_id=talk.ids[topic]))
    partitions = (OffsetDeleteRequestPartition(0),)
    gone = OffsetDeleteRequest(group_id=group, topics=(OffsetDeleteRequestTopic(topic, partitions),))
    talk.ask("deleted", gone)
    talk.ask("described", DescribeGroupsRequest(groups=(group,)))
    talk.ask("deleted again", gone)
    talk.ask("ended", DeleteGroupsRequest(groups_names=(group,)))
    talk.ask("ended again", DeleteGroupsRequest(groups_names=(group,)))
