"""Whom a login may name, and what proves it: users of the node's configuration, then those of the metadata store.

A name that does not exist is given a credential too, which no password fits: its salt is derived from a secret of the
cluster, so that it is the same at every try, and its shape is that of most real ones. Who asks for names learns nothing
from salt, iterations or the time that it takes. Users of the configuration have their salts from the same derivation.

Passwords are hashed on a thread: 16,384 rounds take up to 20 ms, and a loop that is held up by strangers serves nobody.
Who is next there says `domain/security/login_queue`; who was right a moment ago need not wait
(`domain/security/good_logins`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

import msgspec

from penstock.base.chance import Chance
from penstock.cluster.catalog.access import AccessCatalog, AccessChange, UserChanged
from penstock.cluster.catalog.order import Part
from penstock.domain.security.good_logins import GoodLogins
from penstock.domain.security.login_queue import LoginQueue
from penstock.domain.security.sasl import derived_salt
from penstock.domain.security.scram import (
    ITERATIONS_DEFAULT,
    MECHANISMS,
    SALT_BYTES,
    Mechanism,
    ScramCredential,
    is_password,
    make_credential,
    salt_password,
)

Arguments = TypeVarTuple("Arguments")
Made = TypeVar("Made")

_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = {Mechanism.SCRAM_SHA_256: 32, Mechanism.SCRAM_SHA_512: 64}


class _Shape(msgspec.Struct, frozen=True, order=True):
    iterations: int
    salt_bytes: int


_OWN_SHAPE: Final = _Shape(ITERATIONS_DEFAULT, SALT_BYTES)


class _PasswordCheck(msgspec.Struct):
    user: str
    password: str
    credential: ScramCredential
    # Nobody wants to know any more. Asked in a thread too.
    is_unwanted: Callable[[], bool]
    outcome: asyncio.Future[bool]


class SaslUsers:
    def __init__(
        self,
        access: AccessCatalog,
        chance: Chance,
        *,
        secret: bytes,
        configured: Mapping[str, str],
        hashers: Executor,
        hasher_count: int = 1,
    ) -> None:
        self._access = access
        self._chance = chance
        self._secret = secret
        self._passwords = configured
        self._configured: dict[str, Mapping[Mechanism, ScramCredential]] = {}
        self._hashers = hashers
        # Of checks that are with the hashers. No more than run at once: a check that waits there has lost its turn.
        self._checking_max = hasher_count
        self._checking_count = 0
        self._queue: LoginQueue[_PasswordCheck] = LoginQueue()
        self._good = GoodLogins(chance.bytes(_KEY_BYTES))
        # Slow on purpose, and so what others must not wait for.
        self.compare: Callable[[ScramCredential, str], bool] = is_password
        self.derive_salt = derived_salt
        # What most credentials look like; worked out when first asked for after a change.
        self._shapes: dict[Mechanism, _Shape] | None = None
        access.on_change(self._on_change, Part.LOGINS)

    async def start(self) -> None:
        for user, password in self._passwords.items():
            self._configured[user] = {
                mechanism: await self._hash(self._make, mechanism, user, password) for mechanism in MECHANISMS.values()
            }

    def find(self, mechanism: Mechanism, user: str) -> ScramCredential:
        # The decoy is always made: or the time that it takes would tell who exists.
        decoy = self._decoy(mechanism, user)
        return self._credentials(user).get(mechanism, decoy)

    async def is_password(
        self, user: str, password: str, *, address: str, is_unwanted: Callable[[], bool]
    ) -> bool | None:
        """By the strongest credential that the user has. One is always checked, the user's or the decoy; unless nobody
        wants to know any more when its turn comes. None: too many wait already."""
        credentials = self._credentials(user)
        mechanism = max(credentials, default=self._usual_mechanism())
        decoy = self._decoy(mechanism, user)
        credential = credentials.get(mechanism, decoy)
        if self._good.holds(user, credential, password):
            return True
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        check = _PasswordCheck(user, password, credential, is_unwanted, outcome)
        if not self._queue.add(address, user, check):
            return None
        self._start_checks()
        return await outcome

    def _start_checks(self) -> None:
        while self._checking_count < self._checking_max and (check := self._queue.take()) is not None:
            if check.outcome.done():
                continue
            if check.is_unwanted():
                check.outcome.set_result(False)
                continue
            # Whoever logs in a hundred times at once is hashed for once.
            if self._good.holds(check.user, check.credential, check.password):
                check.outcome.set_result(True)
                continue
            self._checking_count += 1
            work = asyncio.get_running_loop().run_in_executor(self._hashers, self._check, check)
            work.add_done_callback(partial(self._on_checked, check))

    def _check(self, check: _PasswordCheck) -> bool:
        # Or whoever connects, sends a token and leaves would keep the hashers busy with what no connection counts for.
        return not check.is_unwanted() and self.compare(check.credential, check.password)

    def _on_checked(self, check: _PasswordCheck, work: asyncio.Future[bool]) -> None:
        self._checking_count -= 1
        is_right = not work.cancelled() and work.exception() is None and work.result()
        if is_right:
            self._good.add(check.user, check.credential, check.password)
        if not check.outcome.done():
            check.outcome.set_result(is_right)
        self._start_checks()

    def is_configured(self, user: str) -> bool:
        return user in self._passwords

    def _credentials(self, user: str) -> Mapping[Mechanism, ScramCredential]:
        return self._configured.get(user) or self._access.credentials(user)

    async def _hash(self, work: Callable[[*Arguments], Made], *arguments: *Arguments) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._hashers, work, *arguments)

    def _make(self, mechanism: Mechanism, user: str, password: str) -> ScramCredential:
        salt = self._salt(mechanism, user, SALT_BYTES)
        salted = salt_password(mechanism, password, salt=salt, iterations=ITERATIONS_DEFAULT)
        made = make_credential(mechanism, iterations=ITERATIONS_DEFAULT, salt=salt, salted_password=salted)
        assert isinstance(made, ScramCredential), made
        return made

    def _salt(self, mechanism: Mechanism, user: str, size: int) -> bytes:
        return self.derive_salt(self._secret, user, mechanism.sasl_name, size=size)

    # Names that do not exist

    def _decoy(self, mechanism: Mechanism, user: str) -> ScramCredential:
        shape = self._usual_shapes().get(mechanism, _OWN_SHAPE)
        size = _DIGEST_BYTES[mechanism]
        return ScramCredential(
            mechanism,
            shape.iterations,
            self._salt(mechanism, user, shape.salt_bytes),
            stored_key=self._chance.bytes(size),
            server_key=self._chance.bytes(size),
        )

    def _usual_mechanism(self) -> Mechanism:
        return max(self._usual_shapes(), default=Mechanism.SCRAM_SHA_512)

    def _usual_shapes(self) -> dict[Mechanism, _Shape]:
        if self._shapes is None:
            counts: dict[Mechanism, Counter[_Shape]] = {}
            for user in self._access.users():
                for mechanism, credential in self._access.credentials(user).items():
                    shape = _Shape(credential.iterations, len(credential.salt))
                    counts.setdefault(mechanism, Counter())[shape] += 1
            self._shapes = {mechanism: max(found, key=found.__getitem__) for mechanism, found in counts.items()}
        return self._shapes

    def _on_change(self, change: AccessChange) -> None:
        if isinstance(change, UserChanged):
            self._shapes = None
            self._good.forget(change.name)
