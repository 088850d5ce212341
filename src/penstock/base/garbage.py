"""When the garbage collector looks, so that no look holds up everybody.

A look walks objects on the thread that happens to run: the loop stands still, about 0.25 s for a million of them.
Python decides by counts that suit a short program: a node that was given a hundred thousand groups walked a million
objects in one look.

    young ──10,000 more──► looked at ──5 looks──► looked at ──2 looks──► looked at, and frozen: not walked again
                                                                    after many: thawed once, and all are walked

What is frozen is still freed when nobody holds it: only cycles wait for the look at everything. A node makes few (a
connection and its transport, an error and its frames), and that look comes before they are many.
"""

from __future__ import annotations

import gc
from typing import Any, Final

# While a node starts: modules, and a replay's millions of objects, stay, and looking through them again and again would
# cost more than making them. Nobody is served yet.
STARTING_LOOKS: Final = (50_000, 20, 100)
# At most 10,000, 50,000 and 100,000 objects at a look: 2, 10 and 25 ms.
SERVING_LOOKS: Final = (10_000, 4, 1)
OBJECTS_PER_OLDEST_LOOK: Final = 100_000
# Four million objects more, some 400 MB: until then a cycle that nobody holds may stay.
LOOKS_BEFORE_ALL_MIN: Final = 40
OLDEST: Final = 2


def begin_start() -> None:
    """Before anything is loaded."""
    gc.set_threshold(*STARTING_LOOKS)


def begin_serving() -> ShortLooks:
    """When everything is loaded: it stays, and is never walked in vain."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SERVING_LOOKS)
    looks = ShortLooks(gc.get_freeze_count())
    gc.callbacks.append(looks)
    return looks


class ShortLooks:
    """Hears of every look, and freezes what the oldest ones leave."""

    def __init__(self, frozen: int) -> None:
        self._looks = 0
        self._looks_before_all = _looks_before_all(frozen)
        self._is_thawed = False

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] != OLDEST:
            return
        gc.freeze()
        if self._is_thawed:
            self._is_thawed = False
            self._looks = 0
            self._looks_before_all = _looks_before_all(gc.get_freeze_count())
            return
        self._looks += 1
        if self._looks >= self._looks_before_all:
            gc.unfreeze()
            self._is_thawed = True

    def end(self) -> None:
        gc.callbacks.remove(self)


def _looks_before_all(frozen: int) -> int:
    """As many as there are objects: looking at all of them then costs no more than looking at the new ones did."""
    return max(LOOKS_BEFORE_ALL_MIN, frozen // OBJECTS_PER_OLDEST_LOOK)
