"""Topics that are deleted and made again: what was said about the old one means nothing for the new."""

from __future__ import annotations

from conformance.differential.dialogue_fetch import filled
from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.codec.kafka.messages.fetch import FetchRequest
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import batch, fetch, fetch_many, list_offsets, produce, wanted
from support.group.phrases import commit, found_positions, positions


def delete(talk: Talk, topic: str) -> None:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=topic),), topic_names=(topic,), timeout_ms=10_000)
    talk.quietly(request)
    talk.await_gone(topic)


@dialogue(ProduceRequest, FetchRequest)
def topic_made_again(talk: Talk) -> None:
    topic, old_id = filled(talk, "again")
    delete(talk, topic)
    if talk.version(ProduceRequest) >= 13:
        talk.ask("produce to what is gone", produce(topic, batch(b"x"), topic_id=old_id))
    if talk.version(FetchRequest) >= 13:
        talk.ask("fetch what is gone", fetch(topic, topic_id=old_id))
    talk.topic("again", 2)
    new_id = talk.ids[topic]
    talk.note("another id", old_id != new_id)
    talk.ask("empty", list_offsets(topic, -1))
    talk.ask("produce", produce(topic, batch(b"new"), topic_id=new_id))
    talk.ask("fetch", fetch(topic, topic_id=new_id))
    if talk.version(ProduceRequest) >= 13:
        talk.ask("produce to the old one", produce(topic, batch(b"x"), topic_id=old_id))
    if talk.version(FetchRequest) >= 13:
        talk.ask("fetch the old one", fetch(topic, topic_id=old_id))
    by_id = MetadataRequest(topics=(MetadataRequestTopic(topic_id=old_id, name=None),))
    talk.ask("ask for the old one", by_id)


@dialogue(FetchRequest)
def fetch_session_of_a_topic_made_again(talk: Talk) -> None:
    if talk.version(FetchRequest) < 7:
        return
    topic, old_id = filled(talk, "again")
    opened = talk.ask("opened", fetch_many([wanted(topic, {0: 6}, topic_id=old_id)], session=(0, 0)))
    delete(talk, topic)
    talk.ask("while it is gone", fetch_many([], session=(opened.session_id, 1)))
    talk.topic("again")
    talk.ask("when it is back", fetch_many([], session=(opened.session_id, 2)))


@dialogue(OffsetCommitRequest, OffsetFetchRequest)
def offsets_of_a_topic_made_again(talk: Talk) -> None:
    topic, group = talk.topic("again"), talk.name("group")
    old_id = talk.ids[topic]
    talk.quietly(commit({0: 4}, group=group, topic=topic, topic_id=old_id))
    delete(talk, topic)
    talk.topic("again")
    new_id = talk.ids[topic]
    request = positions([0], group=group, topic=topic, topic_id=new_id)
    talk.ask(
        "nothing for the new one",
        request,
        until=lambda reply: all(place.committed_offset == -1 for place in found_positions(reply).values()),
    )
    if talk.version(OffsetCommitRequest) >= 10:
        talk.ask("commit to the old one", commit({0: 1}, group=group, topic=topic, topic_id=old_id))
    if talk.version(OffsetFetchRequest) >= 10:
        talk.ask("fetch of the old one", positions([0], group=group, topic=topic, topic_id=old_id))
