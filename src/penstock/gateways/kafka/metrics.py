"""The Kafka door's counters, read when the metrics page is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.codec.kafka import APIS
from penstock.gateways.kafka.server import KafkaServer


class KafkaDoorCollector(Collector):
    def __init__(self, server: KafkaServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        requests = CounterMetricFamily("penstock_kafka_requests", "Requests taken, by API.", labels=["api"])
        for key, count in server.request_counts.items():
            requests.add_metric([APIS[key].name], count)
        yield requests
        received = CounterMetricFamily("penstock_kafka_received_bytes", "Bytes read from clients.")
        received.add_metric([], server.bytes_in)
        yield received
        sent = CounterMetricFamily("penstock_kafka_sent_bytes", "Bytes written to clients.")
        sent.add_metric([], server.bytes_out)
        yield sent
        refused = CounterMetricFamily("penstock_kafka_refused_connections", "Connections closed for what they sent.")
        refused.add_metric([], server.refused_connections)
        yield refused
        logins = CounterMetricFamily(
            "penstock_kafka_logins", "Logins by mechanism and outcome.", labels=["mechanism", "outcome"]
        )
        for (mechanism, is_taken), count in server.sasl.counts.items():
            logins.add_metric([mechanism, "accepted" if is_taken else "refused"], count)
        yield logins
        connections = GaugeMetricFamily("penstock_kafka_connections", "Open connections.")
        connections.add_metric([], server.connection_count)
        yield connections
