"""What a bench was asked to do, and the topic it does it on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from penstock.cli.output import say
from penstock.client.errors import TopicMissingError
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.kafka.producer import Acks


class BenchPlan(msgspec.Struct, frozen=True):
    bootstrap: str
    # None: a topic of our own.
    topic: str | None = None
    partitions: int = 1
    durability: str = "fsync"
    # The end is whichever is reached first.
    messages: int | None = None
    seconds: float | None = None
    size_bytes: int = 100
    compression: str = "none"
    acks: Acks = -1
    is_kept: bool = False
    is_json: bool = False
    batch_bytes: int = 256 * 1024
    in_flight_max: int = 8
    linger_ms: float = 2.0
    rate: float = 100_000.0
    probe_directory: Path | None = None

    def __post_init__(self) -> None:
        assert self.messages is not None or self.seconds is not None, "a bench without an end"


@contextlib.asynccontextmanager
async def bench_topic(client: ClusterClient, plan: BenchPlan) -> AsyncIterator[TopicInfo]:
    """The topic that was named, or one made for this run. What we made we delete, unless it is to be kept."""
    name = plan.topic or f"penstock-bench-{os.getpid()}"
    is_ours = False
    try:
        await client.topic(name)
    except TopicMissingError:
        configs = {"durability": plan.durability}
        await admin.create_topic(client, name, partitions=plan.partitions, configs=configs)
        is_ours = True
    else:
        say(f"topic {name!r} exists: --partitions and --durability have no effect on it")
    try:
        yield await client.topic(name, is_fresh=True)
    finally:
        if is_ours and not plan.is_kept:
            await admin.delete_topics(client, [name])
