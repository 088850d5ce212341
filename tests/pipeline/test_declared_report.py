"""What a running pipeline tells the node about itself."""

from __future__ import annotations

import asyncio

from penstock.base.clock import SystemClock
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.pipeline.declared.report import Reporter
from penstock.pipeline.declared.status import RUNNING, Status, read_statuses
from support.node_process import NodeProcess
from support.spark.topics import create, group_offsets


def test_a_topic_that_is_gone_does_not_silence_the_pipelines(spark_node: NodeProcess, topic: str) -> None:
    """Otherwise all of them would soon count as lost."""
    clock = SystemClock()
    create(spark_node.kafka, topic, 1)
    gone, fine = (Status(name=f"{topic}-{end}", state=RUNNING, updated_ms=clock.now_ms()) for end in ("gone", "fine"))
    positions = {
        gone.name: {gone.name: {f"{topic}-deleted": {0: 5}}},
        fine.name: {fine.name: {topic: {0: 0}}},
    }
    assert Reporter(spark_node.kafka, clock).report([gone, fine], positions) == {fine.name: 0}
    assert group_offsets(spark_node.kafka, f"penstock-spark-{fine.name}", topic, 1) == [0]

    async def read() -> list[str]:
        async with ClusterClient(parse_addresses(spark_node.kafka)) as client:
            return [status.name for status in await read_statuses(client, now_ms=clock.now_ms())]

    assert {gone.name, fine.name} <= set(asyncio.run(read()))
