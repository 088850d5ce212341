"""Which machines live on this node: of each partition at most one shell, under one leadership.

    absent ──load──► loading ──► serving ──journal lost──► lost ──reload_lost──► loading
                        └──────── cannot be read ───────────┘        damaged: stays lost until its log is another one
    any ──resign──► resigned ──lead, in a higher epoch──► absent ──► loading: the one before has left, the barrier is
                                                                     reached, then it is read

A registry has one and asks it where a shell is; what a shell is asked, and when partitions come and go, is the
registry's own matter. Coordinators live with the partitions of their internal topic, queues and schedules with those of
data.

Rules:
- A shell is loaded once for all who wait for it, and who stops waiting does not stop the load.
- A shell belongs to one leadership. A higher epoch makes another one; a lower one is an old word, and changes nothing.
- What is loaded when its leadership has ended is handed to nobody.
- A shell whose leadership ends is told so at once, without an `await` in between.
- Nothing is read before the barrier of its leadership.
- Of what is followed here a rehearsal may read and save what a shell would begin with; it is over before one is loaded.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.barrier import NO_BARRIER, Barrier
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalLostError
from penstock.broker.machine.rehearsals import DisturbedError
from penstock.broker.machine.tallies import Tallies
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.role import is_replicated
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.errors import StorageError

log = get_logger("machines")

# After a disk has come back all of a node are lost at once; each load reads and computes for as long as it can.
RELOADING_AT_ONCE: Final = 4

# The topic's id and the partition's number.
Place = tuple[bytes, int]


class ResidentState(enum.Enum):
    # Nobody has asked for it, or it could not be made: whoever asks next has it made.
    ABSENT = "absent"
    LOADING = "loading"
    SERVING = "serving"
    LOST = "lost"
    RESIGNED = "resigned"


class Resident(Protocol):
    """A shell: machines of one partition and their journal."""

    @property
    def is_loaded(self) -> bool: ...

    @property
    def is_lost(self) -> bool:
        """It is loaded, and its journal takes nothing any more: it is to be unloaded and loaded."""
        ...

    @property
    def damage(self) -> JournalDamage: ...

    async def load(self) -> None:
        """Rebuilds the machines from the journal; JournalLostError, StorageError or OSError leave it unloaded."""
        ...

    async def unload(self) -> None:
        """Nothing is decided until it is loaded again."""
        ...

    def resign(self) -> None:
        """Somebody else leads: from this moment on, and for good, nothing is decided, written or answered by it, and
        whoever waits for an answer is told to look for it elsewhere. Also while it is being loaded."""
        ...

    async def leave(self) -> None:
        """After `resign`. Returns when nothing of it is under way that the next one of the partition could meet."""
        ...


Shell = TypeVar("Shell", bound=Resident)


class _Room(Generic[Shell]):
    """Of one partition."""

    __slots__ = ("before", "is_resigned", "leadership", "loading", "noticed", "partition", "shell")

    def __init__(
        self, partition: PartitionShell, leadership: Leadership, before: Iterable[asyncio.Task[object]] = ()
    ) -> None:
        self.partition = partition
        self.leadership = leadership
        self.shell: Shell | None = None
        self.loading: asyncio.Task[None] | None = None
        self.is_resigned = False
        # What those who lived here have not finished yet.
        self.before: tuple[asyncio.Task[object], ...] = tuple(before)
        # When others' lead ended by this one, until its shell answers; by the monotonic clock, in seconds.
        self.noticed: float | None = None

    @property
    def is_loading(self) -> bool:
        return self.loading is not None and not self.loading.done()

    def stop_loading(self) -> None:
        if self.loading is not None:
            self.loading.cancel()

    def leave(self) -> Shell | None:
        self.is_resigned = True
        self.stop_loading()
        return self.shell


class Takeovers(Tallies):
    """From when a node learns that it leads to when the machines answer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.now: Callable[[], float] = clock.monotonic_seconds


