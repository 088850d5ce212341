"""What replication tells Prometheus, read when the page is asked for: of this node, not of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.domain.replication.causes import ElectionCause

if TYPE_CHECKING:
    from penstock.broker.replication.node import NodeReplication


class ReplicationCollector(Collector):
    def __init__(self, node: NodeReplication) -> None:
        self._node = node

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: the node has not started yet

    def collect(self) -> Iterator[Metric]:
        groups = list(self._node.groups.values())
        yield GaugeMetricFamily(
            "penstock_replication_led_partitions",
            "Partitions with several replicas that this node leads.",
            value=len(groups),
        )
        yield GaugeMetricFamily(
            "penstock_replication_followed_partitions",
            "Partitions that this node follows.",
            value=self._node.followed_count,
        )
        yield GaugeMetricFamily(
            "penstock_replication_leaderless_partitions",
            "Partitions with a replica on this node that nobody leads.",
            value=self._node.leaderless_count(),
        )
        yield GaugeMetricFamily(
            "penstock_replication_under_replicated_partitions",
            "Partitions led here of which fewer replicas are in sync than there are.",
            value=sum(group.is_under_replicated for group in groups),
        )
        yield GaugeMetricFamily(
            "penstock_replication_under_minimum_partitions",
            "Partitions led here of which fewer replicas are in sync than min.insync.replicas: they take no writes.",
            value=sum(not group.progress.is_writable for group in groups),
        )
        yield GaugeMetricFamily(
            "penstock_replication_uncommitted_offsets",
            "Offsets in the logs that this node leads past what is committed.",
            value=sum(log.log_end - log.watermark for group in groups for log in group.logs),
        )
        yield from self._counts()
        yield from self._lanes()

    def _counts(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "penstock_replication_in_sync_changes",
            "Changes of in-sync sets that this node has made since the start.",
            value=self._node.changes.change_count,
        )
        yield from self._flaws()
        yield from self._elections()
        yield from self._lanes()

    def _flaws(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "penstock_replication_flawed_partitions",
            "Partitions with several replicas of which a log on this node is damaged, shorter than it was or offline.",
            value=len(self._node.mending.places),
        )
        yield CounterMetricFamily(
            "penstock_replication_logs_put_aside",
            "Damaged logs that this node has put aside since the start, to fetch them anew.",
            value=self._node.mending.begun_anew_count,
        )

    def _elections(self) -> Iterator[Metric]:
        elections = CounterMetricFamily(
            "penstock_replication_elections",
            "Partitions that this node was elected for since the start, by cause.",
            labels=["cause"],
        )
        for cause in ElectionCause:
            elections.add_metric([cause.value], self._node.elections.counts.get(cause, 0))
        yield elections
        yield CounterMetricFamily(
            "penstock_replication_refused_looks",
            "Requests that only look and were refused since the start: not all replicas were heard within a second.",
            value=self._node.looks.refused_count,
        )

    def _lanes(self) -> Iterator[Metric]:
        fetched: dict[str, int] = {}
        lag_ms: dict[str, int] = {}
        lag_bytes: dict[str, int] = {}
        for fetcher in self._node.fetchers:
            lane = fetcher.lane
            fetched[lane] = fetched.get(lane, 0) + fetcher.fetched_bytes
            lag_ms[lane] = max(lag_ms.get(lane, 0), fetcher.lag_ms())
            lag_bytes[lane] = lag_bytes.get(lane, 0) + fetcher.lag_bytes()
        counter = CounterMetricFamily(
            "penstock_replication_fetched_bytes",
            "Bytes that this node has fetched from leaders since the start, by lane.",
            labels=["lane"],
        )
        seconds = GaugeMetricFamily(
            "penstock_replication_fetch_lag_seconds",
            "For how long leaders have had more than this node could fetch, by lane: the longest.",
            labels=["lane"],
        )
        size = GaugeMetricFamily(
            "penstock_replication_fetch_lag_bytes",
            "Committed bytes that this node has not fetched yet, about, by lane.",
            labels=["lane"],
        )
        for name in sorted(fetched):
            counter.add_metric([name], fetched[name])
            seconds.add_metric([name], lag_ms[name] / 1000)
            size.add_metric([name], lag_bytes[name])
        yield counter
        yield seconds
        yield size
