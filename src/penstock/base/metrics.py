"""Counters and gauges of a node, in Prometheus' form.

One registry a node, passed in, never the process-wide default: two nodes in one process (tests, embedded) must not
add up. Each layer declares its own metrics in a small class made from the registry. Label values come from us
(topic, partition, API name), never from a client's free text, so the number of series is bounded.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["CollectorRegistry", "Counter", "Gauge", "Histogram", "ProcessCollector", "page"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def page(registry: CollectorRegistry) -> bytes:
    """The text that Prometheus scrapes."""
    return generate_latest(registry)
