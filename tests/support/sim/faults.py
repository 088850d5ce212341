"""What goes wrong in a story: to a node, its disk, its clock, the network, the metadata store.

A fault begins and ends by itself, or lasts until `heal`. Several may be under way at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any, Final

from support.sim.network import LATENCY_SECONDS
from support.sim.node import DISK_BYTES, SimNode
from support.sim.store import EVERYBODY
from support.sim.world import World
from support.storage.faulty_files import CrashMode

Fault = Callable[[World, SimNode], Coroutine[Any, Any, None]]

DOWN_SECONDS: Final = (0.0, 1.0)
# Longer than most clients wait for a reply.
PAUSE_SECONDS: Final = (0.01, 4.0)
STEP_MS_MAX: Final = 3_600_000
LEFT_BYTES_MAX: Final = 4_096
AWAY_SECONDS: Final = (0.1, 3.0)
# Beyond the time after which a node's registration ends.
LONG_AWAY_SECONDS: Final = 15.0
SLOW_BYTES_PER_SECOND: Final = 50_000.0


def _between(world: World, bounds: tuple[float, float]) -> float:
    return world.random.uniform(*bounds)


# Nodes


async def crash(world: World, node: SimNode) -> None:
    """By `kill -9` or by a power cut, and started again at once or later."""
    node.crash(world.random.choice(list(CrashMode)))
    await asyncio.sleep(_between(world, DOWN_SECONDS))
    await restart(node)


async def stop(world: World, node: SimNode) -> None:
    if node.is_running and not node.is_paused:
        await node.stop()
        await restart(node)


async def pause(world: World, node: SimNode) -> None:
    if not node.is_running or node.is_paused:
        return
    owner = node.owner
    node.pause()
    await asyncio.sleep(_between(world, PAUSE_SECONDS))
    if node.owner == owner:
        node.resume()


async def restart(node: SimNode) -> None:
    if not node.is_running:
        await node.start()


async def step_clock(world: World, node: SimNode) -> None:
    node.clock.step_ms(world.random.randint(-STEP_MS_MAX, STEP_MS_MAX))


# Disks


async def fail_sync(world: World, node: SimNode) -> None:
    node.files.fail_next(world.random.choice(("sync", "sync", "sync_all", "sync_directory")), errno.EIO)


async def fail_write(world: World, node: SimNode) -> None:
    if world.random.random() < 0.5:
        node.files.shorten_next_write(world.random.randrange(100))
    node.files.fail_next("write", world.random.choice((errno.EIO, errno.ENOSPC)))


async def fill_disk(world: World, node: SimNode) -> None:
    free_bytes = node.files.free_bytes("/")
    node.files.bytes_max -= max(0, free_bytes - world.random.randrange(LEFT_BYTES_MAX))
    await asyncio.sleep(_between(world, AWAY_SECONDS))
    node.files.bytes_max = DISK_BYTES


# The network between clients and nodes


async def reset_connections(world: World, node: SimNode) -> None:
    world.network.reset(node.host, "world")


async def cut_one_way(world: World, node: SimNode) -> None:
    source, target = world.random.choice(((node.host, "world"), ("world", node.host)))
    world.network.cut(source, target)
    await asyncio.sleep(_between(world, AWAY_SECONDS))
    world.network.heal()


async def slow_link(world: World, node: SimNode) -> None:
    link = world.network.link("world", node.host)
    link.bytes_per_second = SLOW_BYTES_PER_SECOND
    link.latency_seconds = (LATENCY_SECONDS[0], 0.1)
    await asyncio.sleep(_between(world, AWAY_SECONDS))
    world.network.heal()


# The metadata store


async def store_away(world: World, node: SimNode) -> None:
    seconds = LONG_AWAY_SECONDS if world.random.random() < 0.1 else _between(world, AWAY_SECONDS)
    world.engine.faults.away.add(world.random.choice((EVERYBODY, node.host)))
    await asyncio.sleep(seconds)
    world.heal_store()


async def store_unsure(world: World, node: SimNode) -> None:
    faults = world.engine.faults
    faults.lost_reply_chance = faults.break_chance = 0.3
    faults.watch_delay_seconds = 0.5
    await asyncio.sleep(_between(world, AWAY_SECONDS))
    world.heal_store()


async def forget_history(world: World, node: SimNode) -> None:
    world.engine.state.compact()


async def end_sessions(world: World, node: SimNode) -> None:
    world.engine.end_sessions()


FAULTS: Final[dict[Fault, int]] = {
    crash: 6,
    stop: 2,
    pause: 2,
    step_clock: 1,
    fail_sync: 2,
    fail_write: 2,
    fill_disk: 1,
    reset_connections: 3,
    cut_one_way: 1,
    slow_link: 1,
    store_away: 1,
    store_unsure: 1,
    forget_history: 1,
    end_sessions: 1,
}


def draw(world: World) -> Fault:
    return world.random.choices(list(FAULTS), list(FAULTS.values()))[0]


def heal(world: World) -> None:
    world.network.heal()
    world.heal_store()
    for node in world.nodes:
        node.files.forget_failures()
        node.files.bytes_max = DISK_BYTES
        if node.is_paused:
            node.resume()
