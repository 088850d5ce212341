"""A journey as a picture: time runs down, each place is a line of its own, copies are curves from line to line.

    10:00:00.123  ●──── appended        orders-0@5 …
        +1.2 s    │
    10:00:01.323  ●──── leased [billing]
                  ╰──● dead letter …

Plain SVG made of strings: it shows in a browser, in a ticket and in a document, and needs no library.
"""

from __future__ import annotations

import textwrap
from datetime import UTC, tzinfo
from html import escape
from typing import Final

import msgspec

from penstock.domain.trace.events import Journey, Kind, Place, TraceEvent
from penstock.domain.trace.text import facts_line
from penstock.domain.trace.words import duration, moment, printable, sentence_of, title_of

WIDTH: Final = 980
_MARGIN: Final = 32
_TIME_RIGHT: Final = 152
_LANES_LEFT: Final = 184
_LANE_WIDTH: Final = 24
_ROW: Final = 48
_LINE: Final = 17
# Of the small text; a little more than letters take on the average, so that nothing runs over the edge.
_CHARACTER: Final = 6.4
_LANE_COLORS: Final = ("#3563d9", "#b4437a", "#1d8a6b", "#c2701c", "#7553c6", "#4c7f1f", "#b03a3a", "#30839b")
_GOOD: Final = "#1a8f4c"
_BAD: Final = "#c8362f"
_WAIT: Final = "#c77d11"
_PLAIN: Final = "#5b6472"
_HELD: Final = "#3563d9"
_COLORS: Final = {
    Kind.LEASED: _HELD,
    Kind.EXTENDED: _HELD,
    Kind.ACKED: _GOOD,
    Kind.COMMITTED: _GOOD,
    Kind.PASSED: _GOOD,
    Kind.REJECTED: _BAD,
    Kind.EXHAUSTED: _BAD,
    Kind.DEAD_LETTERED: _BAD,
    Kind.ABORTED: _BAD,
    Kind.CANCELLED: _BAD,
    Kind.OUTLIVED: _BAD,
    Kind.DROPPED: _BAD,
    Kind.EXPIRED: _WAIT,
    Kind.NACKED: _WAIT,
    Kind.RETURNED: _WAIT,
    Kind.BLOCKED: _WAIT,
    Kind.PAUSED: _WAIT,
    Kind.SKIPPED: _WAIT,
    Kind.SET_BACK: _WAIT,
    Kind.REWOUND: _WAIT,
}
_STYLE: Final = """
text{font-family:-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;fill:#1c2430}
.id,.time{font-family:ui-monospace,"SF Mono",Menlo,"DejaVu Sans Mono",monospace}
.head{font-size:20px;font-weight:600}.id{font-size:12px;fill:#5b6472}.fact{font-size:12px;fill:#3d4654}
.time{font-size:12px;text-anchor:end}.gap{font-size:11px;text-anchor:end;fill:#98a1ae}
.title{font-size:14px;font-weight:600}.told{font-size:12px;fill:#4a5361}.chip{font-size:11px;fill:#3d4654}
.day{font-size:11px;text-anchor:end;fill:#98a1ae}.note{font-size:12px;fill:#7a5a12}
"""


class _Row(msgspec.Struct, frozen=True):
    event: TraceEvent
    lane: int
    y: float
    lines: list[str]
    gap: str
    day: str
    clock: str


