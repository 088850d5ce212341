"""Spark's word on each batch, as values; and the listener that hands it over from Spark's threads."""

from __future__ import annotations

import json
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.base.typed_values import convert

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

# The name of the counts that queries carry along.
OBSERVED: Final = "penstock"

Position = dict[str, dict[int, int]]


class QueryStarted(msgspec.Struct, frozen=True):
    query: str
    query_id: str
    run_id: str


class BatchDone(msgspec.Struct, frozen=True):
    query: str
    query_id: str
    batch_id: int
    rows_in: int
    rows_out: int
    rows_per_second: float
    batch_ms: int
    watermark: str = ""
    state_rows: int = 0
    # Topics and partitions, read up to here.
    position: Position = msgspec.field(default_factory=dict)


class QueryEnded(msgspec.Struct, frozen=True):
    query_id: str
    run_id: str
    error: str | None


QueryEvent = QueryStarted | BatchDone | QueryEnded


def read_progress(text: str) -> BatchDone:
    document: dict[str, Any] = json.loads(text)
    observed = (document.get("observedMetrics") or {}).get(OBSERVED) or {}
    position: Position = {}
    for source in document.get("sources") or ():
        for topic, places in _offsets(source.get("endOffset")).items():
            merged = position.setdefault(topic, {})
            for index, offset in places.items():
                # Two sources may read one topic; what both have read is behind them.
                merged[index] = min(offset, merged.get(index, offset))
    return BatchDone(
        query=str(document.get("name") or ""),
        query_id=str(document.get("id") or ""),
        batch_id=int(document.get("batchId", -1)),
        rows_in=int(document.get("numInputRows") or 0),
        rows_out=int(observed.get("rows") or 0),
        rows_per_second=float(document.get("processedRowsPerSecond") or 0.0),
        batch_ms=int((document.get("durationMs") or {}).get("triggerExecution") or 0),
        watermark=str((document.get("eventTime") or {}).get("watermark") or ""),
        state_rows=sum(int(state.get("numRowsTotal") or 0) for state in document.get("stateOperators") or ()),
        position=position,
    )


def _offsets(found: Any) -> Position:
    """As our source tells them; another's are passed over."""
    try:
        value = json.loads(found) if isinstance(found, str) else found
        return convert(value, Position, strict=False)
    except (ValueError, msgspec.ValidationError):
        return {}


def make_listener(events: SimpleQueue[QueryEvent]) -> StreamingQueryListener:
    """Called in threads of Spark's: it hands over and does nothing else."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
            events.put(QueryStarted(str(event.name or ""), str(event.id), str(event.runId)))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
            events.put(read_progress(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
            """Nothing came: the heartbeat says that we are there."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
            events.put(QueryEnded(str(event.id), str(event.runId), event.exception))

    return Listener()
