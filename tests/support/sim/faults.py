"""What goes wrong in a story: to a node, its disk, its clock, the network, the metadata store.

A fault begins and ends by itself, or lasts until `heal`. Several may be under way at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.storage.segment.facts import LOG_SUFFIX
from support.sim.network import LATENCY_SECONDS
from support.sim.node import DISK_BYTES, SimNode
from support.sim.store import EVERYBODY
from support.sim.world import World
from support.storage.faulty_files import CrashMode

Fault = Callable[[World, SimNode], Coroutine[Any, Any, None]]

DOWN_SECONDS: Final = (0.0, 1.0)
# Longer than most clients wait for a reply.
PAUSE_SECONDS: Final = (0.01, 4.0)
# Back only by so much that what is due by the later time comes due in the quiet at the end.
STEP_MS: Final = (-30_000, 3_600_000)
LEFT_BYTES_MAX: Final = 4_096
AWAY_SECONDS: Final = (0.1, 3.0)
# Beyond the time after which a node's registration ends.
LONG_AWAY_SECONDS: Final = 15.0
SLOW_BYTES_PER_SECOND: Final = 50_000.0
# Of a node that was stopped well and started again, until its power is cut.
SOON_SECONDS: Final = (0.0, 0.6)
# Of a disk that is in trouble: longer than a client waits until it asks again.
SLOW_WORK_SECONDS: Final = (0.1, 0.6)
RETRIES_MAX: Final = 6
# Of a few turns of the disk.
SYNCS_MAX: Final = 12
POWER_CUTS: Final = (CrashMode.LOST, CrashMode.ORDERED, CrashMode.SCATTERED, CrashMode.SCATTERED)
BETWEEN_RETRIES_SECONDS: Final = (0.02, 0.15)
TORN_WRITES_MAX: Final = 8
TORN_BYTES_MAX: Final = 900
BETWEEN_WRITES_SECONDS: Final = (0.0, 0.1)
SLOW_STORE_SECONDS: Final = (0.05, 0.4)
GRACE_MS: Final = 5_000
# Files beside the logs from which nothing is lost that the logs do not tell as well.
DERIVED_SUFFIXES: Final = (".index", ".timeindex", "/producers", "/leader_epochs", "/checkpoint", "/journal-snapshot")


def between(world: World, bounds: tuple[float, float]) -> float:
    return world.random.uniform(*bounds)


# Nodes


async def crash(world: World, node: SimNode) -> None:
    """By `kill -9` or by a power cut, and started again at once or later."""
    node.crash(world.random.choice(list(CrashMode)))
    await asyncio.sleep(between(world, DOWN_SECONDS))
    await restart(node)


async def crash_in_sync(world: World, node: SimNode) -> None:
    if node.is_running:
        node.crash_in_sync(world.random.randrange(SYNCS_MAX))
        await asyncio.sleep(between(world, SOON_SECONDS))
        node.keep_power()
        await restart(node)


async def crash_while_slow(world: World, node: SimNode) -> None:
    """Much is in the cache alone when the power goes."""
    world.loop.slow_work_seconds[node.host] = SLOW_WORK_SECONDS
    await asyncio.sleep(between(world, SOON_SECONDS))
    world.loop.slow_work_seconds.pop(node.host, None)
    node.crash(world.random.choice(POWER_CUTS))
    await restart(node)


async def stop(world: World, node: SimNode) -> None:
    if node.is_running and not node.is_paused:
        await node.stop()
        await restart(node)


async def stop_and_crash(world: World, node: SimNode) -> None:
    """A clean end, and an unclean one soon after it."""
    await stop(world, node)
    await asyncio.sleep(between(world, SOON_SECONDS))
    await crash(world, node)


async def pause(world: World, node: SimNode) -> None:
    if not node.is_running or node.is_paused:
        return
    owner = node.owner
    node.pause()
    await asyncio.sleep(between(world, PAUSE_SECONDS))
    if node.owner == owner:
        node.resume()


async def restart(node: SimNode) -> None:
    if not node.is_running:
        await node.start()


async def step_clock(world: World, node: SimNode) -> None:
    node.clock.step_ms(world.random.randint(*STEP_MS))


# Disks


async def fail_sync(world: World, node: SimNode) -> None:
    """Perhaps with the power gone a moment later, and with it what the cache still had."""
    node.files.fail_next(world.random.choice(("sync", "sync", "sync_all", "sync_directory")), errno.EIO)
    if world.random.random() < 0.4:
        await asyncio.sleep(between(world, BETWEEN_WRITES_SECONDS))
        node.crash(CrashMode.LOST)
        await restart(node)


async def fail_writes(world: World, node: SimNode) -> None:
    """Some in a row, each of them after a part was written, or at once."""
    number = world.random.choice((errno.EIO, errno.ENOSPC, errno.ENOSPC))
    for _ in range(world.random.randint(1, TORN_WRITES_MAX)):
        if world.random.random() < 0.7:
            node.files.shorten_next_write(world.random.randrange(TORN_BYTES_MAX))
        node.files.fail_next("write", number)
        await asyncio.sleep(between(world, BETWEEN_WRITES_SECONDS))


async def lose_replies(world: World, node: SimNode) -> None:
    """Syncs take so long that clients ask again for what is not durable yet, over new connections."""
    world.loop.slow_work_seconds[node.host] = SLOW_WORK_SECONDS
    for _ in range(world.random.randint(1, RETRIES_MAX)):
        await asyncio.sleep(between(world, BETWEEN_RETRIES_SECONDS))
        await reset_connections(world, node)
    if world.random.random() < 0.3:
        await crash(world, node)
    world.loop.slow_work_seconds.pop(node.host, None)


async def rot(world: World, node: SimNode) -> None:
    """A bit of a sealed segment, or of a file that is made from logs; found when the cache is gone at the latest."""
    paths = [path for path in _sealed_or_derived(node.files.paths()) if node.files.durable_size(path)]
    if paths:
        path = world.random.choice(paths)
        node.excuses.rot(path, world.random.randrange(8 * node.files.durable_size(path)))
    if world.random.random() < 0.5:
        await crash(world, node)


def _sealed_or_derived(paths: list[str]) -> list[str]:
    logs = sorted(path for path in paths if path.endswith(LOG_SUFFIX))
    last = {path.rpartition("/")[0]: path for path in logs}
    sealed = [path for path in logs if path not in last.values()]
    return sealed + sorted(path for path in paths if path.endswith(DERIVED_SUFFIXES))


async def fill_disk(world: World, node: SimNode) -> None:
    free_bytes = node.files.free_bytes("/")
    node.files.bytes_max -= max(0, free_bytes - world.random.randrange(LEFT_BYTES_MAX))
    await asyncio.sleep(between(world, AWAY_SECONDS))
    node.files.bytes_max = DISK_BYTES


# The network between clients and nodes


async def reset_connections(world: World, node: SimNode) -> None:
    world.network.reset(node.host, "world")


async def cut_one_way(world: World, node: SimNode) -> None:
    source, target = world.random.choice(((node.host, "world"), ("world", node.host)))
    world.network.cut(source, target)
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.network.heal()


async def slow_link(world: World, node: SimNode) -> None:
    link = world.network.link("world", node.host)
    link.bytes_per_second = SLOW_BYTES_PER_SECOND
    link.latency_seconds = (LATENCY_SECONDS[0], 0.1)
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.network.heal()


# The metadata store


async def store_away(world: World, node: SimNode) -> None:
    seconds = LONG_AWAY_SECONDS if world.random.random() < 0.1 else between(world, AWAY_SECONDS)
    world.engine.faults.away.add(world.random.choice((EVERYBODY, node.host)))
    await asyncio.sleep(seconds)
    world.heal_store()


async def store_unsure(world: World, node: SimNode) -> None:
    faults = world.engine.faults
    faults.lost_reply_chance = faults.break_chance = 0.3
    faults.watch_delay_seconds = 0.5
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.heal_store()


async def store_slow(world: World, node: SimNode) -> None:
    """And late: sessions end when their holders have long renewed them, or long after they are gone."""
    world.engine.faults.latency_seconds = SLOW_STORE_SECONDS
    world.engine.faults.patience_seconds = 1.0
    world.engine.faults.grace_ms = GRACE_MS
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.heal_store()


async def forget_history(world: World, node: SimNode) -> None:
    world.engine.state.compact()


async def end_sessions(world: World, node: SimNode) -> None:
    world.engine.end_sessions()


FAULTS: Final[dict[Fault, int]] = {
    crash: 4,
    crash_in_sync: 4,
    crash_while_slow: 3,
    stop: 1,
    stop_and_crash: 2,
    pause: 2,
    step_clock: 1,
    fail_sync: 2,
    fail_writes: 3,
    lose_replies: 3,
    rot: 1,
    fill_disk: 1,
    reset_connections: 3,
    cut_one_way: 1,
    slow_link: 1,
    store_away: 1,
    store_unsure: 1,
    store_slow: 1,
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
        node.keep_power()
        node.files.bytes_max = DISK_BYTES
        world.loop.slow_work_seconds.pop(node.host, None)
        if node.is_paused:
            node.resume()
