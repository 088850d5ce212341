from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.work.bench.latency_histogram import LatencyHistogram
from penstock.cli.work.bench.report import histogram_lines, summarise


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=300), st.sampled_from([50.0, 90.0, 99.0, 100.0]))
def test_percentiles_are_right_to_three_percent(values: list[int], percent: float) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    place = max(-(-len(values) * percent // 100), 1)
    exact = sorted(values)[int(place) - 1]
    assert exact <= histogram.percentile_us(percent) <= exact * 1.032 + 1
    assert histogram.max_us == max(values)


@given(st.floats(0, 50_000), st.floats(0.01, 100), st.integers(1, 500))
def test_a_run_counts_like_each_of_its_values(first: float, step: float, count: int) -> None:
    run, single = LatencyHistogram(), LatencyHistogram()
    run.record_run(first, step_us=step, count=count)
    for number in range(count):
        single.record(int(first - number * step))
    assert run.count == single.count == count
    assert run.max_us == single.max_us
    for percent in (1, 50, 90, 99):
        # A value on the edge of two buckets may fall to either side of it.
        assert run.percentile_us(percent) == pytest.approx(single.percentile_us(percent), rel=0.07, abs=2)


def test_merged_histograms_count_both() -> None:
    first, second = LatencyHistogram(), LatencyHistogram()
    first.record(10, 3)
    second.record(5_000)
    first.merge(second)
    assert (first.count, first.max_us, first.percentile_us(50)) == (4, 5_000, 10)


def test_bars_add_up_and_show_rare_values() -> None:
    histogram = LatencyHistogram()
    histogram.record(1_500, 100_000)
    histogram.record(40_000, 1)
    lines = histogram_lines(histogram)
    assert "1 ms - 2 ms" in lines[1]
    assert lines[1].count("#") == 50
    assert "20 ms - 50 ms" in lines[-1]
    assert lines[-1].count("#") == 1


def test_nothing_measured_has_no_summary() -> None:
    assert summarise(LatencyHistogram()) is None
