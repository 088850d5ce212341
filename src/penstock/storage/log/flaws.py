"""What is wrong with a log, for whoever decides whether it may be counted on.

A log that is alone serves what is whole of it, whatever else is damaged (docs/damage.md). One of several replicas need
not: others have what it lacks. Such a one is *withheld* from the moment when a flaw is found, in the thread that found
it: nothing is read from it any more until it has been mended, or nobody else could give more than it can
(`serves_damaged`). Who follows the flaws of a log is told, in that same thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, Protocol

from penstock.base.log_events import get_logger
from penstock.storage.errors import Damage
from penstock.storage.log.damage import DamagedPlaces
from penstock.storage.log.home import LogHome

_log = get_logger("storage")

# Why nothing is read from it.
WITHHELD: Final = "it is damaged, and another replica takes over"


class FlawedLog(Protocol):
    """What is needed of a PartitionLog."""

    home: LogHome
    damages: DamagedPlaces
    lost_end: Damage | None
    failure: str | None
    is_closed: bool
    is_replicated: bool


class LogFlaws:
    __slots__ = ("_log", "_other", "_unreadable", "is_troubled", "listener", "serves_damaged")

    def __init__(self, log: FlawedLog) -> None:
        self._log = log
        # Whether there may be any: asked for every read.
        self.is_troubled = False
        # It is the last that is left of its replicas: as of a log that is alone, what is whole is served.
        self.serves_damaged = False
        # Told, from any thread, of a flaw that was not there before.
        self.listener: Callable[[], None] | None = None
        # What the disk did not give out when it was last asked.
        self._unreadable: Damage | None = None
        # A flaw that no byte of the log shows.
        self._other: str | None = None

    @property
    def described(self) -> str | None:
        """Why the log must not be counted on; None: it holds what it has promised, as far as anybody knows."""
        log = self._log
        if log.is_closed:
            return None
        if log.failure is not None:
            return f"it is offline: {log.failure}"
        if log.lost_end is not None:
            return f"its end is lost: {log.lost_end.describe()}"
        if log.damages:
            return f"it is damaged: {log.damages.places[0].describe()}"
        return self._other

    @property
    def is_withheld(self) -> bool:
        return self.is_troubled and self._log.is_replicated and not self.serves_damaged and self.described is not None

    def note(self) -> None:
        """There is one more."""
        self.is_troubled, self.serves_damaged = True, False
        if self.listener is not None:
            self.listener()

    def note_unreadable(self, damage: Damage, error: OSError) -> None:
        """Each place is told once in a row."""
        if self._unreadable == damage:
            return
        self._unreadable = damage
        home = self._log.home
        _log.error(
            "log cannot be read",
            topic=home.topic,
            partition=home.partition,
            offset=damage.offset,
            problem=damage.describe(),
        )
        # Not for lack of file handles, or the like.
        if error.errno == errno.EIO and self._log.is_replicated:
            self.note_other(damage.describe())

    def note_other(self, words: str) -> None:
        """A bad sector; records that its leader does not have; less than was committed. Counts for a replica alone."""
        self._other = words
        self.note()

    def forget(self) -> None:
        """The log was read anew."""
        self._unreadable = self._other = None
        self.is_troubled = self.serves_damaged = False
