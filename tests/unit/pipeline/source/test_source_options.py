"""The Spark source's options: Kafka's names, and a sentence for each mistake."""

from __future__ import annotations

import pytest

from penstock.pipeline.source.options import (
    EARLIEST,
    LATEST,
    Bound,
    OptionError,
    SourceOptions,
    TimestampStrategy,
    parse_options,
)


def parse(is_streaming: bool = True, **options: str) -> SourceOptions:
    return parse_options({"subscribe": "orders", **options}, is_streaming=is_streaming)


def test_a_stream_begins_at_the_end_and_a_table_at_the_beginning() -> None:
    assert parse(True).starting == Bound(everywhere=LATEST)
    assert parse(False).starting == Bound(everywhere=EARLIEST)


def test_names_are_those_of_the_kafka_connector_in_any_case() -> None:
    options = parse(
        startingOffsets='{"orders": {"0": 23, "1": -2}}',
        maxOffsetsPerTrigger="100",
        minPartitions="8",
        includeHeaders="true",
        failOnDataLoss="false",
        maxTriggerDelay="30s",
        startingOffsetsByTimestampStrategy="latest",
        **{"kafka.bootstrap.servers": "a:1,b:2", "kafka.isolation.level": "read_committed", "kafka.whatever": "x"},
    )
    assert options.starting == Bound(offsets={"orders": {0: 23, 1: -2}})
    assert (options.rows_per_trigger_max, options.partitions_min, options.trigger_delay_ms_max) == (100, 8, 30_000)
    assert (options.includes_headers, options.fails_on_data_loss, options.is_read_committed) == (True, False, True)
    assert (options.bootstrap, options.strategy) == ("a:1,b:2", TimestampStrategy.LATEST)


def test_the_group_is_named_for_the_query() -> None:
    assert parse(queryName="totals").group == "penstock-spark-totals"
    assert parse(**{"kafka.group.id": "mine"}).group == "mine"
    assert parse(queryName="totals", groupIdPrefix="team").group == "team-totals"
    assert parse(False).group is None
    unsaid = parse(groupIdPrefix="team")
    assert (unsaid.group, unsaid.group_prefix) == (None, "team")
    assert parse().group_prefix == "penstock-spark"


def test_times_are_taken_for_all_partitions_or_for_each() -> None:
    assert parse(startingTimestamp="1700000000000").starting == Bound(timestamp_ms=1_700_000_000_000)
    by_partition = parse(startingOffsetsByTimestamp='{"orders": {"0": 5}}').starting
    assert by_partition == Bound(timestamps_ms={"orders": {0: 5}})


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "subscribe"),
        ({"subscribe": "a", "assign": "{}"}, "assign"),
        ({"subscribe": " , "}, "no topic"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "startingoffset"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "startingoffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": 1}'}, "startingoffsets"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "maxoffsetspertrigger"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "failondataloss"),
        ({"subscribe": "a", "maxTriggerDelay": "long"}, "maxtriggerdelay"),
        ({"assign": '{"a": "0"}'}, "assign"),
    ],
)
def test_a_mistake_is_named(options: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        parse_options(options, is_streaming=True)
