"""Settings: what is there, of which type, by which default, and what happens when it is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages import alter_configs as ac
from penstock.codec.kafka.messages import describe_configs as dc
from penstock.codec.kafka.messages import incremental_alter_configs as ic
from penstock.codec.kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from support.door.kafka_phrases import batch, produce

TOPIC: Final = 2
BROKER: Final = 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(
    name: str, keys: Sequence[str] | None = None, *, kind: int = TOPIC, synonyms: bool = False, documented: bool = False
) -> dc.DescribeConfigsRequest:
    resource = dc.DescribeConfigsResource(kind, name, keys)
    return dc.DescribeConfigsRequest(resources=(resource,), include_synonyms=synonyms, include_documentation=documented)


@dialogue(dc.DescribeConfigsRequest)
def describe_configs_of_topics(talk: Talk) -> None:
    plain = talk.topic("plain")
    own = talk.topic("own", retention_ms="1000", cleanup_policy="compact", flush_ms="1000")
    talk.ask("all", describe(plain))
    talk.ask("with synonyms", describe(plain, synonyms=True))
    talk.ask("with documentation", describe(plain, documented=True))
    talk.ask("own", describe(own, synonyms=True))
    talk.ask("some", describe(own, ("retention.ms", "segment.bytes")))
    talk.ask("none", describe(own, ()))
    talk.ask("no such setting", describe(own, ("no.such.setting",)))
    talk.ask("absent", describe(talk.name("absent")))
    talk.ask("illegal name", describe("a/b"))
    talk.ask("empty name", describe(""))


@dialogue(dc.DescribeConfigsRequest)
def describe_configs_of_others(talk: Talk) -> None:
    keys = ("message.max.bytes", "log.retention.ms", "num.partitions", "auto.create.topics.enable", "log.segment.bytes")
    talk.ask("broker", describe("1", keys, kind=BROKER))
    talk.ask("all brokers", describe("", keys, kind=BROKER))
    talk.ask("another broker", describe("9", keys, kind=BROKER))
    talk.ask("not a number", describe("one", keys, kind=BROKER))
    talk.ask("no such kind", describe("x", kind=3))
    talk.ask("a kind far away", describe("x", kind=99))


def change(
    name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, validate_only: bool = False
) -> ic.IncrementalAlterConfigsRequest:
    configs = tuple(ic.AlterableConfig(key, operation, value) for key, operation, value in changes)
    return ic.IncrementalAlterConfigsRequest(
        resources=(ic.AlterConfigsResource(kind, name, configs),), validate_only=validate_only
    )


@dialogue(ic.IncrementalAlterConfigsRequest)
def incremental_alter_configs(talk: Talk) -> None:
    topic = talk.topic("changing")
    seen = ("retention.ms", "cleanup.policy")

    def look(step: str, expected: Mapping[str, str]) -> None:
        talk.ask(
            step,
            describe(topic, seen),
            until=lambda reply: {each.name: each.value for each in reply.results[0].configs} == expected,
        )

    talk.ask("only validated", change(topic, ("retention.ms", SET, "5000"), validate_only=True))
    talk.ask("set", change(topic, ("retention.ms", SET, "5000")))
    look("was set", {"retention.ms": "5000", "cleanup.policy": "delete"})
    talk.ask("append", change(topic, ("cleanup.policy", APPEND, "compact")))
    look("was appended", {"retention.ms": "5000", "cleanup.policy": "delete,compact"})
    talk.ask("append what is there", change(topic, ("cleanup.policy", APPEND, "compact")))
    talk.ask("subtract", change(topic, ("cleanup.policy", SUBTRACT, "delete")))
    look("was subtracted", {"retention.ms": "5000", "cleanup.policy": "compact"})
    talk.ask("delete", change(topic, ("retention.ms", DELETE, None), ("cleanup.policy", DELETE, None)))
    look("was deleted", {"retention.ms": "604800000", "cleanup.policy": "delete"})


@dialogue(ic.IncrementalAlterConfigsRequest)
def incremental_alter_configs_refused(talk: Talk) -> None:
    topic = talk.topic("changing")
    talk.ask("append to a number", change(topic, ("retention.ms", APPEND, "1")))
    talk.ask("no such operation", change(topic, ("retention.ms", 9, "1")))
    talk.ask("null value", change(topic, ("retention.ms", SET, None)))
    talk.ask("bad value", change(topic, ("retention.ms", SET, "soon")))
    talk.ask("good and bad", change(topic, ("retention.ms", SET, "7"), ("segment.bytes", SET, "x")))
    talk.ask("no such setting", change(topic, ("no.such.setting", SET, "1")))
    talk.ask("delete no such setting", change(topic, ("no.such.setting", DELETE, None)))
    talk.ask("twice one setting", change(topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")))
    talk.ask("subtract the last", change(topic, ("cleanup.policy", SUBTRACT, "delete")))
    talk.ask("nothing", change(topic))
    talk.ask("absent", change(talk.name("absent"), ("retention.ms", SET, "1")))
    talk.ask("illegal name", change("a/b", ("retention.ms", SET, "1")))
    talk.ask("empty name", change("", ("retention.ms", SET, "1")))
    talk.ask("no such kind", change(topic, ("retention.ms", SET, "1"), kind=3))
    talk.ask("another broker", change("9", ("log.retention.ms", SET, "1"), kind=BROKER, validate_only=True))
    (once,) = change(topic, ("retention.ms", SET, "1")).resources
    talk.ask("named twice", ic.IncrementalAlterConfigsRequest(resources=(once, once)))
    talk.ask("then", describe(topic, ("retention.ms", "segment.bytes", "cleanup.policy")))


@dialogue(ac.AlterConfigsRequest)
def alter_configs(talk: Talk) -> None:
    topic = talk.topic("replaced", retention_ms="1000")

    def replace(name: str, configs: Mapping[str, str | None], *, validate_only: bool = False) -> ac.AlterConfigsRequest:
        entries = tuple(ac.AlterableConfig(key, value) for key, value in configs.items())
        resource = ac.AlterConfigsResource(TOPIC, name, entries)
        return ac.AlterConfigsRequest(resources=(resource,), validate_only=validate_only)

    talk.ask("only validated", replace(topic, {"segment.ms": "5000"}, validate_only=True))
    talk.ask("replaced", replace(topic, {"segment.ms": "5000"}))
    talk.ask(
        "was replaced",
        describe(topic, ("retention.ms", "segment.ms")),
        until=lambda reply: {each.name: each.value for each in reply.results[0].configs}["segment.ms"] == "5000",
    )
    talk.ask("bad value", replace(topic, {"segment.ms": "0"}))
    talk.ask("null value", replace(topic, {"segment.ms": None}))
    talk.ask("absent", replace(talk.name("absent"), {"segment.ms": "1"}))
    talk.ask("nothing", replace(topic, {}))


@dialogue(DescribeLogDirsRequest)
def describe_log_dirs(talk: Talk) -> None:
    topic = talk.topic("lying", 2)
    talk.quietly(produce(topic, batch(b"a", b"b"), topic_id=talk.ids[topic]))

    def ask(step: str, name: str, *partitions: int) -> None:
        talk.ask(step, DescribeLogDirsRequest(topics=(DescribableLogDirTopic(name, partitions),)))

    ask("both", topic, 0, 1)
    ask("one", topic, 0)
    ask("no such partition", topic, 7)
    ask("absent", talk.name("absent"), 0)
    talk.ask("none", DescribeLogDirsRequest(topics=()))
