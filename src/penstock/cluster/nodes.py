"""How a node becomes one of the cluster, and stays it: its key in the store, for as long as it lives.

    take the key, `starting` ──► the epoch is in the data directory ──► tell what the directory said before
        ──► the controller judges and admits this life ──► `serving` ──► `draining` ──► the session is closed

A node's key is bound to a session, which a keeper renews in a thread of its own (`session`): one keeper for each life.
The revision that created the key is the *broker epoch*, which tells one life of a node from the next. Who finds its key
or its session gone takes the key anew: another life, that has to be admitted like the first.

A node that was killed and comes back within the TTL finds its own key still there: it knows it by the place of its data
directory, which nobody else can hold open, and takes it over at once. Any other holder means that two nodes were given
the same number, or that one has a copy of the other's directory: the second one is refused.

No step is repeated whose outcome is not known, and each compares the epoch it belongs to: a process that was paused
anywhere finds out that its life is over, and changes nothing that is not its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.catalog.nodes import ControllerRecord, NodeRecord
from penstock.cluster.session import SESSION_MS, SessionKeeper
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    NOTHING,
    Absent,
    Compare,
    CreateRevisionIs,
    Entry,
    MetadataStore,
    ModRevisionIs,
    StoreError,
    StoreFullError,
    StoreSession,
    StoreUnavailableError,
)
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.membership import DirectoryRecord, MemberRecord, epochs_to_keep
from penstock.domain.replication.state import NO_LIFE
from penstock.domain.replication.view import Duty

# How often a node looks whether its key is there still: who was taken for dead knows it before the TTL is over.
_LOOKS_PER_TTL: Final = 3
_ATTEMPTS_MAX: Final = 10


class Registered(msgspec.Struct, frozen=True):
    epoch: int


class NodeIdTaken(msgspec.Struct, frozen=True):
    record: NodeRecord
    ttl_ms: int
    # The holder's data directory says that it is the very one which this node has.
    is_copy: bool = False

    @property
    def reason(self) -> str:
        copied = ", with a data directory of which this one is a copy" if self.is_copy else ""
        return (
            f"node id {self.record.node_id} is held by the node at {self.record.host}:{self.record.port}{copied}; "
            f"if that one is gone, its hold ends within {self.ttl_ms / 1000:g} s"
        )


class Directory(Protocol):
    """The data directory's word about itself."""

    @property
    def record(self) -> DirectoryRecord:
        """As the life before left it, in this process or an earlier one: by that the next one is judged."""
        ...

    async def keep_epochs(self, epochs: tuple[int, ...]) -> None:
        """Durable when it returns. OSError: it is not."""
        ...


