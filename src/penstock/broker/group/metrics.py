"""How far behind groups are, for Prometheus, read when the page is asked for. Those of Spark's streams are among them.

Lag is in offsets, as everywhere in Kafka's world: holes count. A node may hold a million groups; of so many only some
are told, and how many are left out is told, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere

# Some milliseconds of the loop.
POSITIONS_MAX: Final = 5_000


class GroupCollector(Collector):
    def __init__(self, broker: Broker, groups: GroupCoordinator) -> None:
        self._broker = broker
        self._groups = groups

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: nothing has started yet

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "penstock_group_lag",
            "Offsets between a group's position and the end of its topic.",
            labels=("group", "topic"),
        )
        left_out = GaugeMetricFamily("penstock_group_lag_groups_untold", "Groups that penstock_group_lag leaves out.")
        positions, untold = self._groups.some_positions(POSITIONS_MAX)
        lags: dict[tuple[str, str], int] = {}
        for group, topic, partition, offset in positions:
            shell = self._broker.find(topic, partition)
            if not isinstance(shell, NotHere):
                place = (group, topic)
                lags[place] = lags.get(place, 0) + max(0, shell.readable_end - max(offset, shell.log_start))
        for place, count in lags.items():
            lag.add_metric(place, count)
        left_out.add_metric((), untold)
        yield from (lag, left_out)
