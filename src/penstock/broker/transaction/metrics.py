"""What the transactions of a node tell Prometheus, read when the page is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker.transaction.node import TransactionCoordinators


class TransactionCollector(Collector):
    def __init__(self, transactions: TransactionCoordinators) -> None:
        self._transactions = transactions

    def describe(self) -> list[Metric]:
        return []  # nothing is collected at registration: nothing has started yet

    def collect(self) -> Iterator[Metric]:
        ages_ms = self._transactions.open_ages_ms()
        yield GaugeMetricFamily("penstock_open_transactions", "Transactions that are under way.", len(ages_ms))
        yield GaugeMetricFamily(
            "penstock_oldest_open_transaction_seconds",
            "The age of the transaction that is under way for the longest time.",
            max(ages_ms, default=0) / 1000,
        )
        ended = CounterMetricFamily(
            "penstock_ended_transactions", "Transactions that were ended since the start.", labels=["outcome"]
        )
        ended.add_metric(["committed"], self._transactions.committed_count)
        ended.add_metric(["aborted"], self._transactions.aborted_count)
        yield ended
