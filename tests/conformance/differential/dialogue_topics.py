"""CreateTopics, DeleteTopics and CreatePartitions: what is made, and what is refused with which error."""

from __future__ import annotations

from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.codec.kafka.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.codec.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from support.door.kafka_phrases import metadata


def wish(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: dict[int, tuple[int, ...]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=tuple(CreatableTopicConfig(key, value) for key, value in (configs or {}).items()),
        assignments=tuple(CreatableReplicaAssignment(number, nodes) for number, nodes in (assignments or {}).items()),
    )


def create(*wishes: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=wishes, timeout_ms=10_000, validate_only=validate_only)


@dialogue(CreateTopicsRequest)
def create_topics(talk: Talk) -> None:
    plain, second = talk.name("plain"), talk.name("second")
    talk.ask("only validated", create(wish(plain, 2), validate_only=True))
    talk.ask("not made", metadata(plain), show=lambda reply: reply.topics[0].error_code)
    reply = talk.quietly(create(wish(plain, 2)))
    talk.note("made", reply.topics[0].error_code)
    talk.await_topic(plain, 2)
    talk.ask("again", create(wish(plain, 2)))
    talk.ask("again, only validated", create(wish(plain), validate_only=True))
    talk.ask("one known, one new", create(wish(plain), wish(second)), show=codes)
    talk.ask("twice in one request", create(wish(talk.name("double")), wish(talk.name("double"))))
    talk.ask("nothing", create())


def codes(reply: object) -> list[tuple[str, int, str | None]]:
    """Without ids, which one could only know afterwards."""
    return sorted((each.name, each.error_code, each.error_message and "text") for each in reply.topics)  # type: ignore[attr-defined]


@dialogue(CreateTopicsRequest)
def create_topics_defaults(talk: Talk) -> None:
    name = talk.name("defaults")
    version = max(4, talk.version(CreateTopicsRequest))
    talk.ask("validated", create(wish(name, -1, -1), validate_only=True), version=version)
    talk.quietly(create(wish(name, -1, -1)), version=version)
    talk.await_topic(name)
    talk.ask("then", metadata(name))


@dialogue(CreateTopicsRequest)
def create_topics_bad_names(talk: Talk) -> None:
    for step, name in {
        "empty": "", "one dot": ".", "two dots": "..", "space": "a b", "slash": "a/b", "longest": "x" * 249,
        "too long": "x" * 250, "umlaut": "grün", "colon": "a:b", "internal": "__consumer_offsets",
    }.items():  # fmt: skip
        talk.ask(step, create(wish(name), validate_only=True))
    talk.quietly(create(wish(talk.name("a.b"))))
    talk.await_topic(talk.name("a.b"))
    talk.ask("collides with a dot", create(wish(talk.name("a_b")), validate_only=True))


@dialogue(CreateTopicsRequest)
def create_topics_bad_counts(talk: Talk) -> None:
    name = talk.name("bad")
    version = talk.version(CreateTopicsRequest)
    for step, partitions, replicas in (
        ("no partitions", 0, 1), ("minus two partitions", -2, 1), ("no replicas", 1, 0), ("minus two replicas", 1, -2),
        ("more replicas than brokers", 1, 2),
    ):  # fmt: skip
        talk.ask(step, create(wish(name, partitions, replicas), validate_only=True))
    if version < 4:
        talk.ask("defaults before they came", create(wish(name, -1, -1), validate_only=True))


@dialogue(CreateTopicsRequest)
def create_topics_assigned(talk: Talk) -> None:
    name = talk.name("assigned")
    wishes: tuple[tuple[str, int, int, dict[int, tuple[int, ...]]], ...] = (
        ("good", -1, -1, {0: (1,), 1: (1,)}),
        ("with counts too", 2, 1, {0: (1,), 1: (1,)}),
        ("unknown broker", -1, -1, {0: (9,)}),
        ("broker twice", -1, -1, {0: (1, 1)}),
        ("a gap", -1, -1, {0: (1,), 2: (1,)}),
        ("not from zero", -1, -1, {1: (1,)}),
        ("nobody", -1, -1, {0: ()}),
        ("not as many", -1, -1, {0: (1,), 1: ()}),
    )
    for step, partitions, replicas, assignments in wishes:
        request = create(wish(name, partitions, replicas, assignments=assignments), validate_only=True)
        talk.ask(step, request)


@dialogue(CreateTopicsRequest)
def create_topics_configs(talk: Talk) -> None:
    name = talk.name("configured")
    steps: dict[str, dict[str, str | None]] = {
        "good": {"cleanup.policy": "compact", "retention.ms": "1000", "max.message.bytes": "5000"},
        "both policies": {"cleanup.policy": "compact,delete"},
        "unknown": {"no.such.setting": "1"},
        "not a number": {"retention.ms": "long"},
        "fraction": {"retention.ms": "1.5"},
        "spaces": {"retention.ms": " 1000 "},
        "too low": {"retention.ms": "-2"},
        "segment too small": {"segment.bytes": "13"},
        "segment smallest": {"segment.bytes": "1048576"},
        "beyond an int": {"segment.bytes": "3000000000"},
        "no such policy": {"cleanup.policy": "burn"},
        "empty policy": {"cleanup.policy": ""},
        "null": {"retention.ms": None},
        "no such type": {"message.timestamp.type": "Whenever"},
        "lower case type": {"message.timestamp.type": "logappendtime"},
        "bad ratio": {"min.cleanable.dirty.ratio": "1.5"},
        "bad boolean": {"preallocate": "perhaps"},
        "upper case boolean": {"unclean.leader.election.enable": "TRUE"},
        "compression": {"compression.type": "producer"},
        "compression by the broker": {"compression.type": "zstd", "compression.zstd.level": "5"},
        "no compression": {"compression.type": "uncompressed"},
        "files stay": {"file.delete.delay.ms": "1000"},
        "bad compression": {"compression.type": "brotli"},
        "in sync": {"min.insync.replicas": "0"},
        "throttled": {"leader.replication.throttled.replicas": "*"},
        "format version": {"message.format.version": "2.0"},
        "down conversion": {"message.downconversion.enable": "true"},
        "lags crossed": {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    }
    for step, configs in steps.items():
        talk.ask(step, create(wish(name, configs=configs), validate_only=True))


@dialogue(CreateTopicsRequest)
def create_topics_with_settings_that_have_no_effect(talk: Talk) -> None:
    steps = {
        "preallocated": {"preallocate": "true"},
        "two in sync": {"min.insync.replicas": "2"},
        "level of lz4": {"compression.lz4.level": "3"},
        "index": {"index.interval.bytes": "1024"},
    }
    for step, configs in steps.items():
        request = create(wish(talk.name("configured"), configs=dict(configs)), validate_only=True)
        talk.ask(step, request, show=lambda reply: ErrorCode(reply.topics[0].error_code).name)


@dialogue(DeleteTopicsRequest)
def delete_topics(talk: Talk) -> None:
    first, second, third = (talk.topic(word) for word in ("first", "second", "third"))
    absent = talk.name("absent")

    def delete(*names: str) -> DeleteTopicsRequest:
        states = tuple(DeleteTopicState(name=name) for name in names)
        return DeleteTopicsRequest(topics=states, topic_names=names, timeout_ms=10_000)

    talk.ask("absent", delete(absent))
    talk.ask("one and absent", delete(first, absent))
    talk.await_gone(first)
    talk.ask("again", delete(first))
    talk.ask("twice", delete(second, second))
    talk.ask("illegal name", delete("a/b"))
    talk.ask("nothing", delete())
    if talk.version(DeleteTopicsRequest) >= 6:
        by_id = DeleteTopicState(name=None, topic_id=talk.ids[third])
        unknown = DeleteTopicState(name=None, topic_id=bytes(15) + b"\x07")
        both = DeleteTopicState(name=second, topic_id=talk.ids[third])
        talk.ask("name and id", DeleteTopicsRequest(topics=(both,), timeout_ms=10_000))
        talk.ask("unknown id", DeleteTopicsRequest(topics=(unknown,), timeout_ms=10_000))
        talk.ask("neither", DeleteTopicsRequest(topics=(DeleteTopicState(),), timeout_ms=10_000))
        talk.ask("by id", DeleteTopicsRequest(topics=(by_id,), timeout_ms=10_000))
        talk.await_gone(third)
        talk.ask("by id again", DeleteTopicsRequest(topics=(by_id,), timeout_ms=10_000))


@dialogue(CreatePartitionsRequest)
def create_partitions(talk: Talk) -> None:
    topic = talk.topic("grows")

    def ask(
        step: str,
        name: str,
        count: int,
        nodes: tuple[tuple[int, ...], ...] | None = None,
        *,
        validate_only: bool = True,
    ) -> None:
        assignments = None if nodes is None else tuple(CreatePartitionsAssignment(each) for each in nodes)
        wanted = CreatePartitionsTopic(name, count, assignments)
        request = CreatePartitionsRequest(topics=(wanted,), timeout_ms=10_000, validate_only=validate_only)
        talk.ask(step, request)

    ask("validated", topic, 3)
    ask("grown", topic, 3, validate_only=False)
    talk.await_topic(topic, 3)
    ask("as many", topic, 3)
    ask("fewer", topic, 2)
    ask("none", topic, 0)
    ask("negative", topic, -1)
    ask("absent", talk.name("absent"), 3)
    ask("illegal name", "a/b", 3)
    ask("assigned", topic, 4, ((1,),))
    ask("assigned to nobody", topic, 4, ((9,),))
    ask("too many assigned", topic, 4, ((1,), (1,)))
    ask("too few assigned", topic, 5, ((1,),))
    ask("twice the same", topic, 4, ((1, 1),))
    ask("empty assignment", topic, 4, ((),))
    double = CreatePartitionsTopic(topic, 5, None)
    talk.ask("named twice", CreatePartitionsRequest(topics=(double, double), timeout_ms=10_000, validate_only=True))
    talk.ask("then", metadata(topic))
