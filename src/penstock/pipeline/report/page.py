"""The report as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final

from penstock.pipeline.report.charts import (
    SERIES_MAX,
    Bar,
    Series,
    area_chart,
    bar_chart,
    histogram,
    number,
    range_chart,
)
from penstock.pipeline.report.values import TopicReport

_DAY_MS: Final = 86_400_000
# Without a zone, since all times here are UTC and the text shall not say so each time.
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
_HOT: Final = 1.5
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")

_STYLE: Final = """
:root { color-scheme: light dark; --page:#f7f8fa; --card:#fff; --ink:#1b2430; --soft:#5d6b7c; --line:#e3e8ee;
  --c0:#2f6fed; --c1:#14a38b; --c2:#e08a1e; --c3:#b04fd0; --c4:#d94a5b; --c5:#5a9e2f; --c6:#0f8fb8; --c7:#8a6d3b; }
@media (prefers-color-scheme: dark) { :root { --page:#11161d; --card:#19212b; --ink:#e6ecf3; --soft:#93a1b2;
  --line:#2a3542; --c0:#6a9bff; --c1:#39c9ae; --c2:#f2a94a; --c3:#cf84ea; --c4:#f0798a; --c5:#8cc963; --c6:#4dbbe0;
  --c7:#c3a670; } }
* { box-sizing: border-box } body { margin:0; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 960px; margin: 0 auto; padding: 36px 20px 60px }
h1 { font-size: 28px; margin: 0 0 2px; overflow-wrap: anywhere } h2 { font-size: 17px; margin: 0 0 4px }
p { margin: 0 0 14px; color: var(--soft) } p.said { color: var(--ink) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px 24px 18px;
  margin-top: 18px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 20px }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px }
.tile b { display: block; font-size: 24px; font-variant-numeric: tabular-nums } .tile span { color: var(--soft) }
svg { width: 100%; height: auto; display: block } svg text { font: 12px system-ui, sans-serif; fill: var(--soft) }
svg text.name { fill: var(--ink) } .grid { stroke: var(--line); stroke-width: 1 }
.span { stroke: var(--soft); stroke-width: 2; opacity: .45 } .hover { fill: transparent }
.hover:hover { fill: var(--ink); opacity: .07 }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--soft); font-size: 13px; margin-top: 8px }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin-top: 12px }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line) } td.n, th.n { text-align: right }
td { overflow-wrap: anywhere } footer { color: var(--soft); font-size: 13px; margin-top: 24px }
""" + "".join(f".s{n} {{ fill: var(--c{n}) }} .b{n} {{ background: var(--c{n}) }}\n" for n in range(SERIES_MAX))


def render_page(report: TopicReport) -> str:
    sections = [
        _tiles(report),
        _throughput(report),
        _partitions(report),
        _keys(report),
        _sizes(report),
        _delays(report),
        _dead_letters(report),
        _gaps(report),
    ]
    title = f"{escape(report.topic)} · Penstock report"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{escape(report.topic)}</h1><p>{escape(_span(report))}</p>{''.join(sections)}"
        f"<footer>Made by penstock report at {_moment(report.made_ms)} UTC, computed by Spark from the log itself."
        f"</footer></main></body></html>\n"
    )


def _span(report: TopicReport) -> str:
    if not report.partitions:
        return "No records in this span."
    first = min(partition.first_ms for partition in report.partitions)
    last = max(partition.last_ms for partition in report.partitions)
    return f"{_moment(first)} to {_moment(last)} UTC"


def _tiles(report: TopicReport) -> str:
    seconds = _seconds(report)
    tiles = [
        (f"{report.record_count:,}", "records"),
        (size(report.size_bytes), "keys and values"),
        (f"{number(report.record_count / seconds)}/s", "on average"),
        (_in_use(report), "partitions in use"),
        (f"{report.keys.distinct_count:,}", "different keys, about"),
    ]
    if report.deletion_count:
        tiles.append((f"{report.deletion_count:,}", "deletions"))
    cells = "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<div class="tiles">{cells}</div>'


def _in_use(report: TopicReport) -> str:
    used = len(report.partitions)
    return f"{used} of {report.partition_count}" if report.partition_count > used else f"{used}"


def _throughput(report: TopicReport) -> str:
    if not report.buckets:
        return ""
    starts, series = _stacked(report)
    seconds = report.bucket_ms / 1000
    rates = [Series(each.name, [value / seconds for value in each.values]) for each in series]
    has_days = starts[-1] - starts[0] > _DAY_MS
    labels = [_moment(start)[0 if has_days else 11 :] for start in starts]
    chart = area_chart(labels, rates, unit="records/s")
    return _section("Throughput", f"Records a second, by partition, in steps of {duration(report.bucket_ms)}.", chart)


def _stacked(report: TopicReport) -> tuple[list[int], list[Series]]:
    """The fullest partitions by name, the others together."""
    start, end = report.buckets[0].start_ms, report.buckets[-1].start_ms
    starts = list(range(start, end + 1, report.bucket_ms))
    ranked = sorted(report.partitions, key=lambda partition: -partition.record_count)
    shown = ranked if len(ranked) <= SERIES_MAX else ranked[: SERIES_MAX - 1]
    number_of = {partition.partition: place for place, partition in enumerate(shown)}
    rows = [[0.0] * len(starts) for _ in range(len(shown) + (len(ranked) > len(shown)))]
    for bucket in report.buckets:
        place = number_of.get(bucket.partition, len(shown))
        rows[place][(bucket.start_ms - start) // report.bucket_ms] += bucket.record_count
    names = [f"partition {partition.partition}" for partition in shown] + ["all others"]
    return starts, [Series(name, row) for name, row in zip(names, rows, strict=False)]


def _partitions(report: TopicReport) -> str:
    if not report.partitions:
        return ""
    factor = report.hot_factor
    fullest = max(report.partitions, key=lambda partition: partition.record_count)
    if factor >= _HOT:
        said = f"Partition {fullest.partition} is hot: it has {factor:.1f} times as many records as the mean one."
    else:
        said = f"Evenly filled: the fullest has {factor:.2f} times as many records as the mean one."
    bars = [
        Bar(
            f"partition {partition.partition}",
            partition.record_count,
            f"{partition.record_count:,} · {size(partition.size_bytes)}",
        )
        for partition in sorted(report.partitions, key=lambda partition: -partition.record_count)[:40]
    ]
    return _section("Partitions", said, bar_chart(bars, unit="records"), is_finding=True)


def _keys(report: TopicReport) -> str:
    keys = report.keys
    if not keys.heaviest:
        return _section("Keys", "No record has a key.", "")
    heaviest = keys.heaviest[0]
    share = heaviest.record_count / report.record_count
    said = f"The most frequent key stands in {share:.1%} of the records."
    if keys.without_key_count:
        said += f" {keys.without_key_count / report.record_count:.1%} have none."
    scattered = sum(key.partition_count > 1 for key in keys.heaviest)
    if scattered:
        said += f" {scattered} of these keys lie in more than one partition: their order is not kept."
    bars = [Bar(key.key, key.record_count, f"{key.record_count:,} · {size(key.size_bytes)}") for key in keys.heaviest]
    return _section("Keys", said, bar_chart(bars, unit="records"), is_finding=True)


def _sizes(report: TopicReport) -> str:
    sizes = report.sizes
    if sizes is None:
        return ""
    powers = range(min(sizes.by_power), max(sizes.by_power) + 1)
    labels = ["empty" if power == 0 else f"< {power_of_two(power)}" for power in powers]
    chart = histogram(labels, [float(sizes.by_power.get(power, 0)) for power in powers], unit="records")
    said = (
        f"Half of the values have at most {size(sizes.p50)}, 99 % at most {size(sizes.p99)}; "
        f"the largest has {size(sizes.largest)}, the mean {size(sizes.mean)}."
    )
    return _section("Sizes of values", said, chart, is_finding=True)


def _delays(report: TopicReport) -> str:
    if not report.delays:
        return _section("End to end", "No group has committed and no queue has finished records of this span.", "")
    said = "From the time of a record until its group had committed past it, or its queue was done with it."
    if report.delay_sample_count is not None:
        said += f" Of a sample of about {report.delay_sample_count:,} records."
    rows = [(f"{delay.kind} {delay.name}", (delay.p50, delay.p95, delay.p99)) for delay in report.delays[:20]]
    chart = range_chart(rows, ("half", "95 %", "99 %"), written=milliseconds)
    table = _table(
        ("reader", "records", "half", "95 %", "99 %", "longest"),
        [
            (
                f"{each.kind} {each.name}",
                f"{each.record_count:,}",
                *map(milliseconds, (each.p50, each.p95, each.p99, each.largest)),
            )
            for each in report.delays
        ],
    )
    return _section("End to end", said, chart + table)


def _dead_letters(report: TopicReport) -> str:
    if not report.dead_letters:
        return ""
    total = sum(letter.record_count for letter in report.dead_letters)
    bars = [
        Bar(f"{letter.reason} ({letter.group})", letter.record_count, f"{letter.record_count:,}")
        for letter in report.dead_letters[:20]
    ]
    topics = ", ".join(sorted({letter.topic for letter in report.dead_letters}))
    return _section("Dead letters", f"{total:,} in {topics}.", bar_chart(bars, unit="messages"))


def _gaps(report: TopicReport) -> str:
    if not report.gaps:
        return ""
    items = "".join(f"<li>{escape(gap)}</li>" for gap in report.gaps)
    return f"<section><h2>Not in this report</h2><ul>{items}</ul></section>"


def _section(title: str, said: str, body: str, *, is_finding: bool = False) -> str:
    kind = ' class="said"' if is_finding else ""
    return f"<section><h2>{escape(title)}</h2><p{kind}>{escape(said)}</p>{body}</section>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th{'' if place == 0 else ' class=n'}>{escape(name)}</th>" for place, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(f"<td{'' if place == 0 else ' class=n'}>{escape(cell)}</td>" for place, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _seconds(report: TopicReport) -> float:
    if not report.partitions:
        return 1.0
    first = min(partition.first_ms for partition in report.partitions)
    last = max(partition.last_ms for partition in report.partitions)
    return max((last - first) / 1000, 1.0)


def _moment(at_ms: int) -> str:
    """Clients may send any number: those that no calendar has stay numbers."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(sep=" ", timespec="seconds")
    except OverflowError:
        return f"{at_ms} ms"


def size(count: float) -> str:
    value = float(count)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("the last unit takes everything")


def power_of_two(power: int) -> str:
    unit, rest = divmod(power, 10)
    return f"{2**rest} {('B', 'KiB', 'MiB', 'GiB')[unit]}"


def duration(length_ms: int) -> str:
    for unit_ms, name in ((_DAY_MS, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")):
        if length_ms >= unit_ms and length_ms % unit_ms == 0:
            count = length_ms // unit_ms
            return f"one {name}" if count == 1 else f"{count} {name}s"
    return f"{length_ms} ms"


def milliseconds(value: float) -> str:
    if value < 999.5:
        return f"{value:,.3g} ms"
    return f"{value / 1000:,.3g} s" if value < 600_000 else f"{value / 60_000:,.0f} min"
