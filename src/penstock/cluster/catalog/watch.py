"""Keeps an image in memory up with the metadata store: range once, then follow the watch, batch by batch.

    range at revision r → watch from r + 1 → apply, tell listeners, let go whoever waits for that revision
          ↑_____ history gone, or the store failed: read everything again, the image tells what differs _____|

A failing store does not empty the image: it stays as it was and is brought up when the store is back.

A listener that has much to do with a change gives it back as steps: others have their turn meanwhile, and whoever waits
for the change waits until they are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork, Steps
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    CompactedError,
    Event,
    MetadataStore,
    Range,
    StoreError,
    StoreUnavailableError,
)

# How long an answer waits for the watch after its transaction is done. SQLite's takes a millisecond.
_IMAGE_WAIT_S: Final = 10.0
_RETRY_S: Final = 1.0


ChangeT = TypeVar("ChangeT")


class Image(Protocol[ChangeT]):
    def apply(self, events: Iterable[Event]) -> list[ChangeT]:
        """Tells what has changed. Events of keys that it does not know are passed over."""
        ...

    def events_to(self, current: Range) -> list[Event]:
        """What leads from this image to `current`."""
        ...


class ImageWatch(Generic[ChangeT]):
    """`what` names the image in the log."""

    def __init__(self, store: MetadataStore, keys: KeySpace, image: Image[ChangeT], *, what: str) -> None:
        self._what = what
        self._store = store
        self._keys = keys
        self._image = image
        self._revision = 0
        self._is_starting = True
        self._advanced = asyncio.Event()
        self._listeners: list[Callable[[ChangeT], Steps[None] | None]] = []
        self._work = LongWork()
        self._log = get_logger("metadata")
        self._tasks = TaskSupervisor(self._log)

    def on_change(self, listener: Callable[[ChangeT], Steps[None] | None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Raises if the store cannot be read: a node must not start with an empty image."""
        await self._read_everything()
        self._is_starting = False
        self._tasks.start(f"{self._what} watch", self._run())

    async def stop(self) -> None:
        await self._tasks.stop()

    @property
    def revision(self) -> int:
        """As far as the image has come."""
        return self._revision

    async def wait_for(self, revision: int) -> None:
        """Returns when the image includes `revision`, which must have changed something under the root."""
        try:
            async with asyncio.timeout(_IMAGE_WAIT_S):
                while self._revision < revision:
                    await self._advanced.wait()
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"revision {revision} is stored but has not come back within {_IMAGE_WAIT_S:g} s"
            ) from error

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
                return
            except CompactedError as error:
                self._log.info("watch fell behind, reading everything again", image=self._what, reason=str(error))
            except StoreError as error:
                self._log.warning("watch failed, image stays as it is", image=self._what, error=str(error))
                await asyncio.sleep(_RETRY_S)
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            await self._read_everything()
        except StoreError as error:
            self._log.warning("metadata cannot be read, image stays as it is", image=self._what, error=str(error))

    async def _read_everything(self) -> None:
        current = await self._store.range(self._keys.root)
        await self._tell(self._image.apply(self._image.events_to(current)))
        self._advance(current.revision)

    async def _follow(self) -> None:
        """Ends when the store is closed."""
        async for batch in self._store.watch(self._keys.root, self._revision + 1):
            await self._tell(self._image.apply(batch.events))
            self._advance(batch.revision)

    def _advance(self, revision: int) -> None:
        self._revision = revision
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def _tell(self, changes: list[ChangeT]) -> None:
        for change in changes:
            for listener in self._listeners:
                try:
                    steps = listener(change)
                    if steps is not None:
                        await self._work.run(steps)
                except Exception as error:  # edge of a listener
                    if self._is_starting:
                        raise
                    # The change is made. A watch that ended here would be deaf to every one that comes after it.
                    what = type(change).__name__
                    self._log.error("change not followed", image=self._what, change=what, exc_info=error)
