"""The Spark sink's options and columns: Kafka's names, and a sentence for each mistake."""

from __future__ import annotations

import pytest

from penstock.codec.batch.compression import Codec
from penstock.pipeline.sink.options import SinkOptions, check_columns, parse_sink_options
from penstock.pipeline.source.options import OptionError

OPTIONS = SinkOptions("a:1", "orders")


def test_names_are_those_of_the_kafka_connector_in_any_case() -> None:
    options = parse_sink_options({
        "Topic": "orders", "kafka.bootstrap.servers": "a:1", "KAFKA.compression.type": "zstd", "kafka.acks": "all",
    })  # fmt: skip
    assert options == SinkOptions("a:1", "orders", Codec.ZSTD)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topik": "x"}, "not known"),
        ({"kafka.compression.type": "brotli"}, "one of none, gzip"),
        ({"batchId": "7"}, "queryId must say"),
        ({"queryId": "q", "batchId": "seven"}, "whole number"),
    ],
)
def test_a_mistake_is_told(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse_sink_options(options)


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        ({"key": "string"}, "`value` is needed"),
        ({"value": "int"}, "'value' is int, binary or string is meant"),
        ({"value": "string", "partition": "bigint"}, "'partition' is bigint, int is meant"),
        ({"value": "string", "headers": "map<string,string>"}, "'headers' is map"),
    ],
)
def test_a_wrong_column_is_told(types: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        check_columns(types, OPTIONS)


def test_rows_must_say_where_they_go() -> None:
    check_columns({"value": "binary", "topic": "string"}, SinkOptions("a:1"))
    with pytest.raises(OptionError, match="where to"):
        check_columns({"value": "binary"}, SinkOptions("a:1"))
