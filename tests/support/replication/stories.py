"""The walks by name: `run_story(seed, kind)` tells one, the same for the same seed."""

from __future__ import annotations

import hashlib
from typing import Final

from support.replication.mover import MoverWorld
from support.replication.world import World

PLAIN: Final = "plain"
MOVER: Final = "mover"
KINDS: Final = (PLAIN, MOVER)


def run_story(seed: int, kind: str) -> World:
    world = World(seed) if kind == PLAIN else MoverWorld(seed)
    world.run()
    return world


def digest_of(world: World) -> str:
    """Of all that was stored, committed and left on disks."""
    logs = [[(log.entries, log.durable_end, log.watermark) for log in node.logs] for node in world.nodes]
    return hashlib.sha256(repr((world.store.history, world.book.entries, logs)).encode()).hexdigest()