def svg_of(journey: Journey, zone: tzinfo = UTC) -> str:
    lanes = _lanes_of(journey)
    text_left = _LANES_LEFT + _LANE_WIDTH * len(lanes) + 8
    parts, top = _head(journey, lanes)
    rows, bottom = _layout(journey, lanes, text_left, top, zone)
    parts += _lane_lines(rows, lanes)
    parts += _curves(rows, lanes)
    for row in rows:
        parts += _row(row, text_left)
    notes, height = _notes(journey, bottom)
    body = "\n".join([*parts, *notes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="journey of message {_plain(journey.id)}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="12" fill="#fff" stroke="#d9dee6"/>\n'
        f"{body}\n</svg>\n"
    )


def _lanes_of(journey: Journey) -> dict[Place, int]:
    lanes: dict[Place, int] = {}
    for facts in journey.places:
        lanes.setdefault(facts.place, len(lanes))
    for event in journey.events:
        lanes.setdefault(event.place, len(lanes))
    return lanes


def _head(journey: Journey, lanes: dict[Place, int]) -> tuple[list[str], float]:
    parts = [
        f'<text class="head" x="{_MARGIN}" y="44">Journey of a message</text>',
        f'<text class="id" x="{_MARGIN}" y="64">{_plain(journey.id)}</text>',
    ]
    y = 92.0
    for facts in journey.places:
        color = _lane_color(lanes[facts.place])
        lines = _wrap(facts_line(facts), WIDTH - 2 * _MARGIN - 22)
        parts.append(f'<rect x="{_MARGIN}" y="{y - 10:.0f}" width="11" height="11" rx="3" fill="{color}"/>')
        for line in lines:
            parts.append(f'<text class="fact" x="{_MARGIN + 20}" y="{y:.0f}">{_plain(line)}</text>')
            y += _LINE
        y += 3
    parts.append(f'<path d="M{_MARGIN} {y:.0f}H{WIDTH - _MARGIN}" stroke="#e7ebf0"/>')
    return parts, y + 34


def _layout(
    journey: Journey, lanes: dict[Place, int], text_left: float, top: float, zone: tzinfo
) -> tuple[list[_Row], float]:
    rows: list[_Row] = []
    y = top
    day = ""
    before: int | None = None
    for event in journey.events:
        gap = shown_day = clock = ""
        if event.at_ms is not None:
            date, clock, zone_name = moment(event.at_ms, zone).split(" ", 2)
            if date != day:
                day, shown_day = date, f"{date} {zone_name}"
            gap = "" if before is None else f"+{duration(max(event.at_ms - before, 0))}"
            before = event.at_ms
        if shown_day and gap:
            y += _LINE
        lines = _wrap(sentence_of(event, zone), WIDTH - _MARGIN - text_left)
        rows.append(_Row(event, lanes[event.place], y, lines, gap, shown_day, clock))
        y += _ROW + _LINE * (len(lines) - 1)
    return rows, y


def _lane_lines(rows: list[_Row], lanes: dict[Place, int]) -> list[str]:
    parts: list[str] = []
    for lane in lanes.values():
        own = [row.y for row in rows if row.lane == lane]
        if len(own) > 1:
            x = _lane_x(lane)
            color = _lane_color(lane)
            parts.append(
                f'<path d="M{x} {own[0] - 4:.0f}V{own[-1] - 4:.0f}" stroke="{color}" stroke-width="3" '
                'stroke-opacity="0.35" stroke-linecap="round"/>'
            )
    return parts


def _curves(rows: list[_Row], lanes: dict[Place, int]) -> list[str]:
    """From what made a copy to the copy's first event."""
    parts: list[str] = []
    for place, row in enumerate(rows):
        target = row.event.target
        lane = lanes.get(target) if target is not None else None
        if lane is None or lane == row.lane:
            continue
        arrival = next((each for each in rows[place + 1 :] if each.lane == lane), None)
        if arrival is not None:
            x, y, x_end, y_end = _lane_x(row.lane), row.y - 4, _lane_x(lane), arrival.y - 4
            middle = (y + y_end) / 2
            parts.append(
                f'<path d="M{x} {y:.0f}C{x} {middle:.0f} {x_end} {middle:.0f} {x_end} {y_end:.0f}" fill="none" '
                f'stroke="{_lane_color(lane)}" stroke-width="3" stroke-opacity="0.35" stroke-dasharray="1 6" '
                'stroke-linecap="round"/>'
            )
    return parts


def _row(row: _Row, text_left: float) -> list[str]:
    color = _COLORS.get(row.event.kind, _PLAIN)
    x, y = _lane_x(row.lane), row.y
    parts = [
        f'<text class="time" x="{_TIME_RIGHT}" y="{y:.0f}">{row.clock or "-"}</text>',
        f'<circle cx="{x}" cy="{y - 4:.0f}" r="6.5" fill="#ffffff" stroke="{_lane_color(row.lane)}" stroke-width="2"/>',
        f'<circle cx="{x}" cy="{y - 4:.0f}" r="3.5" fill="{color}"/>',
        f'<text class="title" x="{text_left}" y="{y:.0f}" style="fill:{color}">{_plain(title_of(row.event))}</text>',
    ]
    if row.gap:
        gap_y = y - _ROW / 2 + 1 - (_LINE if row.day else 0)
        parts.append(f'<text class="gap" x="{_TIME_RIGHT}" y="{gap_y:.0f}">{row.gap}</text>')
    if row.day:
        parts.append(f'<text class="day" x="{_TIME_RIGHT}" y="{y - 17:.0f}">{row.day}</text>')
    if row.event.group:
        parts += _chip(row.event.group, text_left + 8 + 7.6 * len(title_of(row.event)) + 8, y)
    for number, line in enumerate(row.lines):
        parts.append(f'<text class="told" x="{text_left}" y="{y + 17 + _LINE * number:.0f}">{_plain(line)}</text>')
    return parts


def _chip(group: str, x: float, y: float) -> list[str]:
    shown = group if len(group) <= 40 else f"{group[:39]}…"
    width = 6.6 * len(shown) + 16
    return [
        f'<rect x="{x:.0f}" y="{y - 12:.0f}" width="{width:.0f}" height="17" rx="8.5" fill="#eef1f6"/>',
        f'<text class="chip" x="{x + 8:.0f}" y="{y:.0f}">{_plain(shown)}</text>',
    ]


def _notes(journey: Journey, top: float) -> tuple[list[str], float]:
    parts: list[str] = []
    y = top
    for note in journey.notes:
        for line in _wrap(note, WIDTH - 2 * _MARGIN):
            parts.append(f'<text class="note" x="{_MARGIN}" y="{y:.0f}">{_plain(line)}</text>')
            y += _LINE
    return parts, y + 8


def _wrap(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(int(width / _CHARACTER), 20)) or [""]


def _lane_x(lane: int) -> int:
    return _LANES_LEFT + _LANE_WIDTH * lane


def _lane_color(lane: int) -> str:
    return _LANE_COLORS[lane % len(_LANE_COLORS)]


def _plain(text: str) -> str:
    """XML cannot hold everything."""
    return escape(printable(text))
