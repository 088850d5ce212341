"""A whole node in a simulation: the real one, on a disk, a clock and a network that are not.

It is started, stopped, paused, killed and robbed of its power. Every life is an owner of its own on the loop
(`127.0.0.1#3`), so that nothing of an earlier one ever runs again; the disk and the host stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from random import Random
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from penstock.assembly import Assembly
from penstock.base.chance import Chance
from penstock.broker.parts import Parts
from penstock.config import Config, load_config
from penstock.net.address import Address
from penstock.net.errors import BrokerUnreachableError
from penstock.node import Node
from support.sim.clock import SimClock
from support.sim.excuses import Excuses
from support.sim.invariants import NO_DAMAGE, check
from support.sim.network import NetworkedLoop
from support.sim.store import SimEngine, SimStore
from support.storage.faulty_files import CrashMode, FaultyFiles

Result = TypeVar("Result")

PORT: Final = 9092
INTERNAL_PORT: Final = 9094
REPLICATION: Final = 3
# Shorter than real ones: a story does not last as long.
REPLICA_LAG_MS: Final = 2_000
RETENTION_CHECK_MS: Final = 500
DISK_BYTES: Final = 16 * 1024 * 1024
# Of a machine without power: others hear of it only when it is back, or when they give up.
SILENT_SECONDS_MAX: Final = 2.0
SKEW_MS_MAX: Final = 500
# For a start or a stop, also of a node that is paused meanwhile.
WAIT_SECONDS_MAX: Final = 60.0


class PowerLostError(Exception):
    """Of work in a thread; whoever would be told of it is gone."""


class LoopSyncs:
    """Syncs as the loop's own threads do them, which are simulated."""

    def run(self, work: Callable[[], Result], then: Callable[[Result], object]) -> None:
        future = asyncio.get_running_loop().run_in_executor(None, work)
        future.add_done_callback(lambda done: then(done.result()))

    def close(self) -> None:
        return None


