"""What came in by each door, read when the metrics page is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.gateways.admission import Admission


class AdmissionCollector(Collector):
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("penstock_door_requests", "Requests that came in, by door.", labels=["door"])
        received = CounterMetricFamily("penstock_door_received_bytes", "Bytes of those requests.", labels=["door"])
        denied = CounterMetricFamily("penstock_door_denied", "Rights that were asked for and denied.", labels=["door"])
        for door, account in self._admission.accounts.items():
            requests.add_metric([door], account.request_count)
            received.add_metric([door], account.received_bytes)
            denied.add_metric([door], account.denied_count)
        yield from (requests, received, denied)
