"""What of a fetched reply becomes a row for Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from penstock.client.kafka.consumer import Fetched  # noqa: E402  after the check for the extra
from penstock.codec.batch.compression import Codec  # noqa: E402
from penstock.codec.batch.header import (  # noqa: E402
    BatchHeader,
    BatchProblem,
    check_batch,
    patch_log_append_time,
    read_header,
)
from penstock.codec.batch.records import Record, build_batch  # noqa: E402
from penstock.codec.columns.arrow import ArrowColumns  # noqa: E402
from penstock.pipeline.source.filters import Narrowing  # noqa: E402
from penstock.pipeline.source.ranges import OffsetSpan  # noqa: E402
from penstock.pipeline.source.row_arrow import ROWS_PER_BATCH, ArrowRows  # noqa: E402

EVERYTHING = Narrowing()


def batch(base_offset: int, count: int) -> bytearray:
    records = [Record(b"v%d" % offset, b"k", 1000 + offset) for offset in range(base_offset, base_offset + count)]
    return build_batch(records, base_offset=base_offset)


def dated(base_offset: int, count: int, now_ms: int) -> bytearray:
    built = batch(base_offset, count)
    header = check_batch(built)
    assert isinstance(header, BatchHeader)
    patch_log_append_time(built, 0, header, now_ms)
    return built


def fetched(
    *batches: bytearray, partition: int = 0, position: int = 0, aborted: frozenset[int] = frozenset()
) -> Fetched:
    return Fetched("t", partition, memoryview(b"".join(batches)), position, 10**6, 10**6, aborted)


def rows(
    *parts: Fetched,
    spans: dict[int, tuple[int, int]] | None = None,
    includes_headers: bool = False,
    narrowing: Narrowing = EVERYTHING,
) -> list[dict[str, object]]:
    wanted = {part.partition: OffsetSpan("t", part.partition, 0, 10**6) for part in parts}
    wanted |= {partition: OffsetSpan("t", partition, *ends) for partition, ends in (spans or {}).items()}
    made = list(ArrowRows("t", includes_headers=includes_headers, narrowing=narrowing).batches(parts, wanted))
    for one in made:
        one.validate(full=True)
        assert one.num_rows > 0
    return [row for one in made for row in one.to_pylist()]


def offsets(*parts: Fetched, spans: dict[int, tuple[int, int]] | None = None) -> list[object]:
    return [row["offset"] for row in rows(*parts, spans=spans)]


def test_a_row_has_all_that_spark_s_kafka_source_gives_it() -> None:
    (row,) = rows(fetched(batch(7, 1), partition=3, position=7))
    assert row == {
        "key": b"k",
        "value": b"v7",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 7000, UTC),
        "timestampType": 0,
    }


def test_headers_come_only_if_they_are_wanted() -> None:
    data = build_batch([Record(b"v", headers=(("a", b"b"),)), Record(b"w")])
    assert [row["headers"] for row in rows(fetched(data), includes_headers=True)] == [[{"key": "a", "value": b"b"}], []]
    assert "headers" not in rows(fetched(data))[0]


@pytest.mark.parametrize("count", [5, 500])
def test_what_lies_before_and_after_the_span_is_cut_off(count: int) -> None:
    part = fetched(batch(0, count), batch(count, count), batch(2 * count, count), position=2)
    assert offsets(part, spans={0: (2, 2 * count + 1)}) == list(range(2, 2 * count + 1))


def test_a_span_begins_where_the_fetch_does_if_that_is_later() -> None:
    # What lies before is deleted, though its batch still holds it.
    assert offsets(fetched(batch(0, 10), position=4), spans={0: (0, 8)}) == [4, 5, 6, 7]


def test_batches_beyond_the_span_are_not_even_decoded() -> None:
    lying = build_batch([Record(b"value")], base_offset=3)
    lying[57:61] = (2).to_bytes(4, "big")  # the number of its records
    header = read_header(lying)
    assert isinstance(header, BatchHeader)
    patch_log_append_time(lying, 0, header, 5)  # renews the checksum
    assert offsets(fetched(batch(0, 3), lying), spans={0: (0, 3)}) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"t-0: offsets \d+ to \d+ cannot be read: "):
        rows(fetched(batch(0, 3), lying))


def test_a_batch_that_was_damaged_on_its_way_is_refused() -> None:
    damaged = batch(0, 3)
    damaged[-2] ^= 1
    with pytest.raises(ValueError, match="t-0 after 0: checksum"):
        rows(fetched(damaged))


def test_nothing_in_the_span_makes_no_batches_at_all() -> None:
    assert rows(fetched(batch(0, 3)), spans={0: (5, 9)}) == []
    assert rows(fetched(batch(10, 300)), spans={0: (0, 10)}) == []
    assert rows() == []


def test_aborted_and_control_batches_are_nobody_s_messages() -> None:
    control = build_batch([Record(b"\x00" * 6, b"\x00" * 4)], base_offset=4, is_control=True)
    part = fetched(batch(0, 2), batch(2, 2), control, batch(5, 1), aborted=frozenset({2}))
    assert offsets(part) == [0, 1, 5]


def test_a_batch_of_holes_alone_has_no_rows() -> None:
    holes = build_batch([], base_offset=2, last_offset_delta=3)
    assert offsets(fetched(batch(0, 2), holes, batch(6, 1))) == [0, 1, 6]
    assert offsets(fetched(holes)) == []


@pytest.mark.parametrize("count", [2, 200])
def test_the_kind_of_timestamp_is_each_batch_s_own(count: int) -> None:
    found = rows(fetched(batch(0, count), dated(count, count, 5000), batch(2 * count, 1)))
    assert [row["timestampType"] for row in found] == [0] * count + [1] * count + [0]
    times = {row["timestamp"] for row in found if row["timestampType"] == 1}
    assert times == {datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)}


@pytest.mark.parametrize("count", [3, 300])
def test_several_partitions_of_one_reply_keep_their_numbers_and_spans(count: int) -> None:
    parts = [fetched(batch(0, count), partition=partition) for partition in (5, 2)]
    found = rows(*parts, spans={5: (0, 2), 2: (1, count)})
    assert [(row["partition"], row["offset"]) for row in found] == [
        (5, 0),
        (5, 1),
        *((2, offset) for offset in range(1, count)),
    ]


@pytest.mark.parametrize("count", [10, 1000])
def test_times_that_the_query_does_not_ask_for_are_left_out(count: int) -> None:
    narrowing = Narrowing(time_ms_min=1003, time_ms_end=1006)
    found = rows(fetched(batch(0, count)), narrowing=narrowing)
    assert [row["offset"] for row in found] == [3, 4, 5]


def test_columns_that_repeat_are_right_when_replies_differ_in_size() -> None:
    maker = ArrowRows("t", includes_headers=False, narrowing=EVERYTHING)
    for partition, count in ((0, 5), (0, 2), (1, 9), (0, 3)):
        spans = {partition: OffsetSpan("t", partition, 0, 100)}
        (made,) = maker.batches([fetched(batch(0, count), partition=partition)], spans)
        assert made.column("partition").to_pylist() == [partition] * count
        assert made.column("topic").to_pylist() == ["t"] * count
        assert made.column("timestampType").to_pylist() == [0] * count


def test_batches_have_no_more_rows_than_spark_should_hold() -> None:
    data = build_batch([Record(b"")] * (ROWS_PER_BATCH + 1))
    made = ArrowRows("t", includes_headers=False, narrowing=EVERYTHING).batches(
        [fetched(data)], {0: OffsetSpan("t", 0, 0, 10**6)}
    )
    assert [one.num_rows for one in made] == [ROWS_PER_BATCH, 1]


@pytest.mark.parametrize("time_ms", [2**62, -(2**62), -1])
def test_a_time_beyond_what_spark_holds_stays_in_the_past_or_in_the_future(time_ms: int) -> None:
    built = build_batch([Record(b"v", b"k", time_ms)], base_offset=0)
    (made,) = ArrowRows("t", includes_headers=False, narrowing=EVERYTHING).batches(
        [fetched(built)], {0: OffsetSpan("t", 0, 0, 10)}
    )
    (microseconds,) = made.column("timestamp").cast("int64").to_pylist()
    assert microseconds == -1_000 if time_ms == -1 else (microseconds > 0) == (time_ms > 0)
    assert abs(microseconds) >= 1_000


@pytest.mark.parametrize("is_misled", [False, True])
def test_compressed_batches_are_never_opened_all_at_once(is_misled: bool) -> None:
    # Two hundred kilobytes each, in a few bytes.
    large = [Record(b"x" * 2_000, b"k", 1000)] * 100
    small = [Record(b"y", b"k", 1000)] * 100
    # Small ones first let expect that the large ones are small.
    batches = [build_batch(small, base_offset=0, codec=Codec.ZSTD)] if is_misled else []
    for _ in range(20):
        batches.append(build_batch(large, base_offset=100 * len(batches), codec=Codec.ZSTD))
    opened: list[int] = []

    class LittleRows(ArrowRows):
        """As the decoder, which takes a gigabyte: no more than two megabytes."""

        decoded_bytes_max = 500_000

        def _read(self, parts: Sequence[memoryview]) -> ArrowColumns | BatchProblem:
            columns = super()._read(parts)
            if isinstance(columns, BatchProblem) or columns.value.nbytes > 2_000_000:
                return BatchProblem("decompresses to more than 2,000,000 bytes")
            opened.append(columns.value.nbytes)
            return columns

    made = LittleRows("t", includes_headers=False, narrowing=EVERYTHING).batches(
        [fetched(*batches)], {0: OffsetSpan("t", 0, 0, 10**6)}
    )
    found = [offset for one in made for offset in one.column("offset").to_pylist()]
    assert found == list(range(100 * len(batches)))
    assert max(opened) < (2_000_000 if is_misled else 500_000)


def test_rows_are_decoded_together_once_their_size_is_known() -> None:
    calls: list[int] = []

    class CountedRows(ArrowRows):
        def _read(self, parts: Sequence[memoryview]) -> ArrowColumns | BatchProblem:
            calls.append(len(parts))
            return super()._read(parts)

    records = [Record(b"v" * 100, b"k", 1000)] * 50
    batches = [build_batch(records, base_offset=50 * number, codec=Codec.LZ4) for number in range(200)]
    maker = CountedRows("t", includes_headers=False, narrowing=EVERYTHING)
    made = maker.batches([fetched(*batches)], {0: OffsetSpan("t", 0, 0, 10**6)})
    assert sum(one.num_rows for one in made) == 10_000
    assert len(calls) <= 4
