"""What goes wrong between nodes that replicate, besides what goes wrong with each of them (`faults`).

Whatever is promised outlives one lost disk of three, and any number of nodes that are killed, paused, cut off or
without power. So one disk at most is lost in a story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from support.sim import faults
from support.sim.faults import AWAY_SECONDS, DOWN_SECONDS, Fault, between
from support.sim.network import LATENCY_SECONDS
from support.sim.node import SimNode
from support.sim.store import EVERYBODY
from support.sim.world import World
from support.storage.faulty_files import CrashMode

# Beyond a node's session (4 s), now and then.
PAUSE_SECONDS: Final = (0.01, 7.0)
LONG_CUT_SECONDS: Final = (1.0, 7.0)
HANDLES_MAX: Final = 400
STEP_MS_MAX: Final = 20_000
SLOW_LATENCY_SECONDS: Final = (0.05, 0.4)
# An older copy of a disk is at least so old.
COPY_SECONDS: Final = (0.1, 2.0)
STARTS_MAX: Final = 5
WEIGHTED_CHANCE: Final = 0.8
BETWEEN_STARTS_SECONDS: Final = 1.0


async def restart(world: World, node: SimNode) -> None:
    """As whoever looks after a node does: again and again, while it says that it cannot."""
    for _ in range(STARTS_MAX):
        if node.is_running or await node.start():
            return
        await asyncio.sleep(BETWEEN_STARTS_SECONDS)


# Nodes


async def kill(world: World, node: SimNode) -> None:
    """At any handle, and back at once or later."""
    await _in_between(world, lambda: node.crash(CrashMode.KILL))
    await asyncio.sleep(between(world, DOWN_SECONDS))
    await restart(world, node)


async def restart_fast(world: World, node: SimNode) -> None:
    """Before anybody can have missed it."""
    await _in_between(world, lambda: node.crash(CrashMode.KILL))
    await restart(world, node)


async def cut_power(world: World, node: SimNode) -> None:
    mode = world.random.choice((CrashMode.LOST, CrashMode.LOST, CrashMode.ORDERED))
    await _in_between(world, lambda: node.crash(mode))
    await asyncio.sleep(between(world, DOWN_SECONDS))
    await restart(world, node)


async def cut_all_power(world: World, node: SimNode) -> None:
    """The room has none."""
    for each in world.nodes:
        each.crash(CrashMode.LOST)
    await asyncio.sleep(between(world, DOWN_SECONDS))
    await asyncio.gather(*(restart(world, each) for each in world.nodes))


async def crash_while_slow(world: World, node: SimNode) -> None:
    """Much is in the cache alone when the power goes."""
    world.loop.slow_work_seconds[node.host] = faults.SLOW_WORK_SECONDS
    await asyncio.sleep(between(world, faults.SOON_SECONDS))
    world.loop.slow_work_seconds.pop(node.host, None)
    node.crash(CrashMode.LOST)
    await asyncio.sleep(between(world, DOWN_SECONDS))
    await restart(world, node)


async def slow_disk(world: World, node: SimNode) -> None:
    world.loop.slow_work_seconds[node.host] = faults.SLOW_WORK_SECONDS
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.loop.slow_work_seconds.pop(node.host, None)


async def stop(world: World, node: SimNode) -> None:
    if node.is_running and not node.is_paused:
        await node.stop()
        await asyncio.sleep(between(world, DOWN_SECONDS))
        await restart(world, node)


async def pause(world: World, node: SimNode) -> None:
    if not node.is_running or node.is_paused:
        return
    owner = node.owner

    def begin() -> None:
        if node.owner == owner and node.is_running and not node.is_paused:
            node.pause()

    await _in_between(world, begin)
    await asyncio.sleep(between(world, PAUSE_SECONDS))
    if node.owner == owner:
        node.resume()


async def step_clock(world: World, node: SimNode) -> None:
    """By less than the quiet at the end: what is due by one clock is so by every other before that is over."""
    node.clock.step_ms(world.random.randint(-STEP_MS_MAX, STEP_MS_MAX))


async def _in_between(world: World, act: Callable[[], None]) -> None:
    """Two handles, drawn."""
    done = asyncio.Event()

    def then() -> None:
        act()
        done.set()

    world.loop.after_handles(world.random.randrange(1, HANDLES_MAX), then)
    await done.wait()


# Disks


async def lose_disk(world: World, node: SimNode) -> None:
    """Another one is in its place, or an older copy of it; of one node in a story. Perhaps in the moment when the room
    has no power: then nobody has missed the node before it is back."""
    if world.has_lost_disk:
        return
    world.has_lost_disk = True
    # BUG: a copy that was made in the life that is put back by it looks as the disk did; see the design, 5.1.
    image = await _older_copy(world, node) if world.random.random() < 0.5 else {}
    others = world.nodes if world.random.random() < 0.5 else [node]
    for each in others:
        each.crash(CrashMode.LOST)
    node.roll_back(image)
    await asyncio.sleep(between(world, DOWN_SECONDS))
    await asyncio.gather(*(restart(world, each) for each in others))


async def _older_copy(world: World, node: SimNode) -> dict[str, bytes]:
    """Of an earlier life."""
    image = node.files.image()
    node.crash(CrashMode.KILL)
    await restart(world, node)
    await asyncio.sleep(between(world, COPY_SECONDS))
    return image


# The network between nodes


async def cut_off(world: World, node: SimNode) -> None:
    """From the other nodes, both ways, or one of them."""
    others = [each.host for each in world.nodes if each is not node]
    if world.random.random() < 0.5:
        others = [world.random.choice(others)]
    is_away, is_back = world.random.choice(((True, True), (True, False), (False, True)))
    for host in others:
        if is_away:
            world.network.cut(node.host, host)
        if is_back:
            world.network.cut(host, node.host)
    await asyncio.sleep(between(world, LONG_CUT_SECONDS))
    world.network.heal()


async def reset_between(world: World, node: SimNode) -> None:
    for each in world.nodes:
        world.network.reset(node.host, each.host)


async def spoil_between(world: World, node: SimNode) -> None:
    """A bit of what it sends to each of the others."""
    for each in world.nodes:
        if each is not node:
            world.network.spoil(node.host, each.host)


async def slow_between(world: World, node: SimNode) -> None:
    for each in world.nodes:
        if each is not node:
            world.network.link(each.host, node.host).latency_seconds = (LATENCY_SECONDS[0], SLOW_LATENCY_SECONDS[1])
            world.network.link(node.host, each.host).latency_seconds = SLOW_LATENCY_SECONDS
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.network.heal()


# The metadata store


async def store_away(world: World, node: SimNode) -> None:
    """For all, or for one: then its session ends while it lives."""
    who = world.random.choice((EVERYBODY, node.host, node.host))
    world.engine.faults.away.add(who)
    await asyncio.sleep(between(world, LONG_CUT_SECONDS))
    world.heal_store()


async def store_mute(world: World, node: SimNode) -> None:
    """What one node asks for is done, and it is never told."""
    world.engine.faults.mute.add(node.host)
    await asyncio.sleep(between(world, AWAY_SECONDS))
    world.heal_store()


FAULTS: Final[dict[Fault, int]] = {
    kill: 5,
    restart_fast: 3,
    cut_power: 4,
    cut_all_power: 1,
    crash_while_slow: 2,
    slow_disk: 1,
    stop: 2,
    pause: 4,
    lose_disk: 2,
    step_clock: 1,
    faults.fail_sync: 1,
    faults.reset_connections: 1,
    faults.cut_one_way: 1,
    cut_off: 4,
    reset_between: 2,
    slow_between: 2,
    spoil_between: 1,
    store_away: 2,
    store_mute: 1,
    faults.store_unsure: 2,
    faults.store_slow: 1,
    faults.forget_history: 1,
    faults.end_sessions: 1,
}


BY_NAME: Final = {fault.__name__: fault for fault in FAULTS}


def draw(world: World, weighted: Sequence[str] = ()) -> Fault:
    """One of those that are named, most of the time."""
    if weighted and world.random.random() < WEIGHTED_CHANCE:
        return BY_NAME[world.random.choice(weighted)]
    return world.random.choices(list(FAULTS), list(FAULTS.values()))[0]