class SimNode:
    def __init__(
        self, number: int, loop: NetworkedLoop, engine: SimEngine, random: Random, *, has_internal_door: bool = False
    ) -> None:
        self.number = number
        self._has_internal_door = has_internal_door
        self.host = f"127.0.0.{number}"
        self.address = Address(self.host, PORT)
        self.files = FaultyFiles(Random(random.getrandbits(64)), bytes_max=DISK_BYTES)
        self.clock = SimClock(loop, Random(random.getrandbits(64)), skew_ms=random.randint(-SKEW_MS_MAX, SKEW_MS_MAX))
        self.is_running = False
        self.is_paused = False
        # By the loop's clock, when its disk was wiped or put back; never: -inf.
        self.disk_lost_at = float("-inf")
        # What it may report as damaged.
        self.excuses = Excuses(self.files)
        self.files.before_loss = self.excuses.note_unsynced
        # Why it did not come up the last time.
        self.failure: BaseException | None = None
        self._loop = loop
        self._engine = engine
        self._random = random
        self._life = 0
        # Of its machine, which lives on when the process is killed.
        self._boot = 0
        self._node: Node | None = None
        # Done when the life is over.
        self._ended: asyncio.Future[None] = loop.create_future()

    @property
    def owner(self) -> str:
        return f"{self.host}#{self._life}"

    @property
    def parts(self) -> Parts | None:
        """Everything below its doors, for those who look on; None: it is not that far, or not running."""
        return self._node.parts if self._node is not None and self.is_open else None

    @property
    def is_open(self) -> bool:
        """Whether its doors are."""
        return self._node is not None and self.is_running and bool(self._node.doors)

    def begin(self, work: Callable[[Parts], Coroutine[Any, Any, Result]]) -> asyncio.Task[Result]:
        """What a door does for a client, in this life of the node: it is never done if the node dies before."""
        if not self.is_open:
            raise BrokerUnreachableError(f"{self.host} has no open door")
        assert self._node is not None
        return self._loop.start_as(self.owner, work(self._node.parts))

    async def start(self) -> bool:
        """False: it came down again by itself (`failure`), as a process that ends with a sentence, or was killed."""
        assert not self.is_running
        self._life += 1
        self._ended = self._loop.create_future()
        self._node = node = Node(self._config(), self._assembly())
        self.is_running = True
        if await self._finishes(self._loop.start_as(self.owner, node.start())) and self.failure is not None:
            self._end(CrashMode.KILL)
        return self.is_running

    async def stop(self) -> None:
        """In good order, unless it is killed meanwhile."""
        assert self._node is not None
        if await self._finishes(self._loop.start_as(self.owner, self._node.stop())):
            self._end(CrashMode.KILL)

    async def _finishes(self, work: asyncio.Task[None]) -> bool:
        """Whether the node lived until then; how it went is its `failure`."""
        ended = self._ended
        await asyncio.wait([work, ended], timeout=WAIT_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return False
        self.failure = work.exception() if work.done() else TimeoutError(f"not done after {WAIT_SECONDS_MAX} s")
        return True

    def damaged_topics(self) -> set[str]:
        """Those of its logs of which it says that something is not as it was written: no other than may be so."""
        assert self._node is not None
        found = [shell for shell in self._node.parts.broker.all_shells() if shell.log.damage is not None]
        for shell in found:
            home = shell.log.home
            places = [*shell.log.damages.places, *([shell.log.lost_end] if shell.log.lost_end is not None else [])]
            for place in places:
                is_excused = self.excuses.may_be_damaged(home.directory, place.offset)
                what = f"{home.topic}-{home.partition} on {self.host} holds {place} on a disk that kept it"
                check(NO_DAMAGE, holds=is_excused, what=what)
        return {shell.topic for shell in found}

    def pause(self) -> None:
        self.is_paused = True
        self._loop.pause(self.owner)

    def resume(self) -> None:
        self.is_paused = False
        self._loop.resume(self.owner)

    def crash(self, mode: CrashMode) -> None:
        """By `kill -9`, or a power cut that loses what was not synced in one of three ways."""
        if self.is_running:
            self._end(mode)

    def wipe(self) -> None:
        """An empty disk in place of the one that it had."""
        self.roll_back({})

    def roll_back(self, image: Mapping[str, bytes]) -> None:
        """To an older copy of its disk (`files.image`)."""
        assert not self.is_running
        self.disk_lost_at = self._loop.time()
        self.files.restore(image)

    def crash_in_sync(self, sync_count: int) -> None:
        """The power goes when so many more files have been synced: in the midst of a turn, most of the time."""
        left = count(sync_count, -1)

        def before_sync() -> None:
            if next(left) <= 0 and self.is_running:
                self.crash(CrashMode.LOST)
                raise PowerLostError

        self.files.before_sync = before_sync

    def keep_power(self) -> None:
        """Nothing of the kind is going to happen any more."""
        self.files.before_sync = _nothing

    def _end(self, mode: CrashMode) -> None:
        self.is_running = self.is_paused = False
        self.keep_power()
        if mode is CrashMode.SCATTERED:
            self.excuses.note_unsynced()
        self._ended.set_result(None)
        self._loop.kill(self.owner)
        silent_seconds = 0.0 if mode is CrashMode.KILL else self._random.random() * SILENT_SECONDS_MAX
        self._loop.network.end_owner(self.owner, silent_seconds=silent_seconds)
        self.files.crash(mode)
        self._boot += mode is not CrashMode.KILL

    def _assembly(self) -> Assembly:
        engine, host, chance = self._engine, self.host, Chance(Random(self._random.getrandbits(64)).randbytes)

        async def open_store(_config: object, _site: object) -> SimStore:
            return SimStore(engine, host)

        return Assembly(
            clock=lambda: self.clock,
            chance=lambda: chance,
            boot_id=lambda: f"{self.host} boot {self._boot}",
            files=lambda _config: self.files,
            syncs=LoopSyncs,
            metadata=open_store,
        )

    def _config(self) -> Config:
        config = self._config_alone()
        if not self._has_internal_door:
            return config
        cluster = replace(config.cluster, listen=f"{self.host}:{INTERNAL_PORT}", replica_lag_ms=REPLICA_LAG_MS)
        broker = replace(config.broker, default_replication=REPLICATION, retention_check_ms=RETENTION_CHECK_MS)
        return replace(config, cluster=cluster, broker=broker)

    def _config_alone(self) -> Config:
        return load_config(
            None,
            {},
            {
                "node": {"id": self.number, "data_dir": f"/{self.host}"},
                "kafka": {"listen": f"{self.host}:{PORT}"},
                "http": {"listen": "off"},
                "metrics": {"listen": "off"},
                # A thread that sleeps would stop the world: the cleaner and the scrubber are not slowed down.
                "storage": {
                    "sync_threads": 1,
                    "free_bytes_min": 64 * 1024,
                    "checkpoint_log_batches": 20,
                    "cleaner_bytes_per_second": 1 << 50,
                    "scrub_bytes_per_second": 1 << 50,
                },
                "broker": {"checkpoint_ms": 700, "recovery_retry_ms": 500, "free_space_check_ms": 300},
            },
        )


def _nothing() -> None:
    return None
