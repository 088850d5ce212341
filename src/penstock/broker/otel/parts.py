"""The parts of a node with spans around what clients do. OpenTelemetry is loaded here and not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.broker.otel.config import OtelConfig
from penstock.broker.parts import Parts


class OtelMissingError(Exception):
    """Spans are asked for, and the extra is not installed."""


def with_spans(parts: Parts, config: OtelConfig) -> tuple[Parts, Callable[[], None]]:
    """The parts, and what is to be called in a thread at the end, so that nothing that waits is lost."""
    try:
        from penstock.broker.otel.doors import TracedDelivery, TracedPublisher
        from penstock.broker.otel.spans import OtelSpans
    except ImportError as error:
        raise OtelMissingError("[otel] enabled needs the extra: pip install 'penstock[otel]'") from error
    spans = OtelSpans(config, node_id=parts.site.node_id, clock=parts.site.clock)
    traced = replace(
        parts,
        publisher=TracedPublisher(parts.schedules, parts.site.clock, spans),
        delivery=TracedDelivery(parts.queues, parts.schedules, spans),
    )
    return traced, spans.shutdown