class Residents(Generic[Shell]):
    def __init__(
        self,
        what: str,
        make: Callable[[PartitionShell, Leadership], Awaitable[Shell | None]],
        *,
        tasks: TaskSupervisor,
        on_loaded: Callable[[Shell], None] | None = None,
        barrier: Callable[[], Barrier] = lambda: NO_BARRIER,
        takeovers: Takeovers | None = None,
    ) -> None:
        """`what` lives here, for events. `make`: None if its partition is gone meanwhile. `on_loaded` is told of every
        load that ends well. `barrier` as it is when a load begins."""
        self._what = what
        self._make = make
        self._tasks = tasks
        self._on_loaded = on_loaded
        self._barrier = barrier
        self._takeovers = takeovers
        self._rehearsing: dict[Place, asyncio.Task[object]] = {}
        self._rooms: dict[Place, _Room[Shell]] = {}
        self._is_closed = False

    # Who leads

    def lead(self, partition: PartitionShell, epoch: int) -> None:
        """From now on its shell may live here. If it did so under an older leadership, that one resigns. Again, or an
        older epoch: nothing changes."""
        place = place_of(partition)
        room = self._rooms.get(place)
        if room is not None and epoch <= room.leadership.epoch:
            return
        before: list[asyncio.Task[object]] = []
        if room is not None:
            self._resign(room)
            before = [task for task in (room.loading, *room.before) if task is not None and not task.done()]
        rehearsing = self._rehearsing.get(place)
        if rehearsing is not None:
            rehearsing.cancel()
            before.append(rehearsing)
        self._rooms[place] = _Room(partition, Leadership(partition.topic, partition.index, epoch), before)

    def resign(self, place: Place) -> None:
        """Somebody else leads it now."""
        room = self._rooms.get(place)
        if room is not None:
            self._resign(room)

    def _resign(self, room: _Room[Shell]) -> None:
        if room.is_resigned:
            return
        shell = room.leave()
        if shell is not None:
            shell.resign()
            room.before = (*room.before, self._tasks.start(f"{self._what} leaving", shell.leave()))

    def forget(self, topic_id: bytes) -> list[Shell]:
        """The topic is gone, and will not come back. Its shells have to be closed."""
        rooms = [self._rooms.pop(place) for place in self._places() if place[0] == topic_id]
        return [shell for room in rooms if not room.is_resigned and (shell := room.leave()) is not None]

    def close(self) -> list[Shell]:
        """The node stops: nothing is loaded any more. The shells have to be closed; whoever asks finds them so."""
        self._is_closed = True
        for room in self._rooms.values():
            room.stop_loading()
        for task in self._rehearsing.values():
            task.cancel()
        return self.shells()

    # Looking

    def state(self, place: Place) -> ResidentState:
        room = self._rooms.get(place)
        if room is None:
            return ResidentState.ABSENT
        if room.is_resigned:
            return ResidentState.RESIGNED
        if room.is_loading:
            return ResidentState.LOADING
        if room.shell is None:
            return ResidentState.ABSENT
        return ResidentState.SERVING if room.shell.is_loaded and not room.shell.is_lost else ResidentState.LOST

    def get(self, place: Place) -> Shell | None:
        """Whether it can be used just now or not; None: it does not live here, or nobody has asked for it."""
        room = self._rooms.get(place)
        return None if room is None or room.is_resigned else room.shell

    def shells(self) -> list[Shell]:
        """All that live here, by partition."""
        return [shell for place in self._places() if (shell := self.get(place)) is not None]

    def damages(self) -> list[JournalDamage]:
        """One for each, damaged or not."""
        return [shell.damage for shell in self.shells()]

    def _places(self) -> list[Place]:
        return list(self._rooms)

    @property
    def is_any_loading(self) -> bool:
        """Of those that are led here not all can be asked yet."""
        return any(room.is_loading and not room.is_resigned for room in self._rooms.values())

    # Loading

    def begin(self, partition: PartitionShell) -> None:
        """This node has begun to lead it: its shell is loaded, whether anybody asks for it or not."""
        self.lead(partition, partition.leadership.epoch)
        room = self._rooms[place_of(partition)]
        if not room.is_resigned and not self._is_closed and not room.is_loading and room.shell is None:
            if self._takeovers is not None and is_replicated(partition.role):
                room.noticed = self._takeovers.now()
            self._start_loading(room)

    async def resident(self, partition: PartitionShell) -> Shell | None:
        """The shell of a partition that is led here. None: it is being loaded, or cannot be made. Nobody is kept
        waiting for the barrier: that may take as long as another node is away."""
        place = place_of(partition)
        self.lead(partition, partition.leadership.epoch)
        room = self._rooms[place]
        if room.is_loading:
            return None
        if room.is_resigned or room.shell is not None:
            return self.get(place)
        return None if self.is_held(partition) else await self.load(place)

    def is_held(self, partition: PartitionShell) -> bool:
        """The shell of a partition that is led here waits for the barrier, however long that takes, and is loaded
        then."""
        self.lead(partition, partition.leadership.epoch)
        if self._barrier().is_reached(partition, self._rooms[place_of(partition)].leadership):
            return False
        self.begin(partition)
        return True

    async def load(self, place: Place) -> Shell | None:
        """The shell, as soon as it is loaded or cannot be: `is_loaded` and `damage` tell. One that is damaged is not
        read again and again. None: it does not live here, or cannot be made."""
        room = self._rooms.get(place)
        if room is None or room.is_resigned:
            return None
        is_known = room.shell is not None and (room.shell.is_loaded or room.shell.damage.reason is not None)
        if is_known or self._is_closed:
            return room.shell
        loading = room.loading if room.is_loading else self._start_loading(room)
        assert loading is not None
        await asyncio.wait([loading])
        return None if room.is_resigned else room.shell

    async def load_all(self, partitions: Iterable[PartitionShell], *, at_once: int) -> None:
        """Those that are led here. Whoever is held is loaded in the background: other nodes, by which the barrier is
        reached, may wait for this one to be started."""
        ready = [place_of(partition) for partition in partitions if not self.is_held(partition)]
        await _for_each(ready, self.load, at_once=at_once)

    def _start_loading(self, room: _Room[Shell]) -> asyncio.Task[None]:
        room.loading = self._tasks.start(f"{self._what} loading", self._load(room))
        return room.loading

    async def reload_lost(self) -> list[Shell]:
        """From time to time: those that were loaded again."""
        reloaded = await _for_each(self._places(), self._reload, at_once=RELOADING_AT_ONCE)
        return [shell for shell in reloaded if shell is not None]

    async def _reload(self, place: Place) -> Shell | None:
        room, shell = self._rooms.get(place), self.get(place)
        if room is None or shell is None or self._is_closed:
            return None
        if shell.is_lost:
            await shell.unload()
        if shell.is_loaded or shell.damage.reason is not None or room.partition.is_closed:
            return None
        found = await self.load(place)
        return found if found is not None and found.is_loaded else None

    async def _load(self, room: _Room[Shell]) -> None:
        partition = room.partition
        if room.before:
            await asyncio.wait(room.before)
        if not await self._barrier().reached(partition, room.leadership) or room.is_resigned:
            return
        try:
            shell = room.shell
            if shell is None:
                shell = await self._make(partition, room.leadership)
                if shell is None or room.is_resigned:
                    return
                room.shell = shell
            await shell.load()
        except (JournalLostError, StorageError, OSError) as error:
            log.error(f"{self._what} not available", topic=partition.topic, partition=partition.index, error=str(error))
            return
        if shell.is_loaded and not room.is_resigned:
            self._note_takeover(room)
            if self._on_loaded is not None:
                self._on_loaded(shell)

    def _note_takeover(self, room: _Room[Shell]) -> None:
        if self._takeovers is not None and room.noticed is not None:
            self._takeovers.add(self._what, self._takeovers.now() - room.noticed)
            room.noticed = None

    # Rehearsing

    @asynccontextmanager
    async def rehearsal(self, partition: PartitionShell) -> AsyncIterator[None]:
        """Of one that is not led here: inside, files of its shell may be made by this task, which must wait for nothing
        else. It is cancelled when the lead begins. DisturbedError: it lives here, or another is at it."""
        place = place_of(partition)
        room = self._rooms.get(place)
        lives_here = room is not None and not room.is_resigned
        if self._is_closed or lives_here or place in self._rehearsing:
            raise DisturbedError
        task = asyncio.current_task()
        assert task is not None
        self._rehearsing[place] = task
        try:
            if room is not None and room.before:
                await asyncio.wait(room.before)
            yield
        finally:
            del self._rehearsing[place]


def place_of(partition: PartitionShell) -> Place:
    return partition.log.home.topic_id, partition.index


Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def _for_each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Outcome]], *, at_once: int
) -> list[Outcome]:
    limit = asyncio.Semaphore(at_once)

    async def one(item: Item) -> Outcome:
        async with limit:
            return await work(item)

    return await asyncio.gather(*map(one, items))
