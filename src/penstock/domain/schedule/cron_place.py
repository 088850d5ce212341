"""Which partition of a topic fires a named schedule: one, by what the metadata store says. Pure.

    key absent ── claimed ──► {P} ── defined anew, in Q ──► {Q, held: P} ── P's row is gone ──► {Q}
                               │                              nobody fires but P, until it hears of this
                               └── P fires

A definition is a row of its partition's schedule. The row is committed before the key names its partition, so a key
that names one always finds it; and it fires only where the key names it and nobody else holds the name.

Rules:
- Who held the name before stops when it hears that another is named. It writes down how far it has fired, deletes its
  row, and when that is committed lets go. Whoever leads its partition by then finishes that.
- Who is named takes what was fired before it as fired.
- Of two rows the higher version counts: one that is higher than what the key says was written by somebody who died
  before the key was.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.domain.schedule.records import StoredCron


class CronPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `crons/{topic id}/{name}`. Fields are only ever added, each with a default."""

    partition: int
    # Of the definition that counts.
    version: int = 0
    # The partition that fired before, and has not let go yet.
    held: int | None = None
    # Times up to here were fired elsewhere.
    fired_ms: int = 0


class Standing(Enum):
    """Of a row in one partition."""

    FIRES = "fires"
    # It is named, and
    WAITS = "another partition has not let go yet"
    LEARNS = "what was fired elsewhere is not noted yet"
    BEHIND = "the key tells an older version"
    # It is not, and
    UNNAMED = "nobody is"
    NEWER = "it is newer than what is named"
    STALE = "it has been replaced"


def standing_of(place: CronPlace | None, partition: int, cron: StoredCron) -> Standing:
    if place is None:
        return Standing.UNNAMED
    if place.partition != partition:
        return Standing.NEWER if cron.version > place.version else Standing.STALE
    if place.held is not None:
        return Standing.WAITS
    if cron.fired_ms < place.fired_ms:
        return Standing.LEARNS
    return Standing.BEHIND if cron.version > place.version else Standing.FIRES


def may_fire(place: CronPlace | None, partition: int, cron: StoredCron) -> bool:
    return standing_of(place, partition, cron) in (Standing.FIRES, Standing.BEHIND)


def claimed(place: CronPlace | None, partition: int, version: int, *, fired_ms: int = 0) -> CronPlace | None:
    """By a partition with a committed row of that version. None: a newer one is named, or the same."""
    if place is None:
        return CronPlace(partition, version, fired_ms=fired_ms)
    if place.version >= version:
        return None
    if place.partition == partition:
        return msgspec.structs.replace(place, version=version)
    # Who is named while another holds the name has never fired: it need not let go of anything.
    holder = place.partition if place.held is None else place.held
    return CronPlace(partition, version, None if holder == partition else holder, place.fired_ms)


def told(place: CronPlace, fired_ms: int) -> CronPlace:
    """By who holds the name, before its row is deleted: afterwards nobody would know."""
    return msgspec.structs.replace(place, fired_ms=max(place.fired_ms, fired_ms))


def let_go(place: CronPlace) -> CronPlace:
    """By who holds the name, when its row is gone for good."""
    return msgspec.structs.replace(place, held=None)
