"""The section `[otel]` of the configuration: spans by OpenTelemetry, off unless asked for. Nothing of it is imported
then, and nothing is done for it."""

from __future__ import annotations

import msgspec


class OtelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = False
    # OTLP over HTTP, with protobuf.
    endpoint: str = "http://127.0.0.1:4318/v1/traces"
    # Sent with each request, such as an API key.
    headers: dict[str, str] = {}
    service_name: str = "penstock"
    # Of spans whose parent says nothing about it; 1: all of them.
    sample_ratio: float = 1.0
    timeout_ms: int = 10_000
    # Spans that wait to be sent; what comes on top is dropped.
    queue_max: int = 2_048
    # A batch of spans is sent after so long at the latest.
    flush_ms: int = 5_000
    # How many messages of a batch a span links to.
    links_max: int = 128
