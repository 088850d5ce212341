"""The options and columns of the Spark sink: names and meanings of Spark's own Kafka connector.

    value    string or binary, required
    key      string or binary
    headers  array of (key string, value binary)
    topic    string; the option `topic` overrides it
    partition int; where it is null the key decides

Other columns are passed over, so that what was read from a topic can be written to another as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.codec.batch.compression import Codec
from penstock.pipeline.source.options import BOOTSTRAP_DEFAULT, OptionError

# Among the properties of a thread of Spark's and of its tasks: the query's id, which stays with its checkpoint.
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"

_KNOWN: Final = frozenset({"bootstrap", "topic", "path", "queryid", "batchid", "queryname", "checkpointlocation"})
# As Spark names its types.
_COLUMN_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "key": frozenset({"string", "binary", "void"}),
    "value": frozenset({"string", "binary"}),
    "headers": frozenset({"array<struct<key:string,value:binary>>"}),
    "topic": frozenset({"string"}),
    "partition": frozenset({"int"}),
}


class SinkOptions(msgspec.Struct, frozen=True):
    bootstrap: str
    # None: each row names its own.
    topic: str | None = None
    codec: Codec = Codec.NONE
    # Who writes, and which of its batches: what was committed under a pair is not written again. A stream knows both.
    query_id: str | None = None
    batch_id: int | None = None


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    known = {name.lower(): value for name, value in options.items()}
    for name in known:
        if name not in _KNOWN and not name.startswith("kafka."):
            raise OptionError(f"option {name!r} is not known to the penstock sink")
    query_id, batch_id = known.get("queryid") or None, known.get("batchid")
    if batch_id is not None and not batch_id.isdigit():
        raise OptionError(f"batchId is {batch_id!r}, a whole number is meant")
    if batch_id is not None and query_id is None:
        raise OptionError("batchId says which batch of a query this is: queryId must say of which query")
    return SinkOptions(
        bootstrap=known.get("kafka.bootstrap.servers") or known.get("bootstrap") or BOOTSTRAP_DEFAULT,
        topic=known.get("topic") or known.get("path") or None,
        codec=_codec(known.get("kafka.compression.type", "none")),
        query_id=query_id,
        batch_id=None if batch_id is None else int(batch_id),
    )


def check_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """`types` are Spark's, by column; raises `OptionError` with the sentence."""
    if "value" not in types:
        raise OptionError("a column `value` is needed, a string or binary")
    if options.topic is None and "topic" not in types:
        raise OptionError("where to? The option `topic` names one topic, a column `topic` one for each row")
    for name, legal in _COLUMN_TYPES.items():
        if name in types and types[name] not in legal:
            raise OptionError(f"column {name!r} is {types[name]}, {' or '.join(sorted(legal - {'void'}))} is meant")


def _codec(name: str) -> Codec:
    try:
        return Codec[name.strip().upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise OptionError(f"kafka.compression.type is {name!r}, one of {names} is meant") from None
