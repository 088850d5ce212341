"""What `penstock topic describe` shows: watermarks and health of each partition, then the configs."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cli.output import human_bytes, print_json, print_table, run_async
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.kafka.partition_health import PartitionHealth, partition_health
from penstock.net.address import parse_addresses

COLUMNS: Final = ("partition", "leader", "epoch", "replicas", "in sync", "low", "high", "stable", "size", "health")


class Description(msgspec.Struct, frozen=True):
    info: TopicInfo
    partitions: list[PartitionHealth]
    configs: list[admin.TopicConfigValue]


def describe(bootstrap: str, topic: str, *, all_configs: bool, as_json: bool) -> None:
    found = run_async(_describe(bootstrap, topic))
    if as_json:
        print_json(_document(found))
        return
    print_table(COLUMNS, [cells(row) for row in found.partitions], title=f"topic {topic}")
    shown = [config for config in found.configs if all_configs or not config.is_default]
    if shown:
        rows = [(config.name, config.value, config.source) for config in shown]
        print_table(("config", "value", "source"), rows)


async def _describe(bootstrap: str, topic: str) -> Description:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        info = await client.topic(topic)
        partitions = await partition_health(client, info)
        return Description(info, partitions, await admin.describe_topic_configs(client, topic))


def _document(found: Description) -> dict[str, object]:
    return {
        "name": found.info.name,
        "topic_id": found.info.topic_id.hex(),
        "internal": found.info.is_internal,
        "partitions": [{**msgspec.structs.asdict(row), "healthy": not row.problems} for row in found.partitions],
        "configs": [{"name": config.name, "value": config.value, "source": config.source} for config in found.configs],
    }


def cells(row: PartitionHealth) -> tuple[object, ...]:
    size = None if row.size_bytes is None else human_bytes(row.size_bytes)
    replicas, in_sync = (" ".join(map(str, nodes)) for nodes in (row.replicas, row.in_sync))
    led = None if row.leader < 0 else row.leader
    places = (row.partition, led, row.leader_epoch, replicas, in_sync)
    return (*places, row.start, row.end, row.last_stable, size, health_text(row))


def health_text(row: PartitionHealth) -> str:
    """`ok`, or what is wrong; behind it what holds readers of committed records back, which is no fault by itself."""
    text = "; ".join(row.problems) or "ok"
    if row.end is None or row.last_stable is None or row.last_stable >= row.end:
        return text
    count = row.end - row.last_stable
    behind = f"{count:,} {'offset' if count == 1 else 'offsets'} not stable"
    open_ones = row.open_transactions
    if open_ones is None:
        return f"{text}, {behind}"
    noun = "transaction" if open_ones.count == 1 else "transactions"
    return f"{text}, {behind}: {open_ones.count} open {noun} since offset {open_ones.oldest_start:,}"
