"""One watch of the metadata store per node: it keeps every image in memory up with the store, revision by revision.

    range at revision r → watch from r + 1 → into every image → tell the parts → let go whoever waits for that revision
          ↑_____ history gone, or the store failed: read everything again, each image tells what differs _____|

Who hears of a change, and in which order, is in `order`. A failing store does not empty an image: it stays as it was
and is brought up when the store is back. A value that an image cannot read holds up this image alone: it is brought up
from all there is as soon as something changes, which is what mends it.

A part that has much to do with a change gives it back as steps: others have their turn meanwhile, and whoever waits for
the change waits until they are done.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork, Steps
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.catalog.order import Kind, Part, place_of_kind, place_of_part
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    CompactedError,
    Event,
    EventBatch,
    MetadataStore,
    Range,
    StoreError,
    StoreUnavailableError,
)

# How long an answer waits for the watch after its transaction is done. SQLite's takes a millisecond.
IMAGE_WAIT_S: Final = 10.0
RETRY_S: Final = 1.0

ChangeT = TypeVar("ChangeT")
Listener = Callable[[ChangeT], Steps[None] | None]

log = get_logger("metadata")


class Image(Protocol[ChangeT]):
    def apply(self, events: Iterable[Event]) -> list[ChangeT]:
        """Tells what has changed. Events of keys that it does not know are passed over. All or nothing: a value that
        cannot be read raises before anything has changed, or nobody would ever hear of the changes before it."""
        ...

    def events_to(self, current: Range) -> list[Event]:
        """What leads from this image to `current`."""
        ...


class MetadataWatch:
    """Runs while anything follows it. What the catalogs need of a node's metadata: the store, its keys and this."""

    def __init__(
        self,
        store: MetadataStore,
        keys: KeySpace,
        *,
        image_wait_s: float = IMAGE_WAIT_S,
        retry_s: float = RETRY_S,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.store = store
        self.keys = keys
        self.image_wait_s = image_wait_s
        self._retry_s = retry_s
        self.now = now
        self._revision = 0
        self._followed: list[Followed[Any]] = []
        # One revision at a time: whoever begins to follow between two of them misses none.
        self._telling = asyncio.Lock()
        self._tasks = TaskSupervisor(log)

    def follow(self, kind: Kind, image: Image[ChangeT]) -> Followed[ChangeT]:
        """From `Followed.start` on."""
        return Followed(self, kind, image)

    async def join(self, *joining: Followed[Any]) -> None:
        """Those that join together stand at one revision before anybody hears of it."""
        in_order = sorted(joining, key=lambda each: place_of_kind(each.kind))
        async with self._telling:
            current = await self._read()
            heard = [(followed, followed.begin(current)) for followed in in_order]
            for followed, changes in heard:
                await followed.tell_first(changes)
            is_first = not self._followed
            for followed in in_order:
                insort(self._followed, followed, key=lambda each: place_of_kind(each.kind))
            if is_first:
                self._revision = current.revision
                self._tasks.start("metadata watch", self._run())

    async def leave(self, followed: Followed[Any]) -> None:
        """Hears nothing from now on. With the last one the watch ends."""
        if followed in self._followed:
            self._followed.remove(followed)
            if not self._followed:
                await self._tasks.stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
                return
            except CompactedError as error:
                log.info("watch fell behind, reading everything again", reason=str(error))
            except StoreError as error:
                log.warning("watch failed, images stay as they are", error=str(error))
                await asyncio.sleep(self._retry_s)
            await self._catch_up()

    async def _follow(self) -> None:
        """Ends when the store is closed."""
        async for batch in self.store.watch(self.keys.root, self._revision + 1):
            async with self._telling:
                await self._take(batch)

    async def _catch_up(self) -> None:
        try:
            async with self._telling:
                await self._take(await self._read())
        except StoreError as error:
            log.warning("metadata cannot be read, images stay as they are", error=str(error))

    async def _take(self, news: EventBatch | Range) -> None:
        everything = await self._read() if any(each.is_behind for each in self._followed) else None
        # Without a pause: at no moment is one image at this revision and another before it.
        heard = [(each, each.take(everything if each.is_behind and everything else news)) for each in self._followed]
        for followed, changes in heard:
            for change in changes:
                if followed in self._followed:
                    await followed.tell(change)
        self._revision = news.revision
        for followed, _ in heard:
            followed.settle()

    async def _read(self) -> Range:
        return await self.store.range(self.keys.root)


class Followed(Generic[ChangeT]):
    """One image that the watch keeps up: who hears of its changes, and who waits for it to come so far."""

    def __init__(self, watch: MetadataWatch, kind: Kind, image: Image[ChangeT]) -> None:
        self.kind = kind
        self.is_behind = False
        self._watch = watch
        self._image = image
        self._listeners: list[tuple[int, Listener[ChangeT]]] = []
        # As far as the image has come; `revision` follows when everybody has heard of it.
        self._taken_revision = 0
        self._revision = 0
        self._settled = asyncio.Event()
        self._work = LongWork(watch.now)

    def on_change(self, listener: Listener[ChangeT], part: Part | None = None) -> None:
        insort(self._listeners, (place_of_part(self.kind, part), listener), key=lambda row: row[0])

    async def start(self) -> None:
        """Raises if the store cannot be read: a node must not start with an empty image."""
        await self._watch.join(self)

    async def stop(self) -> None:
        await self._watch.leave(self)

    @property
    def revision(self) -> int:
        """As far as the image has come, and everybody who listens."""
        return self._revision

    async def wait_for(self, revision: int) -> None:
        """Returns when the image includes `revision`, which must have changed something under the root."""
        wait_s = self._watch.image_wait_s
        try:
            async with asyncio.timeout(wait_s):
                while self._revision < revision:
                    await self._settled.wait()
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"revision {revision} is stored but has not come back within {wait_s:g} s"
            ) from error

    def begin(self, current: Range) -> list[ChangeT]:
        """As `take` does, but whatever fails is raised: the node is starting."""
        changes = self._image.apply(self._image.events_to(current))
        self._taken_revision = current.revision
        self.is_behind = False
        return changes

    async def tell_first(self, changes: Iterable[ChangeT]) -> None:
        """As `tell` and `settle` do, but whatever fails is raised."""
        for change in changes:
            for _, listener in self._listeners:
                await self._run(listener, change)
        self.settle()

    def take(self, news: EventBatch | Range) -> list[ChangeT]:
        """What it changes here. Nothing, if that is known already, or if this image cannot read it."""
        if news.revision <= self._taken_revision:
            return []
        try:
            events = self._image.events_to(news) if isinstance(news, Range) else news.events
            changes = self._image.apply(events)
        except Exception as error:  # edge of an image: the others go on
            log.error("change cannot be read, image stays as it is", image=self.kind.value, exc_info=error)
            self.is_behind = True
            return []
        self.is_behind = False
        self._taken_revision = news.revision
        return changes

    async def tell(self, change: ChangeT) -> None:
        for _, listener in self._listeners:
            try:
                await self._run(listener, change)
            except Exception as error:  # edge of a listener
                # The change is made. A watch that ended here would be deaf to every one that comes after it.
                what = type(change).__name__
                log.error("change not followed", image=self.kind.value, change=what, exc_info=error)

    def settle(self) -> None:
        self._revision = self._taken_revision
        self._settled.set()
        self._settled = asyncio.Event()

    async def _run(self, listener: Listener[ChangeT], change: ChangeT) -> None:
        steps = listener(change)
        if steps is not None:
            await self._work.run(steps)
