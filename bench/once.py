"""One load against one broker, once: what the client achieved and what the broker took for it."""

from __future__ import annotations

import resource
import time
from typing import Final

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.cases import CONSUME_TOPICS, PARTITIONS_PER_TOPIC, Case
from bench.load import Achieved, Load
from bench.quiet import busy_seconds
from bench.targets import Target, run_load

ADMIN_SECONDS_MAX: Final = 30


class Once(msgspec.Struct, frozen=True):
    messages_per_second: float
    # For one message.
    broker_cpu_microseconds: float
    # What the rest of the machine used meanwhile.
    other_cores: float


def run_once(case: Case, target: Target, *, durability: str, topic: str) -> Once:
    """A load to consume has been stored by `store_for_consume`; one to produce gets a topic of its own."""
    is_ours = case.kind == "produce" and target.name == "penstock"
    topics = [topic] if case.kind == "produce" else _consume_topics()
    if is_ours:
        create_topic(target, topic, durability=durability)
    achieved, broker_cpu, other_cores = _watched(_load(case, target, topics), target)
    if is_ours:
        _delete(target, topic)
    return Once(achieved.messages_per_second, 1e6 * broker_cpu / achieved.messages, other_cores)


def store_for_consume(case: Case, target: Target) -> None:
    """What will be consumed, in every target alike."""
    topics = _consume_topics()
    if target.name == "penstock":
        for topic in topics:
            create_topic(target, topic, durability="interval", partitions=PARTITIONS_PER_TOPIC)
    load = _load(case, target, topics)
    run_load(msgspec.structs.replace(load, kind="produce", messages=case.messages))


def _consume_topics() -> list[str]:
    return [f"consume-{index}" for index in range(CONSUME_TOPICS)]


def _watched(load: Load, target: Target) -> tuple[Achieved, float, float]:
    """What the client achieved, the broker's CPU seconds, and the cores that neither of them used."""
    began, busy, broker, client = time.monotonic(), busy_seconds(), target.cpu_seconds(), _children_cpu()
    achieved = run_load(load)
    broker_cpu = target.cpu_seconds() - broker
    others = (busy_seconds() - busy) - broker_cpu - (_children_cpu() - client)
    return achieved, broker_cpu, max(0.0, others / (time.monotonic() - began))


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _load(case: Case, target: Target, topics: list[str]) -> Load:
    return Load(
        kind=case.kind,
        bootstrap=target.bootstrap,
        topics=topics,
        partitions=1 if case.kind == "produce" else PARTITIONS_PER_TOPIC,
        value_bytes=case.value_bytes,
        # The last messages of a partition come in small answers; the mock cluster may have dropped its first.
        messages=case.messages if case.kind == "produce" else int(case.messages * 0.9),
        single=case.single,
        codec=case.codec,
    )


def create_topic(target: Target, topic: str, *, durability: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    new_topic = NewTopic(topic, partitions, config={"durability": durability})
    admin.create_topics([new_topic])[topic].result(ADMIN_SECONDS_MAX)


def _delete(target: Target, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(ADMIN_SECONDS_MAX)
