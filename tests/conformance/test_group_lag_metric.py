"""How far behind a group is stands on the metrics page."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from support.node_process import NodeProcess


def lags(node: NodeProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics") as page:
        text = page.read().decode()
    found = re.findall(r'^penstock_group_lag\{group="([^"]+)",topic="orders"\} (\S+)$', text, re.MULTILINE)
    return {group: float(value) for group, value in found}


def test_the_lag_of_groups_is_on_the_metrics_page(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        assert lags(node) == {}
        producer = Producer({"bootstrap.servers": node.kafka})
        for number in range(10):
            producer.produce("orders", str(number), partition=0)
        assert producer.flush(20) == 0
        for group, offset in (("billing", 4), ("packing", 10)):
            consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": group})
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
            consumer.close()
        assert lags(node) == {"billing": 6.0, "packing": 0.0}