class NodeRegistry:
    """This node's own key. `begin_renewals`: how a session is kept from running out; a test does that by hand."""

    def __init__(
        self,
        store: MetadataStore,
        keys: KeySpace,
        *,
        clock: Clock,
        ttl_ms: int = SESSION_MS,
        directory: Directory | None = None,
        begin_renewals: Callable[[SessionKeeper], None] = SessionKeeper.start,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._directory = directory
        self._begin_renewals = begin_renewals
        # As others are to see it; None: `register` was not called, or refused.
        self._record: NodeRecord | None = None
        # Of this life.
        self._keeper: SessionKeeper | None = None
        # Of the lives before.
        self._late_count = 0
        self._epoch = NO_LIFE
        # Of which the directory has the epoch, and the others what it said.
        self._asked_epoch = NO_LIFE
        self._asked_by: DirectoryRecord | None = None
        # Of the store, when something was told last.
        self.told_revision = 0
        self._on_life: list[Callable[[], None]] = []
        self._turn = asyncio.Lock()
        self._log = get_logger("metadata")
        self._tasks = TaskSupervisor(self._log)

    @property
    def epoch(self) -> int:
        """This node's broker epoch; NO_LIFE: it holds no key."""
        return self._epoch

    @property
    def session(self) -> StoreSession | None:
        """What `controller` hangs on too."""
        return None if self._keeper is None else self._keeper.session

    @property
    def late_count(self) -> int:
        """Renewals that came late, in all lives since the start."""
        return self._late_count + (0 if self._keeper is None else self._keeper.late_count)

    def is_held_at(self, now_ms: int) -> bool:
        """Whether nobody can have ended this life's session before then, by the monotonic clock."""
        return self._keeper is not None and self._keeper.is_held_at(now_ms)

    @property
    def has_asked(self) -> bool:
        """To be admitted in this life."""
        return self._epoch != NO_LIFE and self._asked_epoch == self._epoch

    @property
    def has_room(self) -> bool:
        """As it was told last."""
        return self._record is None or self._record.has_room

    def on_life(self, listener: Callable[[], None]) -> None:
        """Called when the epoch has become another one."""
        self._on_life.append(listener)

    async def register(self, record: NodeRecord) -> Registered | NodeIdTaken | None:
        """Held until `close`, or until the node has not been able to renew it for the TTL. None: the store has no room
        for it now, and it is tried again until it has; what is there can be read meanwhile."""
        result: Registered | NodeIdTaken | None = None
        try:
            result = await self._take(record)
        except StoreFullError as error:
            self._log.warning("node not registered yet", error=str(error))
        if not isinstance(result, NodeIdTaken):
            if self._record is None:
                self._tasks.every(self._ttl_ms // _LOOKS_PER_TTL, "node registration", self.look)
            self._record = record
        return result

    async def ask_admission(self) -> None:
        """By what the directory says, which has this life's epoch durably then. Failed: it is asked again with the next
        look."""
        async with self._turn:
            try:
                await self._ask()
            except (StoreError, OSError) as error:
                self._log.warning("node asks to be admitted later", error=str(error))

    async def tell(self, change: Callable[[NodeRecord], NodeRecord]) -> None:
        """Others see it so from now on; if the store cannot be written, from the next look on."""
        async with self._turn:
            if self._record is None:
                return  # closed meanwhile
            self._record = change(self._record)
            try:
                await self._put()
            except StoreFullError as error:
                self._log.warning("what the node tells of itself is not written yet", error=str(error))

    async def nodes(self) -> list[NodeRecord]:
        """Those that live, by id, as the store has them now."""
        current = await self._store.range(self._keys.nodes)
        records = [decode(entry.key, entry.value, NodeRecord) for entry in current.entries]
        return sorted(records, key=lambda record: record.node_id)

    async def look(self) -> None:
        """Called by a timer, and when the session is lost. If that has ended (a long pause), or the key is gone (others
        could not reach us), the node registers anew: a new life."""
        async with self._turn:
            try:
                await self._look()
            except (StoreError, OSError) as error:
                self._log.warning("node registration not renewed", error=str(error))

    async def close(self) -> None:
        await self._tasks.stop()
        self._record = None
        await self._close_session()

    async def _close_session(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._late_count += keeper.late_count
            await keeper.close()

    async def _look(self) -> None:
        record = self._record
        if record is None:
            return  # closed meanwhile
        if self._keeper is not None and not self._keeper.is_lost:
            entry = await self._store.get(self._keys.node(record.node_id))
            if entry is not None and entry.create_revision == self._epoch:
                await self._make_up(entry)
                return
        # Whatever still hangs on it is of the life that is over, also the seat of the controller.
        await self._close_session()
        result = await self._take(record)
        if isinstance(result, NodeIdTaken):
            self._log.error("node registration lost", reason=result.reason)
            self._begin_life(NO_LIFE)
            return
        self._log.warning("node registered anew", epoch=result.epoch)
        await self._ask()

    def _on_lost(self) -> None:
        self._tasks.start("node registered anew", self.look())

    async def _make_up(self, entry: Entry) -> None:
        """For what could not be written when it was due."""
        if self._directory is not None and not self.has_asked:
            await self._ask()
        elif decode(entry.key, entry.value, NodeRecord) != self._told():
            await self._put()

    async def _take(self, record: NodeRecord) -> Registered | NodeIdTaken:
        key = self._keys.node(record.node_id)
        # Nothing is known of the directory's new epoch yet, so nobody may count on this life.
        begun = replace(record, status=Duty.STARTING, directory=None)
        keeper = await SessionKeeper.open(self._store, self._clock, on_lost=self._on_lost, ttl_ms=self._ttl_ms)
        for _ in range(_ATTEMPTS_MAX):
            result = await self._store.txn([Absent(key)], {key: encode(begun)}, session=keeper.session)
            if result.ok:
                self._keeper = keeper
                self._begin_renewals(keeper)
                self._begin_life(result.revision)
                return Registered(epoch=result.revision)
            entry = await self._store.get(key)
            if entry is None:
                continue
            holder = decode(key, entry.value, NodeRecord)
            if not _is_former_life(holder, record):
                await keeper.close()
                return NodeIdTaken(holder, self._ttl_ms, is_copy=holder.directory_id == record.directory_id)
            await self._end_former_life(entry)
        await keeper.close()
        raise StoreUnavailableError(f"metadata key {key} is changed by others all the time, try again")

    async def _end_former_life(self, entry: Entry) -> None:
        """Our own. Deleted and created in two steps, so that the epoch is a new one. If it was the controller, nobody
        has to wait for that key to run out either."""
        node_id = self._keys.node_of(entry.key)
        seat = await self._store.get(self._keys.controller)
        compares = [ModRevisionIs(entry.key, entry.mod_revision)]
        if seat is not None:
            holder = decode(seat.key, seat.value, ControllerRecord)
            if (holder.node_id, holder.life) == (node_id, entry.create_revision):
                seat_is = ModRevisionIs(seat.key, seat.mod_revision)
                await self._store.txn([*compares, seat_is], deletes=[entry.key, seat.key])
                return
        await self._store.txn(compares, deletes=[entry.key])

    def _begin_life(self, epoch: int) -> None:
        self._epoch = epoch
        for listener in self._on_life:
            listener()

    async def _ask(self) -> None:
        if self._directory is None or self._record is None or self._epoch == NO_LIFE:
            return
        epoch, key = self._epoch, self._keys.member(self._record.node_id)
        entry = await self._store.get(key)
        member = None if entry is None else decode(key, entry.value, MemberRecord)
        before = self._directory.record
        # On the disk before anybody is asked to count on it: whichever life is admitted, the directory knows it.
        await self._directory.keep_epochs(epochs_to_keep(member, before, epoch))
        self._asked_epoch, self._asked_by = epoch, before
        # If nobody is there to be asked the seat is taken with the same stroke: a node alone waits for nobody.
        seat = encode(ControllerRecord(self._record.node_id, epoch))
        if not await self._put([Absent(self._keys.controller)], {self._keys.controller: seat}):
            await self._put()

    async def _put(self, compares: Sequence[Compare] = (), puts: Mapping[str, bytes] = NOTHING) -> bool:
        told = self._told()
        key = self._keys.node(told.node_id)
        # Compared: of a life that is over nothing is told, and the next look begins another.
        same_life = CreateRevisionIs(key, self._epoch)
        result = await self._store.txn([same_life, *compares], {key: encode(told), **puts}, session=self.session)
        if result.ok:
            self.told_revision = result.revision
        return result.ok

    def _told(self) -> NodeRecord:
        assert self._record is not None
        return replace(self._record, directory=self._asked_by) if self.has_asked else self._record


def _is_former_life(holder: NodeRecord, record: NodeRecord) -> bool:
    """Of the node that asks: whoever has the same directory at the same place."""
    # A version that drew no ids for directories told the place as one.
    is_older = not holder.place and holder.directory_id == record.place
    return is_older or (holder.directory_id, holder.place) == (record.directory_id, record.place)
