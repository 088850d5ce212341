"""Named schedules: which of their times have come, and which were missed.

A time is fired once: by a record that says so together with the message it makes, and `fired_ms` never goes back but by
hand. A time that is older than the grace when somebody looks was missed, and the schedule's own policy says what
becomes of it: none of the missed ones, the last of them, or all. Clocks that are put back do not fire a time again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import Final

import msgspec

from penstock.domain.schedule.cron import check_expression, dues_after, last_due
from penstock.domain.schedule.records import CronDefined, CronDeleted, CronFired, Missed, StoredCron

# By name; None if there is none.
Zones = Callable[[str], tzinfo | None]

# A restart of a node is not a time that was missed.
GRACE_MS: Final = 60_000
# Of one decision.
FIRED_MAX: Final = 100
# No time in fifty years.
_NEVER_MS: Final = 2**62


class CronBook:
    __slots__ = ("_crons", "_earliest_ms", "_next_ms", "_zones")

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        self._crons: dict[str, StoredCron] = {}
        # When to look again, as far as that is known; and the earliest of all, if it is: every alarm asks for it.
        self._next_ms: dict[str, int] = {}
        self._earliest_ms: int | None = None

    def get(self, name: str) -> StoredCron | None:
        return self._crons.get(name)

    def all(self) -> list[StoredCron]:
        return [cron for _name, cron in sorted(self._crons.items())]

    def is_zone(self, name: str) -> bool:
        return self._zones(name) is not None

    def problem_of(self, expression: str) -> str | None:
        return check_expression(expression)

    def is_ever_due(self, expression: str, zone: str, now_ms: int) -> bool:
        known = self._zones(zone)
        return known is not None and next(dues_after(expression, known, now_ms), None) is not None

    # ------------------------------------------------------------------ time

    def next_deadline_ms(self) -> int | None:
        if self._earliest_ms is None:
            for name, cron in self._crons.items():
                if name not in self._next_ms:
                    self._next_ms[name] = self._first_after(cron, cron.fired_ms)
            self._earliest_ms = min(self._next_ms.values(), default=_NEVER_MS)
        return None if self._earliest_ms == _NEVER_MS else self._earliest_ms

    def next_due_ms(self, name: str, now_ms: int) -> int | None:
        """For whoever looks at it."""
        cron = self._crons[name]
        due_ms = self._first_after(cron, max(cron.fired_ms, now_ms))
        return None if due_ms == _NEVER_MS else due_ms

    def _first_after(self, cron: StoredCron, after_ms: int) -> int:
        zone = self._zones(cron.zone)
        # A node without the rules of a zone cannot know.
        return _NEVER_MS if zone is None else next(dues_after(cron.expression, zone, after_ms), _NEVER_MS)

    def due(
        self, now_ms: int, *, count_max: int = FIRED_MAX, held: frozenset[str] = frozenset()
    ) -> list[tuple[str, int]]:
        """Names and times to be fired now, for each name in order; none of those that are held."""
        deadline_ms = self.next_deadline_ms()
        found: list[tuple[str, int]] = []
        if deadline_ms is None or deadline_ms > now_ms:
            return found
        for name, cron in sorted(self._crons.items()):
            if self._next_ms[name] > now_ms or len(found) >= count_max or name in held:
                continue
            dues = self._dues(cron, now_ms, count_max - len(found))
            found += [(name, due_ms) for due_ms in dues]
            if not dues:
                # All were missed, and are skipped.
                self._next_ms[name] = self._first_after(cron, now_ms)
                self._earliest_ms = None
        return found

    def _dues(self, cron: StoredCron, now_ms: int, count_max: int) -> list[int]:
        zone = self._zones(cron.zone)
        if zone is None:
            return []
        fresh_ms = now_ms - GRACE_MS
        after_ms = cron.fired_ms
        found: list[int] = []
        if cron.missed is not Missed.ALL and after_ms < fresh_ms - 1:
            if cron.missed is Missed.ONCE:
                missed_ms = last_due(cron.expression, zone, after_ms=after_ms, before_ms=fresh_ms)
                found += [] if missed_ms is None else [missed_ms]
            after_ms = fresh_ms - 1
        for due_ms in dues_after(cron.expression, zone, after_ms):
            if due_ms > now_ms or len(found) >= count_max:
                break
            found.append(due_ms)
        return found

    # ------------------------------------------------------------------ records

    def apply(self, record: CronDefined | CronDeleted | CronFired) -> None:
        match record:
            case CronFired():
                self.note_fired(record.name, record.due_ms)
            case CronDeleted():
                self._crons.pop(record.name, None)
                self._look_again(record.name)
            case CronDefined():
                self._crons[record.name] = StoredCron(
                    record.name,
                    record.position,
                    record.expression,
                    record.zone,
                    record.missed,
                    record.fired_ms,
                    record.version,
                )
                self._look_again(record.name)

    def note_fired(self, name: str, due_ms: int) -> None:
        cron = self._crons.get(name)
        if cron is not None and cron.fired_ms < due_ms:
            self._crons[name] = msgspec.structs.replace(cron, fired_ms=due_ms)
            self._look_again(name)

    def _look_again(self, name: str) -> None:
        self._next_ms.pop(name, None)
        self._earliest_ms = None

    def store(self) -> tuple[StoredCron, ...]:
        return tuple(self.all())

    def restore(self, crons: tuple[StoredCron, ...]) -> None:
        self._crons = {cron.name: cron for cron in crons}
        self._next_ms = {}
        self._earliest_ms = None
