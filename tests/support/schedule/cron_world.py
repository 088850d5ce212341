"""The rules of which partition fires a cron, walked at random: leaders hear late, die between any two steps, and are
followed by others. No loop, no disk: a row is committed when it is written, and the store is a value with a revision.

Invariants: no time is fired twice (`CRON_ONCE`); when all is quiet one partition fires, the one with the newest
definition, and nobody holds the name (`CRON_QUIET`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, TypeGuard

from msgspec.structs import replace

from penstock.domain.schedule.cron_place import CronPlace, Standing, claimed, let_go, may_fire, standing_of, told
from penstock.domain.schedule.records import Missed, StoredCron

CRON_ONCE: Final = "cron-exactly-once"
CRON_QUIET: Final = "cron-after-quiet"
PARTITIONS: Final = 3
STEPS: Final = 300
SECOND_MS: Final = 1_000
GRACE_MS: Final = 5 * SECOND_MS

Work = Iterator[None]


class BrokenError(AssertionError):
    def __init__(self, invariant: str, words: str) -> None:
        super().__init__(f"{invariant}: {words}")
        self.invariant = invariant


class Store:
    def __init__(self) -> None:
        self.history: list[CronPlace | None] = [None]

    @property
    def revision(self) -> int:
        return len(self.history) - 1

    @property
    def place(self) -> CronPlace | None:
        return self.history[-1]

    def change(self, change: Callable[[CronPlace | None], CronPlace | None]) -> None:
        """Compared and set: nothing comes between."""
        wanted = change(self.place)
        if wanted is not None and wanted != self.place:
            self.history.append(wanted)


class Leader:
    """Of one partition; its row outlives it."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.row: StoredCron | None = None
        self.seen = 0
        self.work: list[Work] = []

    @property
    def place(self) -> CronPlace | None:
        return self.world.store.history[self.seen]

    def die(self) -> None:
        """Whoever is elected has seen all that was stored by then."""
        self.work.clear()
        self.seen = self.world.store.revision

    def define(self) -> Work:
        world = self.world
        known = world.store.place
        self.seen = world.store.revision
        version = max(world.now_ms, 0 if known is None else known.version + 1)
        yield
        fired_ms = world.now_ms if self.row is None else max(self.row.fired_ms, world.now_ms)
        self.row = StoredCron("tick", 0, "* * * * *", "UTC", Missed.ONCE, fired_ms, version)
        yield
        self._claim(version)

    def _claim(self, version: int) -> None:
        self.world.store.change(lambda place: claimed(place, self.index, version))
        self.seen = self.world.store.revision

    def settle(self) -> Work:
        if self.row is None:
            yield from self._settle_key()
            return
        row, place = self.row, self.place
        match standing_of(place, self.index, row):
            case Standing.STALE:
                yield from self._drop(place)
            case Standing.NEWER | Standing.BEHIND:
                self._claim(row.version)
            case Standing.UNNAMED:
                self.world.store.change(lambda stored: claimed(stored, self.index, row.version))
            case Standing.LEARNS:
                assert place is not None
                self.row = replace(row, fired_ms=place.fired_ms)
            case Standing.FIRES | Standing.WAITS:
                pass

    def _drop(self, place: CronPlace | None) -> Work:
        assert place is not None
        if place.held == self.index:
            yield
            if self.row is None:
                return
            fired_ms = self.row.fired_ms
            self.world.store.change(lambda stored: told(stored, fired_ms) if stored and self._holds(stored) else None)
            yield
        self.row = None
        yield
        yield from self._settle_key()

    def _settle_key(self) -> Work:
        if self.row is None and self._holds(self.place):
            yield
            self.world.store.change(lambda stored: let_go(stored) if stored and self._holds(stored) else None)

    def _holds(self, place: CronPlace | None) -> TypeGuard[CronPlace]:
        return place is not None and place.held == self.index

    def fire(self) -> None:
        row, now_ms = self.row, self.world.now_ms
        if row is None or not may_fire(self.place, self.index, row):
            return
        # Those that nobody was there for are made up for, within reason.
        for due_ms in range(max(row.fired_ms, now_ms - GRACE_MS) + SECOND_MS, now_ms + 1, SECOND_MS):
            self.world.note(due_ms, self.index)
        self.row = replace(row, fired_ms=now_ms)

    def step(self) -> None:
        """One step of what it is at: on a node one change is made at a time."""
        if not self.work:
            self.work.append(self.settle())
        if next(self.work[0], self) is self:
            self.work.pop(0)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Store()
        self.now_ms = 1_000
        self.fired: dict[int, int] = {}
        self.leaders = [Leader(self, index) for index in range(PARTITIONS)]

    def note(self, due_ms: int, partition: int) -> None:
        if due_ms in self.fired:
            raise BrokenError(CRON_ONCE, f"{due_ms} by {self.fired[due_ms]} and by {partition}")
        self.fired[due_ms] = partition

    def act(self) -> None:
        leader = self.chance.choice(self.leaders)
        match self.chance.choices(("step", "hear", "fire", "tick", "define", "die"), (10, 3, 6, 1, 2, 1))[0]:
            case "step":
                leader.step()
            case "hear":
                leader.seen = self.chance.randint(leader.seen, self.store.revision)
            case "fire":
                leader.fire()
            case "tick":
                self.now_ms += SECOND_MS
            case "define":
                leader.work.append(leader.define())
            case "die":
                leader.die()

    def quiet(self) -> None:
        for _ in range(20):
            for leader in self.leaders:
                leader.seen = self.store.revision
                for _ in range(10):
                    leader.step()
        self.now_ms += SECOND_MS
        for leader in self.leaders:
            leader.fire()
        place, rows = self.store.place, [leader.index for leader in self.leaders if leader.row is not None]
        if place is None:
            is_well = not rows
        else:
            is_well = (place.held, rows, self.fired.get(self.now_ms)) == (None, [place.partition], place.partition)
        if not is_well:
            raise BrokenError(CRON_QUIET, f"{place}, rows in {rows}")


def walk(seed: int) -> int:
    """How many times were fired."""
    world = World(seed)
    for _ in range(STEPS):
        world.act()
    world.quiet()
    return len(world.fired)
