"""What a node's session in the metadata store tells Prometheus, read when the page is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class SessionCollector(Collector):
    def __init__(self, late_count: Callable[[], int]) -> None:
        """Asked of whoever opens sessions: a node that registers anew has another one, and the count goes on."""
        self._late_count = late_count

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: nothing has started yet

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "penstock_late_session_renewals",
            "Renewals of this node's session that came more than a second late since the start.",
            self._late_count(),
        )
