"""The damaged places of one log: found by whoever reads, remembered in a file beside the segments.

    damage        magic · length · CRC-32C · a list of places in MessagePack

The file is what keeps a start from taking a rotten last batch for the torn end of a write, and what lets a node say
what is damaged before anybody has read it again. It goes with the damage: when the records are deleted, the bytes were
put back, or `penstock log repair` has set them aside.

Threads add while the loop asks: the tuple is replaced, never changed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.home import LogHome
from penstock.storage.metrics import StorageMetrics

_log = get_logger("storage")

DAMAGE_FILE: Final = "damage"
DAMAGE_MAGIC: Final = b"psdamag1"
# Of one log. Where a disk has hit more, what matters is known; the others are found at each read, and not served.
PLACES_MAX: Final = 1_000

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Damage, ...])


class DamagedPlaces:
    __slots__ = ("_directory", "_files", "_lock", "_saving", "places")

    def __init__(self, files: Files, directory: str, places: Iterable[Damage] = ()) -> None:
        self._files = files
        self._directory = directory
        # Held for moments: the loop takes it too. The other one is held while the file is written.
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        # By offset; of one segment no two of them touch.
        self.places: tuple[Damage, ...] = tuple(places)

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def offset_count(self) -> int:
        return sum(damage.offset_end - damage.offset for damage in self.places)

    def at(self, offset: int) -> Damage | None:
        """The place that the offset lies in."""
        before = self._up_to(offset)
        return before if before is not None and offset < before.offset_end else None

    def next_after(self, offset: int) -> Damage | None:
        """The first place that begins past the offset."""
        place = bisect_right(self.places, offset, key=_offset_of)
        return self.places[place] if place < len(self.places) else None

    def last_before(self, offset: int) -> Damage | None:
        """The last place that ends at or before the offset."""
        before = self._up_to(offset)
        return before if before is not None and before.offset_end <= offset else None

    def _up_to(self, offset: int) -> Damage | None:
        place = bisect_right(self.places, offset, key=_offset_of)
        return self.places[place - 1] if place else None

    def add(self, damage: Damage) -> bool:
        """Blocking. False: it was known, or there are too many."""
        with self._lock:
            if self._holds(damage) or len(self.places) >= PLACES_MAX:
                return False
            self.places = with_place(self.places, damage)
        if len(self.places) == PLACES_MAX:
            _log.error("more damage is not remembered", directory=self._directory, places=PLACES_MAX)
        self.save()
        return True

    def keep_from(self, offset: int) -> bool:
        """Whether there were any below it: they are nobody's now. `save` tells the disk."""
        with self._lock:
            kept = tuple(damage for damage in self.places if damage.offset_end > offset)
            has_changed = len(kept) < len(self.places)
            self.places = kept
        return has_changed

    def save(self) -> None:
        """Blocking."""
        with self._saving:
            try:
                write_places(self._files, self._directory, self.places)
            except OSError as error:
                # It is known until the process ends, and found again by the next one that reads it.
                _log.warning("damage not saved", directory=self._directory, error=str(error))

    def _holds(self, damage: Damage) -> bool:
        known = self.at(damage.offset)
        return known is not None and damage.offset_end <= known.offset_end


def tell_damage(damage: Damage, home: LogHome, metrics: StorageMetrics) -> None:
    metrics.damage.inc()
    _log.error(
        "log damaged",
        topic=home.topic,
        partition=home.partition,
        offset=damage.offset,
        offset_end=damage.offset_end,
        problem=damage.describe(),
    )


def with_place(places: tuple[Damage, ...], damage: Damage) -> tuple[Damage, ...]:
    """What overlaps, or follows in the same segment without a batch between, becomes one place."""
    kept = []
    for known in places:
        if known.offset_end < damage.offset or damage.offset_end < known.offset or not _touch(known, damage):
            kept.append(known)
            continue
        first, last = (known, damage) if known.offset <= damage.offset else (damage, known)
        last = last if last.offset_end >= first.offset_end else first
        damage = msgspec.structs.replace(first, offset_end=last.offset_end, position_end=last.position_end)
    return tuple(sorted((*kept, damage), key=_offset_of))


def _touch(one: Damage, another: Damage) -> bool:
    return one.segment_base_offset == another.segment_base_offset


def _offset_of(damage: Damage) -> int:
    return damage.offset


def is_head_missing(places: tuple[Damage, ...], first_offset: int) -> bool:
    """Whether a log whose first segment begins so has lost those before it, rather than let them go."""
    return any(damage.offset < first_offset == damage.offset_end for damage in places)


def write_places(files: Files, directory: str, places: tuple[Damage, ...]) -> None:
    """Durable when it returns."""
    if places:
        write_small_file(files, directory, DAMAGE_FILE, DAMAGE_MAGIC, _encoder.encode(places))
    elif files.exists(f"{directory}/{DAMAGE_FILE}"):
        files.remove(f"{directory}/{DAMAGE_FILE}")
        files.sync_directory(directory)


def read_places(files: Files, directory: str) -> tuple[Damage, ...]:
    """Nothing, if there are none or the file is damaged itself: whoever reads finds them again."""
    payload = read_small_file(files, directory, DAMAGE_FILE, DAMAGE_MAGIC)
    return () if payload is None else _decoder.decode(payload)
