"""Charts as SVG text: nothing is fetched, nothing is run, and a page with them can be sent by mail.

Colours are names of the page's style sheet, so that one page serves light and dark screens. Every mark has a title,
which browsers show when it is pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

import msgspec

WIDTH: Final = 860
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 24
_BOTTOM: Final = 26
_TICKS: Final = 4
SERIES_MAX: Final = 8


class Series(msgspec.Struct, frozen=True):
    name: str
    values: Sequence[float]


class Bar(msgspec.Struct, frozen=True):
    label: str
    value: float
    # What is written at its end; the number itself, if empty.
    note: str = ""


def area_chart(labels: Sequence[str], series: Sequence[Series], *, unit: str, height: int = 220) -> str:
    """Stacked areas over time; at most `SERIES_MAX` of them."""
    assert len(series) <= SERIES_MAX
    totals = [sum(each.values[place] for each in series) for place in range(len(labels))]
    top = nice_ceiling(max(totals, default=0.0))
    frame = _Frame(height, top)
    parts = [frame.grid(unit), frame.time_axis(labels)]
    below = [0.0] * len(labels)
    for number, each in enumerate(series):
        above = [base + value for base, value in zip(below, each.values, strict=True)]
        outline = frame.line(above) + frame.line(below)[::-1]
        parts.append(f'<polygon class="s{number}" points="{" ".join(outline)}"/>')
        below = above
    parts.append(_hover_columns(frame, labels, series, unit))
    return _svg(height, parts) + _legend(series)


def bar_chart(bars: Sequence[Bar], *, unit: str) -> str:
    """Names at the left, bars to the right, longest first as they come."""
    row, name_width, note_width = 24, 230, 130
    top = max((bar.value for bar in bars), default=0.0) or 1.0
    parts: list[str] = []
    for place, bar in enumerate(bars):
        y = place * row
        width = max((WIDTH - name_width - note_width) * bar.value / top, 1.5)
        note = bar.note or f"{number(bar.value)} {unit}".strip()
        parts.append(
            f"<g><title>{escape(bar.label)}: {escape(note)}</title>"
            f'<text class="name" x="{name_width - 10}" y="{y + 16}" text-anchor="end">'
            f"{escape(_cut(bar.label, 32))}</text>"
            f'<rect class="s0" x="{name_width}" y="{y + 4}" width="{width:.1f}" height="{row - 8}" rx="3"/>'
            f'<text class="note" x="{name_width + width + 8:.1f}" y="{y + 16}">{escape(note)}</text></g>'
        )
    return _svg(max(len(bars), 1) * row, parts)


def histogram(labels: Sequence[str], values: Sequence[float], *, unit: str, height: int = 200) -> str:
    top = nice_ceiling(max(values, default=0.0))
    frame = _Frame(height, top)
    slot = frame.width / max(len(values), 1)
    parts = [frame.grid(unit)]
    for place, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = frame.y(value)
        parts.append(
            f"<g><title>{escape(label)}: {number(value)} {escape(unit)}</title>"
            f'<rect class="s0" x="{_LEFT + place * slot + 1:.1f}" y="{y:.1f}" width="{max(slot - 2, 1):.1f}" '
            f'height="{frame.floor - y:.1f}" rx="2"/></g>'
        )
        if len(labels) <= 16 or place % (len(labels) // 8) == 0:
            x = _LEFT + (place + 0.5) * slot
            parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{escape(label)}</text>')
    return _svg(height, parts)


def range_chart(
    rows: Sequence[tuple[str, Sequence[float]]], marks: Sequence[str], *, written: Callable[[float], str]
) -> str:
    """One line a row, on a scale of powers of ten: from its first value to its last, with a dot at each."""
    row, name_width = 34, 230
    values = [value for _name, each in rows for value in each]
    low = math.floor(math.log10(max(min(values, default=1.0), 0.1)))
    high = max(math.ceil(math.log10(max(max(values, default=10.0), 1.0))), low + 1)
    width = WIDTH - name_width - 30
    height = len(rows) * row + 30

    def x_of(value: float) -> float:
        return name_width + width * (math.log10(max(value, 0.1)) - low) / (high - low)

    parts = []
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 26}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{written(10.0**power)}</text>'
        )
    for place, (name, each) in enumerate(rows):
        y = place * row + row / 2
        start, end = x_of(each[0]), x_of(each[-1])
        parts.append(
            f'<text class="name" x="{name_width - 14}" y="{y + 4}" text-anchor="end">{escape(_cut(name, 30))}</text>'
        )
        parts.append(f'<line class="span" x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>')
        for which, (mark, value) in enumerate(zip(marks, each, strict=True)):
            parts.append(
                f"<g><title>{escape(name)}, {escape(mark)}: {written(value)}</title>"
                f'<circle class="s{which}" cx="{x_of(value):.1f}" cy="{y}" r="6"/></g>'
            )
    return _svg(height, parts) + _legend([Series(mark, ()) for mark in marks])


class _Frame:
    """Where the marks of a chart with a scale at its left go."""

    def __init__(self, height: int, top: float) -> None:
        self.height = height
        self.top = top
        self.width = WIDTH - _LEFT - _RIGHT
        self.floor = height - _BOTTOM

    def y(self, value: float) -> float:
        share = value / self.top if self.top else 0.0
        return self.floor - share * (self.floor - _TOP)

    def line(self, values: Sequence[float]) -> list[str]:
        """Points from left to right; a value that stands alone is as wide as the picture, or nobody would see it."""
        if len(values) == 1:
            return [f"{x},{self.y(values[0]):.1f}" for x in (_LEFT, WIDTH - _RIGHT)]
        return [f"{self.x(place, len(values)):.1f},{self.y(value):.1f}" for place, value in enumerate(values)]

    def x(self, place: int, count: int) -> float:
        return _LEFT + self.width * (place / (count - 1) if count > 1 else 0.5)

    def grid(self, unit: str) -> str:
        parts = []
        for tick in range(_TICKS + 1):
            value = self.top * tick / _TICKS
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
        parts.append(f'<text class="tick" x="{_LEFT}" y="12">{escape(unit)}</text>')
        return "".join(parts)

    def time_axis(self, labels: Sequence[str]) -> str:
        if not labels:
            return ""
        places = sorted({0, len(labels) // 4, len(labels) // 2, 3 * len(labels) // 4, len(labels) - 1})
        parts = []
        for place in places:
            anchor = "start" if place == 0 else "end" if place == len(labels) - 1 else "middle"
            x = self.x(place, len(labels))
            text = escape(labels[place])
            parts.append(f'<text class="tick" x="{x:.1f}" y="{self.height - 8}" text-anchor="{anchor}">{text}</text>')
        return "".join(parts)


def _hover_columns(frame: _Frame, labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    slot = frame.width / max(len(labels), 1)
    parts = []
    for place, label in enumerate(labels):
        lines = [f"{each.name}: {number(each.values[place])} {unit}" for each in series]
        title = escape("\n".join((label, *lines)))
        x = frame.x(place, len(labels)) - slot / 2
        parts.append(
            f'<rect class="hover" x="{x:.1f}" y="{_TOP}" width="{slot:.1f}" height="{frame.floor - _TOP}">'
            f"<title>{title}</title></rect>"
        )
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(f'<span><i class="b{place}"></i>{escape(each.name)}</span>' for place, each in enumerate(series))
    return f'<div class="legend">{items}</div>'


def _svg(height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" preserveAspectRatio="xMidYMid meet">{body}</svg>'


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten: a scale that ends there has round ticks."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # The logarithm of a number just below a power of ten may come out as that power's: ten times it is enough.
    return next((step * power for step in (1, 2, 2.5, 5) if value <= step * power), 10 * power)


def number(value: float) -> str:
    """Short: 950, 12.3 k, 4.5 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= limit:
            scaled = value / (limit if limit != 1e4 else 1e3)
            return f"{scaled:.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
