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
    topic: str | None
    partitions: int
    durability: str
    # The end is whichever is reached first; one of them is given.
    messages: int | None
    seconds: float | None
    size_bytes: int
    compression: str
    acks: Acks
    is_kept: bool
    is_json: bool
    batch_bytes: int = 256 * 1024
    in_flight_max: int = 8
    linger_ms: float = 2.0
    rate: float = 100_000.0
    probe_directory: Path | None = None


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
