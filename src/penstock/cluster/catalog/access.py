"""Rules about who may do what, and users' credentials: looked up in memory, changed in the metadata store.

    change:  check → transaction → wait until the watch has brought it into the image → answer

A rule is its own key (a digest of it), so creating one twice changes nothing and two nodes cannot collide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.base.long_work import Steps
from penstock.cluster.catalog.order import Kind, Part
from penstock.cluster.catalog.watch import Listener, MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import OPERATIONS_MAX, Absent, Event, Range
from penstock.cluster.store.values import decode, encode
from penstock.domain.security.acl import AclBinding, AclFilter, is_matched
from penstock.domain.security.scram import Mechanism, ScramCredential

V = TypeVar("V")

_NO_CREDENTIALS: Final[Mapping[Mechanism, ScramCredential]] = {}


class AclsChanged(msgspec.Struct, frozen=True):
    bindings: tuple[AclBinding, ...]


class UserChanged(msgspec.Struct, frozen=True):
    name: str


AccessChange = AclsChanged | UserChanged


class AccessImage:
    def __init__(self, keys: KeySpace) -> None:
        self._keys = keys
        self._bindings: dict[str, AclBinding] = {}
        # The same, in order.
        self._ordered: tuple[AclBinding, ...] = ()
        self._users: dict[str, tuple[ScramCredential, ...]] = {}

    def bindings(self) -> tuple[AclBinding, ...]:
        """In order. It may be kept while others change."""
        return self._ordered

    def users(self) -> list[str]:
        return sorted(self._users)

    def credentials(self, user: str) -> Mapping[Mechanism, ScramCredential]:
        found = self._users.get(user)
        return _NO_CREDENTIALS if found is None else {credential.mechanism: credential for credential in found}

    def apply(self, events: Iterable[Event]) -> list[AccessChange]:
        """All or nothing: a value that cannot be read raises before anything has changed."""
        bindings, users = dict(self._bindings), dict(self._users)
        changes: list[AccessChange] = []
        for event in events:
            if event.key.startswith(self._keys.acls):
                _put(bindings, event.key, event, AclBinding)
            elif event.key.startswith(self._keys.users):
                name = self._keys.user_of(event.key)
                _put(users, name, event, tuple[ScramCredential, ...])
                changes.append(UserChanged(name))
        if bindings != self._bindings:
            self._ordered = tuple(sorted(bindings.values()))
            changes.append(AclsChanged(self._ordered))
        self._bindings, self._users = bindings, users
        return changes

    def events_to(self, current: Range) -> list[Event]:
        present = {entry.key for entry in current.entries}
        known = [*self._bindings, *(self._keys.user(name) for name in self._users)]
        gone = [Event(key, None, 0, current.revision) for key in known if key not in present]
        return gone + [
            Event(entry.key, entry.value, entry.create_revision, entry.mod_revision) for entry in current.entries
        ]


def _put(place: dict[str, V], name: str, event: Event, value_type: type[V]) -> None:
    if event.value is None:
        place.pop(name, None)
    else:
        place[name] = decode(event.key, event.value, value_type)


class AccessCatalog:
    def __init__(self, watch: MetadataWatch) -> None:
        self._store = watch.store
        self._keys = watch.keys
        self._image = AccessImage(watch.keys)
        self._watch = watch.follow(Kind.ACCESS, self._image)

    def on_change(self, listener: Listener[AccessChange], part: Part | None = None) -> None:
        """Called on the loop when the image has changed. Added before `start`, it hears of everything."""
        self._watch.on_change(listener, part)

    async def start(self) -> None:
        await self._watch.start()

    async def stop(self) -> None:
        await self._watch.stop()

    # Rules

    def matching(self, wanted: AclFilter) -> Steps[list[AclBinding]]:
        """In order, as they stood at the first step."""
        found = []
        for binding in self._image.bindings():
            if is_matched(wanted, binding):
                found.append(binding)
            yield
        return found

    async def create_acls(self, bindings: Sequence[AclBinding]) -> None:
        """The caller has checked them."""
        await self._write({self._key(binding): encode(binding) for binding in bindings}, [])

    async def delete_acls(self, bindings: Sequence[AclBinding]) -> None:
        await self._write({}, [self._key(binding) for binding in bindings])

    def _key(self, binding: AclBinding) -> str:
        return self._keys.acl(hashlib.sha256(encode(binding)).hexdigest()[:32])

    # Users

    async def ensure_login_secret(self, new_secret: Callable[[], bytes]) -> bytes:
        """Made once by whoever comes first, the same for all nodes ever after."""
        key = self._keys.login_secret
        entry = await self._store.get(key)
        if entry is None:
            mine = new_secret()
            if (await self._store.txn([Absent(key)], {key: encode(mine)})).ok:
                return mine
            entry = await self._store.get(key)
        assert entry is not None, "nobody deletes it"
        return decode(key, entry.value, bytes)

    def users(self) -> list[str]:
        return self._image.users()

    def credentials(self, user: str) -> Mapping[Mechanism, ScramCredential]:
        return self._image.credentials(user)

    async def replace_credentials(self, user: str, credentials: Sequence[ScramCredential]) -> None:
        """None are left: the user is gone."""
        key = self._keys.user(user)
        if credentials:
            await self._write({key: encode(list(credentials))}, [])
        else:
            await self._write({}, [key])

    async def _write(self, puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
        """In as few transactions as the engines' limit allows; the image has all of it afterwards."""
        steps: list[tuple[str, bytes | None]] = [*puts.items(), *((key, None) for key in dict.fromkeys(deletes))]
        for start in range(0, len(steps), OPERATIONS_MAX):
            chunk = steps[start : start + OPERATIONS_MAX]
            result = await self._store.txn(
                puts={key: value for key, value in chunk if value is not None},
                deletes=[key for key, value in chunk if value is None],
            )
            await self._watch.wait_for(result.revision)
