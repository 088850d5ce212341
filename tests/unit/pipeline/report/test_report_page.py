"""The page of a report: complete by itself, and safe whatever keys and reasons say."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring

import msgspec
import pytest

from penstock.domain.group.records import OffsetStored
from penstock.pipeline.report.charts import Series, area_chart, nice_ceiling, number
from penstock.pipeline.report.commits import decoded
from penstock.pipeline.report.job import BUCKETS_MAX, _queue_delay, bucket_for, key_text
from penstock.pipeline.report.page import duration, milliseconds, power_of_two, render_page, size
from penstock.pipeline.report.values import (
    Bucket,
    DeadLetterFacts,
    DelayFacts,
    KeyFacts,
    KeySpread,
    PartitionFacts,
    SizeFacts,
    TopicReport,
)

HOSTILE = '<script>alert("1")</script>&'


def report(partition_count: int = 3) -> TopicReport:
    partitions = tuple(
        PartitionFacts(n, 100 * (n + 1), 5_000, 0, 100, 1_700_000_000_000, 1_700_000_600_000)
        for n in range(partition_count)
    )
    buckets = tuple(
        Bucket(1_700_000_000_000 + step * 60_000, n, 10, 500) for step in (0, 1, 4) for n in range(partition_count)
    )
    return TopicReport(
        topic="orders",
        made_ms=1_700_000_700_000,
        since_ms=None,
        until_ms=None,
        record_count=sum(partition.record_count for partition in partitions),
        size_bytes=15_000,
        deletion_count=2,
        bucket_ms=60_000,
        partitions=partitions,
        buckets=buckets,
        sizes=SizeFacts(50.0, 40.0, 90.0, 99.0, 120, {0: 1, 5: 10, 7: 3}),
        keys=KeySpread(4, 7, (KeyFacts(HOSTILE, 300, 900, 2), KeyFacts("b", 10, 90, 1))),
        delays=(DelayFacts("group", HOSTILE, 99, 5.0, 20.0, 4_000.0, 9_000.0),),
        dead_letters=(DeadLetterFacts("orders-dlq", HOSTILE, "packing", 5),),
        gaps=(f"queues: {HOSTILE}",),
    )


def drawings(page: str) -> list[Element]:
    found = page.split("<svg")[1:]
    return [fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in found]


@pytest.mark.parametrize("partition_count", [1, 3, 8, 9, 50])
def test_every_drawing_is_whole_and_the_page_fetches_nothing(partition_count: int) -> None:
    page = render_page(report(partition_count))
    assert len(drawings(page)) == 6
    for word in ("http:", "https:", "<script", "url(", "@import", "src="):
        assert word not in page


def test_what_others_wrote_is_shown_and_never_run() -> None:
    page = render_page(report())
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


def test_a_hot_partition_is_named() -> None:
    assert "Partition 2 is hot: it has 1.5 times" in render_page(report())
    assert "Evenly filled" in render_page(report(1))


def test_a_step_without_records_is_a_gap_in_the_picture_not_in_time() -> None:
    first = drawings(render_page(report()))[0]
    titles = [title.text or "" for title in first.iter("title")]
    assert len(titles) == 5
    assert "partition 2: 0 records/s" in titles[2]


def test_an_empty_topic_has_a_page_too() -> None:
    empty = TopicReport(
        topic="orders", made_ms=0, since_ms=None, until_ms=None, record_count=0, size_bytes=0, deletion_count=0,
        bucket_ms=1_000, partitions=(), buckets=(), sizes=None, keys=KeySpread(0, 0, ()),
    )  # fmt: skip
    assert "No records in this span" in render_page(empty)


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 0.25, 950, 12_300, 4_500_000, 2e9)] == [
        "0", "0.25", "950", "12.3 k", "4.5 M", "2 G",
    ]  # fmt: skip
    assert [size(value) for value in (0, 120, 1_500, 2_000_000)] == ["0 B", "120 B", "1.5 KB", "2 MB"]
    assert [power_of_two(power) for power in (3, 10, 21)] == ["8 B", "1 KiB", "2 MiB"]
    assert [duration(value) for value in (1_000, 300_000, 86_400_000)] == ["one second", "5 minutes", "one day"]
    assert [milliseconds(value) for value in (5, 1_500, 7_200_000)] == ["5 ms", "1.5 s", "120 min"]
    assert [nice_ceiling(value) for value in (0, 3, 7.6, 23_000)] == [1.0, 5.0, 10.0, 25_000.0]


def test_steps_are_as_long_as_the_picture_needs() -> None:
    hour = PartitionFacts(0, 1, 1, 0, 1, 0, 3_600_000)
    year = PartitionFacts(0, 1, 1, 0, 1, 0, 365 * 86_400_000)
    assert bucket_for([]) == 1_000
    assert bucket_for([hour]) == 30_000
    assert bucket_for([hour, year]) == 7 * 86_400_000


def test_keys_that_are_no_text_are_shown_in_hexadecimal() -> None:
    assert key_text(b"customer-1") == "customer-1"
    assert key_text(b"\xff\x00") == "0xff00"
    assert key_text(b"a\nb") == "0x610a62"


def test_a_key_that_is_cut_in_a_character_is_still_text() -> None:
    assert key_text("ä".encode() * 40, is_cut=False) == "ä" * 40
    assert key_text(("a" + "ä" * 40).encode()[:64], is_cut=True) == "a" + "ä" * 31 + "…"
    assert key_text(b"\xff" * 64, is_cut=True) == "0x" + "ff" * 64 + "…"


def test_partitions_without_records_make_the_others_hot() -> None:
    one = msgspec.structs.replace(report(1), partition_count=10)
    page = render_page(one)
    assert one.hot_factor == 10
    assert "Partition 0 is hot: it has 10.0 times as many" in page
    assert "<b>1 of 10</b>" in page


@pytest.mark.parametrize("last_ms", [1_794_807_997_567_000, 2**63 // 1000, -(2**62)])
def test_a_time_that_no_calendar_has_does_no_harm(last_ms: int) -> None:
    first_ms = 1_700_000_000_000
    times = sorted((first_ms, last_ms))
    partitions = (PartitionFacts(0, 2, 10, 0, 1, *times),)
    bucket_ms = bucket_for(partitions)
    buckets = tuple(Bucket(each // bucket_ms * bucket_ms, 0, 1, 5) for each in times)
    assert (buckets[1].start_ms - buckets[0].start_ms) // bucket_ms <= BUCKETS_MAX + 1
    odd = msgspec.structs.replace(report(1), partitions=partitions, buckets=buckets, bucket_ms=bucket_ms)
    page = render_page(odd)
    assert f"{last_ms} ms" in page
    assert len(page) < 100_000


def test_a_single_step_is_wide_enough_to_be_seen() -> None:
    chart = fromstring(area_chart(["10:00:00"], [Series("partition 0", [4.0])], unit="records/s"))
    points = [tuple(map(float, point.split(","))) for point in chart.findall("polygon")[0].attrib["points"].split()]
    assert max(x for x, _ in points) - min(x for x, _ in points) > 700
    assert max(y for _, y in points) - min(y for _, y in points) > 100


def test_a_slow_topic_fills_its_picture() -> None:
    assert nice_ceiling(0.0167) == pytest.approx(0.02)
    assert nice_ceiling(0.3) == pytest.approx(0.5)
    assert milliseconds(999.7) == "1 s"


def test_commits_for_an_older_topic_of_the_name_do_not_count() -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    old, new = b"o" * 16, b"n" * 16
    commits = [
        OffsetStored("orders", 0, 7 + place, -1, "", 1_000, topic_id=each) for place, each in enumerate((old, new))
    ]
    keys = [msgspec.msgpack.encode(("billing", commit.key)) for commit in commits]
    values = [msgspec.msgpack.encode(commit) for commit in commits]
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"])
    assert decoded(batch, "orders", new).column("offset").to_pylist() == [8]
    assert decoded(batch, "orders").column("offset").to_pylist() == [7, 8]


def test_a_message_that_was_finished_twice_counts_from_the_first_time() -> None:
    pandas = pytest.importorskip("pandas", reason="the extra `spark` is not installed")
    records = pandas.DataFrame({"offset": [60, 50, 200, 10], "at_ms": [1_000, 1_000, 1_000, 9_000]})
    # All of the first hundred, then one of them again, and one that nobody asks about.
    ranges = [(0, 99, 5_000), (50, 50, 8_000), (300, 300, 9_000)]
    assert list(_queue_delay(records, ranges)) == [0, 4_000, 4_000]
