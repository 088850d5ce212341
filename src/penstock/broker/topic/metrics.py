"""What the broker tells Prometheus, read when the page is asked for.

Per topic, not per partition: with 10,000 partitions a page of 100,000 lines would cost more than it tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from penstock.broker.topic.broker import Broker


class BrokerCollector(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: the broker has not started yet

    def collect(self) -> Iterator[Metric]:
        size = GaugeMetricFamily("penstock_topic_size_bytes", "Bytes that a topic's logs take.", labels=["topic"])
        count = GaugeMetricFamily("penstock_topic_partitions", "Partitions of a topic.", labels=["topic"])
        written = GaugeMetricFamily(
            "penstock_topic_end_offsets", "The sum of the end offsets of a topic's partitions.", labels=["topic"]
        )
        unstable = GaugeMetricFamily(
            "penstock_topic_unstable_offsets",
            "Offsets that readers of committed records must wait for: a transaction is open below them.",
            labels=["topic"],
        )
        held = GaugeMetricFamily(
            "penstock_retention_held_bytes",
            "Bytes that retention would have removed, if the topic's archive had them.",
            labels=["topic"],
        )
        ignored = CounterMetricFamily(
            "penstock_delivery_headers_ignored",
            "Batches with delivery headers for a topic with penstock.delivery.headers=false; not all are looked at.",
            labels=["topic"],
        )
        offline = 0
        for topic in self._broker.topics():
            size.add_metric([topic.name], sum(shell.size_bytes for shell in topic.shells))
            count.add_metric([topic.name], topic.partition_count)
            written.add_metric([topic.name], sum(shell.log.log_end for shell in topic.shells))
            held_back = sum(shell.readable_end - shell.last_stable_offset for shell in topic.shells)
            unstable.add_metric([topic.name], held_back)
            if topic.config.retention_after_archive:
                held.add_metric([topic.name], sum(shell.log.held_bytes for shell in topic.shells))
            ignored_count = sum(search.ignored_count for shell in topic.shells if (search := shell.batch_look.search))
            if ignored_count:
                ignored.add_metric([topic.name], ignored_count)
            offline += sum(shell.is_offline for shell in topic.shells)
        yield size
        yield count
        yield written
        yield unstable
        yield ignored
        yield held
        yield _gauge("penstock_offline_partitions", "Partitions that a failed disk took offline.", offline)
        damaged = len(self._broker.damaged_partitions)
        yield _gauge("penstock_damaged_partitions", "Partitions of which something cannot be served.", damaged)
        yield self._damaged_offsets()
        yield self._damaged_journals()

    def _damaged_offsets(self) -> GaugeMetricFamily:
        lost = GaugeMetricFamily(
            "penstock_damaged_offsets",
            "Offsets of the topic that are not served because their bytes have rotted or are gone.",
            labels=["topic"],
        )
        for topic in self._broker.topics():
            if any(shell.log.damages for shell in topic.shells):
                lost.add_metric([topic.name], sum(shell.log.damages.offset_count for shell in topic.shells))
        return lost

    def _damaged_journals(self) -> GaugeMetricFamily:
        journals = GaugeMetricFamily(
            "penstock_damaged_journals",
            "Logs of groups, transactions, queues and schedules that are damaged: what rests on them is refused.",
            labels=["topic", "partition"],
        )
        for journal in self._broker.damaged_journals():
            journals.add_metric([journal.topic, str(journal.partition)], 1)
        return journals


def _gauge(name: str, text: str, value: int) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric([], value)
    return gauge
