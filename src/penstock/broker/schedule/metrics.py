"""What the schedules of a node tell Prometheus, read when the page is asked for. By topic, over all its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.pace import LATENESS_BOUNDS_MS
from penstock.broker.schedule.shell import ScheduleShell

_LABELS = ("topic",)


class ScheduleCollector(Collector):
    def __init__(self, schedules: NodeSchedules) -> None:
        self._schedules = schedules

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: nothing has started yet

    def collect(self) -> Iterator[Metric]:
        pending = _gauge("penstock_schedule_pending", "Delayed messages that wait for their time.")
        held = _gauge("penstock_schedule_held", "Delayed messages whose transaction is open.")
        near = _gauge("penstock_schedule_near", "Delayed messages whose times are in memory.")
        earliest = _gauge("penstock_schedule_next_seconds", "When the next one is due, or its span of time begins.")
        crons = _gauge("penstock_schedule_crons", "Named schedules.")
        released = CounterMetricFamily(
            "penstock_schedule_released", "Messages released since the start.", labels=_LABELS
        )
        throttled = CounterMetricFamily(
            "penstock_schedule_throttled",
            "How often messages that were due had to wait because too many others were.",
            labels=_LABELS,
        )
        lateness = HistogramMetricFamily(
            "penstock_schedule_lateness_seconds",
            "From when a message was due to when it was durable in its topic.",
            labels=_LABELS,
        )
        by_topic: dict[str, list[ScheduleShell]] = {}
        for shell in self._schedules.loaded_shells():
            by_topic.setdefault(shell.partition.topic, []).append(shell)
        for topic, shells in sorted(by_topic.items()):
            machines = [shell.machine for shell in shells]
            counts = [shell.mover.counts for shell in shells]
            pending.add_metric([topic], sum(machine.pending_count for machine in machines))
            held.add_metric([topic], sum(machine.held_count for machine in machines))
            near.add_metric([topic], sum(machine.near_count for machine in machines))
            dues_ms = [due_ms for machine in machines if (due_ms := machine.earliest_due_ms()) is not None]
            if dues_ms:
                earliest.add_metric([topic], min(dues_ms) / 1000)
            crons.add_metric([topic], sum(len(machine.crons()) for machine in machines))
            released.add_metric([topic], sum(each.released for each in counts))
            throttled.add_metric([topic], sum(each.throttled for each in counts))
            by_lateness = [sum(column) for column in zip(*(each.by_lateness for each in counts), strict=True)]
            bounds = [*(f"{bound / 1000:g}" for bound in LATENESS_BOUNDS_MS), "+Inf"]
            lateness.add_metric(
                [topic],
                list(zip(bounds, map(float, accumulate(by_lateness)), strict=True)),
                sum(each.lateness_ms for each in counts) / 1000,
            )
        yield from (pending, held, near, earliest, crons, released, throttled, lateness)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_LABELS)
