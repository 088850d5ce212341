"""Spans of what clients do with messages, by the semantic conventions for messaging, sent by OTLP.

    publish   kind producer   child of the message's own context; of many messages, with a link to each
    receive   kind consumer   with a link to each message that was delivered
    settle    kind client     likewise, of messages that were received here not long ago

Imported only if `[otel] enabled` says so: it needs the extra `otel`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from penstock import __version__
from penstock.base.clock import Clock
from penstock.broker.otel.config import OtelConfig
from penstock.codec.batch.records import Headers
from penstock.domain.trace.context import PARENT_HEADER, STATE_HEADER

SYSTEM: Final = "penstock"
# Messages that are with consumers, whose context a settlement links to. The oldest go first.
REMEMBERED_MAX: Final = 10_000
_NANOSECONDS: Final = 1_000_000

# Topic id, partition, offset.
MessageKey = tuple[bytes, int, int]
Attributes = dict[str, AttributeValue]


class OtelSpans:
    def __init__(self, config: OtelConfig, *, node_id: int, clock: Clock) -> None:
        self._clock = clock
        resource = Resource.create(
            {
                "service.name": config.service_name,
                "service.version": __version__,
                "service.instance.id": str(node_id),
            }
        )
        sampler = ParentBased(TraceIdRatioBased(config.sample_ratio))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(
            endpoint=config.endpoint, headers=dict(config.headers), timeout=config.timeout_ms / 1000
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=config.queue_max,
                max_export_batch_size=min(512, config.queue_max),
                schedule_delay_millis=config.flush_ms,
            )
        )
        self._tracer = self._provider.get_tracer("penstock", __version__)
        self._links_max = config.links_max
        self._propagator = TraceContextTextMapPropagator()
        self._remembered: OrderedDict[MessageKey, SpanContext] = OrderedDict()

    def shutdown(self) -> None:
        """Blocking: what waits is sent, if it can be."""
        self._provider.shutdown()

    # Contexts

    def context_of(self, headers: Headers) -> SpanContext | None:
        """Of a message, from its headers; None: it has none, or none that is valid."""
        carrier: dict[str, str] = {}
        for name, value in headers:
            if name in (PARENT_HEADER, STATE_HEADER) and value is not None:
                carrier[name] = value.decode(errors="replace")
        if PARENT_HEADER not in carrier:
            return None
        context = trace.get_current_span(self._propagator.extract(carrier)).get_span_context()
        return context if context.is_valid else None

    def remember(self, key: MessageKey, context: SpanContext) -> None:
        self._remembered[key] = context
        self._remembered.move_to_end(key)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def recall(self, keys: Sequence[MessageKey]) -> list[SpanContext]:
        return [context for key in keys if (context := self._remembered.get(key)) is not None]

    # Spans

    @contextmanager
    def publish(self, topic: str, contexts: Sequence[SpanContext | None]) -> Iterator[Span]:
        known = [context for context in contexts if context is not None]
        # Of one sender: its span is the parent. Of several: each is linked to.
        is_one = bool(known) and all(context == known[0] for context in known)
        parent = known[0] if is_one else None
        links = known if parent is None or len(contexts) > 1 else []
        attributes = self._attributes("publish", "send", topic, count=len(contexts))
        with self._span(f"publish {topic}", SpanKind.PRODUCER, attributes, parent, links) as span:
            yield span

    @contextmanager
    def receive(self, topic: str, group: str, consumer: str) -> Iterator[Received]:
        """Of a receive that brings nothing there is no span: the caller says what it brought."""
        received = Received()
        started_ns = self._clock.now_ms() * _NANOSECONDS
        yield received
        if received.count:
            attributes = self._attributes("receive", "receive", topic, group=group, count=received.count)
            attributes["messaging.client.id"] = consumer
            attributes |= received.attributes
            links = [Link(context) for context in received.contexts[: self._links_max]]
            name = f"receive {topic}"
            span = self._tracer.start_span(
                name, kind=SpanKind.CONSUMER, attributes=attributes, links=links, start_time=started_ns
            )
            span.end()

    @contextmanager
    def settle(self, topic: str, group: str, act: str, keys: Sequence[MessageKey]) -> Iterator[Span]:
        attributes = self._attributes(act, "settle", topic, group=group, count=len(keys))
        if len(keys) == 1:
            attributes["messaging.destination.partition.id"] = str(keys[0][1])
            attributes["messaging.penstock.message.offset"] = keys[0][2]
        with self._span(f"{act} {topic}", SpanKind.CLIENT, attributes, None, self.recall(keys)) as span:
            yield span

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        parent: SpanContext | None,
        contexts: Sequence[SpanContext],
    ) -> Iterator[Span]:
        links = [Link(context) for context in contexts[: self._links_max]]
        around = None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent))
        span = self._tracer.start_span(name, context=around, kind=kind, attributes=attributes, links=links)
        try:
            yield span
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            span.end()

    def _attributes(self, name: str, kind: str, topic: str, *, group: str = "", count: int) -> Attributes:
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
        }
        if group:
            attributes["messaging.consumer.group.name"] = group
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        return attributes


class Received:
    """What a receive has brought, as far as its span tells it."""

    def __init__(self) -> None:
        self.count = 0
        self.contexts: list[SpanContext] = []
        self.attributes: Attributes = {}


def fail(span: Span, kind: str, reason: str) -> None:
    """A request that was refused is no exception, and an error all the same."""
    span.set_status(Status(StatusCode.ERROR, reason))
    span.set_attribute("error.type", kind)
