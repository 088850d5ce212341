"""What machines of replicated partitions tell Prometheus: their rehearsals, and their takeovers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.machine.rehearsals import Rehearsals
from penstock.broker.machine.tallies import Tallies


class MachineCollector(Collector):
    def __init__(self, rehearsals: Rehearsals, takeovers: Tallies) -> None:
        self._rehearsals = rehearsals
        self._takeovers = takeovers

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: the node has not started yet

    def collect(self) -> Iterator[Metric]:
        rehearsals = CounterMetricFamily(
            "penstock_rehearsals",
            "Journals that this node follows of which it has made and saved the machines since the start.",
            labels=["subject"],
        )
        rehearsal_seconds = CounterMetricFamily(
            "penstock_rehearsal_seconds",
            "Seconds that these rehearsals took.",
            labels=["subject"],
        )
        for subject, tally in sorted(self._rehearsals.done.by_subject.items()):
            rehearsals.add_metric([subject], tally.count)
            rehearsal_seconds.add_metric([subject], tally.seconds)
        yield from (rehearsals, rehearsal_seconds)
        yield CounterMetricFamily(
            "penstock_rehearsals_failed",
            "Rehearsals that failed since the start: this node could not lead what they are about.",
            value=self._rehearsals.failed_count,
        )
        yield from self._of_takeovers()

    def _of_takeovers(self) -> Iterator[Metric]:
        takeovers = CounterMetricFamily(
            "penstock_takeovers",
            "Replicated partitions that this node has begun to lead since the start, with machines to be loaded.",
            labels=["subject"],
        )
        seconds = CounterMetricFamily(
            "penstock_takeover_seconds",
            "Seconds from when this node learned that it leads to when those machines answered.",
            labels=["subject"],
        )
        longest = GaugeMetricFamily(
            "penstock_takeover_seconds_max",
            "Seconds that the longest of these takeovers took.",
            labels=["subject"],
        )
        for subject, tally in sorted(self._takeovers.by_subject.items()):
            takeovers.add_metric([subject], tally.count)
            seconds.add_metric([subject], tally.seconds)
            longest.add_metric([subject], tally.seconds_max)
        yield from (takeovers, seconds, longest)
