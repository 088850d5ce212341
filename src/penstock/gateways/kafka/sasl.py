"""SaslHandshake, SaslAuthenticate and the bare tokens of old clients: the login at the Kafka door.

The handlers change the connection's `Login` (`login`) and nothing else; the door asks that whether a request is
taken at all. A refusal is answered late, so that guessing is slow, and says the same whatever was wrong; the reason is
in the log. Then the connection ends.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from penstock.base.chance import Chance
from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.seldom import Seldom
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.domain.security.access import Principal
from penstock.domain.security.sasl import (
    OAUTHBEARER,
    PLAIN,
    Accepted,
    Challenge,
    Exchange,
    PasswordCheck,
    PlainExchange,
    Refused,
    ScramExchange,
    Step,
    UnsecuredBearerExchange,
)
from penstock.domain.security.scram import MECHANISMS, Mechanism, ScramCredential
from penstock.gateways.caller import KAFKA
from penstock.gateways.kafka.context import HANG_UP, ClientConnection, NoReply, RequestContext
from penstock.gateways.kafka.login import Login, Stage

KNOWN_MECHANISMS: Final = (PLAIN, *MECHANISMS, OAUTHBEARER)
# Kafka's: who logs in again more often than this has something else in mind.
AGAIN_MS_MIN: Final = 1_000
# From this version of the handshake on tokens travel in SaslAuthenticate.
FRAMED_FROM: Final = 1
NONCE_BYTES: Final = 24
# Told to somebody who has just proved a password: it gives nothing away.
UNCHANGED: Final = "Authentication failed: a connection cannot change its user or its mechanism"


class Users(Protocol):
    """Whom a login may name, and what proves it."""

    def find(self, mechanism: Mechanism, user: str) -> ScramCredential:
        """For any name: for one that does not exist a credential that no password fits."""
        ...

    async def is_password(
        self, user: str, password: str, *, address: str, is_unwanted: Callable[[], bool]
    ) -> bool | None:
        """None: too many wait for an answer already."""
        ...

    def is_configured(self, user: str) -> bool: ...


class NoRoom(msgspec.Struct, frozen=True):
    """Whether the password is right is not looked at: too many others wait for that."""


class SaslSettings(msgspec.Struct, frozen=True):
    # In the order in which they are told to clients.
    mechanisms: tuple[str, ...] = ()
    # 0: a login holds for as long as its connection.
    reauthentication_ms: int = 0
    refusal_delay_ms: int = 100


class SaslHandler:
    """`counts`: logins by mechanism and outcome, for the metrics page. `make_login`: what is kept of a connection's."""

    def __init__(
        self,
        users: Users | None,
        settings: SaslSettings,
        clock: Clock,
        chance: Chance,
        *,
        door: str = KAFKA,
        make_login: Callable[[int], Login] = Login,
    ) -> None:
        self._users = users
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._log = get_logger(door)
        self._make_login = make_login
        # Refusals, by address and user: a client with an old password tries ten times a second.
        self._seldom = Seldom(clock)
        self.counts: dict[tuple[str, bool], int] = {
            (name, is_taken): 0 for name in settings.mechanisms for is_taken in (True, False)
        }

    @property
    def is_required(self) -> bool:
        return bool(self._settings.mechanisms)

    def is_configured(self, user: str) -> bool:
        """The user's password stands in the node's configuration."""
        return self._users is not None and self._users.is_configured(user)

    def new_login(self) -> Login | None:
        """What a new connection begins with; None where nobody has to log in."""
        return self._make_login(self._clock.monotonic_ms()) if self.is_required else None

    def is_overdue(self, login: Login | None, login_ms_max: int) -> bool:
        """A login that takes so long is none."""
        if login is None or login.stage is Stage.IN:
            return False
        return self._clock.monotonic_ms() - login.began_ms > login_ms_max

    # SaslHandshake

    def sasl_handshake(self, request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
        login, mechanisms = _login_of(context), self._settings.mechanisms
        now_ms = self._clock.monotonic_ms()
        if login is None or not self._may_choose(login, now_ms):
            if login is not None and login.stage is not Stage.IN:
                login.fail()
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if request.mechanism not in mechanisms:
            self._log.warning(
                "login refused", peer=context.caller.address, mechanism=request.mechanism[:40], reason="not offered"
            )
            login.fail()
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
        exchange = self._exchange(request.mechanism)
        login.choose(request.mechanism, exchange, is_raw=context.api_version < FRAMED_FROM, now_ms=now_ms)
        return SaslHandshakeResponse(mechanisms=mechanisms)

    def _may_choose(self, login: Login, now_ms: int) -> bool:
        if login.stage is not Stage.IN:
            return login.stage is Stage.CHOOSING
        is_soon = login.renewed_ms is not None and now_ms - login.renewed_ms < AGAIN_MS_MIN
        return login.lifetime_ms > 0 and not is_soon

    def _exchange(self, mechanism: str) -> Exchange:
        if mechanism == PLAIN:
            return PlainExchange()
        if mechanism == OAUTHBEARER:
            return UnsecuredBearerExchange()
        users, scram = self._users, MECHANISMS[mechanism]
        assert users is not None, "users are there where mechanisms are"
        return ScramExchange(lambda user: users.find(scram, user), self._chance.text(NONCE_BYTES))

    # SaslAuthenticate

    async def sasl_authenticate(
        self, request: SaslAuthenticateRequest, context: RequestContext
    ) -> SaslAuthenticateResponse | NoReply:
        login, connection = _login_of(context), context.connection
        if login is None or connection is None or login.stage is not Stage.TALKING:
            reason = "nobody has to log in here, or it is done already"
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=reason)
        outcome = await self._step(connection, login, bytes(request.auth_bytes), context.caller.address)
        if isinstance(outcome, NoRoom):
            # Clients try again when they are hung up on; told that the password is wrong, they give up.
            return HANG_UP
        if isinstance(outcome, Refused):
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message=outcome.told)
        lifetime_ms = login.lifetime_ms if isinstance(outcome, Accepted) else 0
        return SaslAuthenticateResponse(auth_bytes=outcome.token, session_lifetime_ms=lifetime_ms)

    async def take_raw(self, connection: ClientConnection, login: Login, token: bytes, peer: str) -> bytes | None:
        """The bare token that answers a bare token; None: there is no way to say no but to hang up."""
        outcome = await self._step(connection, login, token, peer)
        return None if isinstance(outcome, Refused | NoRoom) else outcome.token

    async def _step(
        self, connection: ClientConnection, login: Login, token: bytes, peer: str
    ) -> Challenge | Accepted | Refused | NoRoom:
        assert login.exchange is not None, "a mechanism was chosen"
        began_ms = self._clock.monotonic_ms()
        step: Step | NoRoom = login.exchange.step(token, now_ms=self._clock.now_ms())
        if isinstance(step, PasswordCheck):
            step = await self._check(connection, step, peer)
        if isinstance(step, NoRoom):
            login.fail()
            self.counts[login.wanted, False] += 1
            self._report(Refused("too many logins wait, of this address or of all"), login.wanted, peer)
            return step
        if isinstance(step, Accepted):
            step = self._admit(connection, login, step)
        if isinstance(step, Refused):
            login.fail()
            self.counts[login.wanted, False] += 1
            self._report(step, login.wanted, peer)
            # From when it came on, so that the time until the answer does not tell how long somebody looked for a
            # reason. Not while something is held: only this connection waits.
            left_ms = self._settings.refusal_delay_ms - (self._clock.monotonic_ms() - began_ms)
            await asyncio.sleep(max(0, left_ms) / 1000)
        return step

    def _report(self, refused: Refused, mechanism: str, peer: str) -> None:
        user = None if refused.user is None else refused.user[:80]
        if self._seldom.is_due((address_of(peer), user)):
            self._log.warning("login refused", peer=peer, mechanism=mechanism, user=user, reason=refused.reason)

    async def _check(
        self, connection: ClientConnection, wanted: PasswordCheck, peer: str
    ) -> Accepted | Refused | NoRoom:
        assert self._users is not None, "users are there where mechanisms are"
        is_right = await self._users.is_password(
            wanted.user, wanted.password, address=address_of(peer), is_unwanted=lambda: connection.is_gone
        )
        if is_right is None:
            return NoRoom()
        if is_right:
            return Accepted(wanted.user)
        if connection.is_gone:
            return Refused("the client has left before its turn came", wanted.user)
        return Refused("unknown user or wrong password", wanted.user)

    def _admit(self, connection: ClientConnection, login: Login, accepted: Accepted) -> Accepted | Refused:
        principal = Principal("User", accepted.user)
        if login.principal is not None and principal != login.principal:
            return Refused(f"the connection is {login.principal}'s", accepted.user, told=UNCHANGED)
        if login.mechanism and login.mechanism != login.wanted:
            return Refused(f"the connection was logged in by {login.mechanism}", accepted.user, told=UNCHANGED)
        login.succeed(principal, self._lifetime_ms(accepted))
        self.counts[login.mechanism, True] += 1
        connection.admit(principal, lifetime_ms=login.lifetime_ms)
        self._log.debug("login", mechanism=login.mechanism, user=accepted.user[:80])
        return accepted

    def _lifetime_ms(self, accepted: Accepted) -> int:
        """The shorter of what the node grants and what the token has left. At least 1: 0 means for ever."""
        lifetime_ms = self._settings.reauthentication_ms
        if accepted.expires_ms is None:
            return lifetime_ms
        left_ms = max(1, accepted.expires_ms - self._clock.now_ms())
        return min(left_ms, lifetime_ms) if lifetime_ms else left_ms


def address_of(peer: str) -> str:
    """Of `HOST:PORT`. An IPv6 network of 64 bits counts as one: whoever has one address has all of them."""
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped is not None:
        return str(getattr(address, "ipv4_mapped", None) or address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _login_of(context: RequestContext) -> Login | None:
    return None if context.connection is None else context.connection.login
