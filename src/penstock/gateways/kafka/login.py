"""How far one connection has come with its login, and what it may ask meanwhile (KIP-43, KIP-152, KIP-368).

CHOOSING ── SaslHandshake v1 ──→ TALKING ── SaslAuthenticate… ──→ IN
    └────── SaslHandshake v0 ──→ RAW ────── bare tokens… ───────→ IN
                                   └────────┴── refused ──→ FAILED: the connection ends with its answer
    IN ── SaslHandshake, where logins expire ──→ TALKING …        the same user, by the same mechanism
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from penstock.domain.security.access import Principal
from penstock.domain.security.sasl import Exchange

API_VERSIONS_KEY: Final = 18
SASL_HANDSHAKE_KEY: Final = 17
SASL_AUTHENTICATE_KEY: Final = 36


class Stage(Enum):
    CHOOSING = auto()
    TALKING = auto()
    RAW = auto()
    IN = auto()
    FAILED = auto()


_TAKEN: Final = {
    Stage.CHOOSING: frozenset({API_VERSIONS_KEY, SASL_HANDSHAKE_KEY}),
    # A second handshake is answered, with an error.
    Stage.TALKING: frozenset({SASL_HANDSHAKE_KEY, SASL_AUTHENTICATE_KEY}),
    Stage.RAW: frozenset[int](),
    Stage.FAILED: frozenset[int](),
}


class Login:
    __slots__ = (
        "began_ms",
        "exchange",
        "is_expired",
        "lifetime_ms",
        "mechanism",
        "principal",
        "renewed_ms",
        "stage",
        "wanted",
    )

    def __init__(self, began_ms: int) -> None:
        self.stage = Stage.CHOOSING
        # When the last login began, by the monotonic clock.
        self.began_ms = began_ms
        # When somebody who was in began to log in again.
        self.renewed_ms: int | None = None
        # Of the login that succeeded last; None before the first.
        self.principal: Principal | None = None
        self.mechanism = ""
        # 0: for as long as the connection lives.
        self.lifetime_ms = 0
        self.is_expired = False
        # Of the login that is under way.
        self.wanted = ""
        self.exchange: Exchange | None = None

    @property
    def is_raw(self) -> bool:
        """The next frame is a token and nothing else."""
        return self.stage is Stage.RAW

    @property
    def is_failed(self) -> bool:
        return self.stage is Stage.FAILED

    def refusal(self, api_key: int) -> str | None:
        """Why a request of that kind is not looked at now; None if it is."""
        if self.stage is Stage.IN:
            # A connection whose login has expired may still log in again; for anything else it is too late.
            is_late = self.is_expired and api_key != SASL_HANDSHAKE_KEY
            return f"its login expired and API key {api_key} was asked for" if is_late else None
        if api_key in _TAKEN[self.stage]:
            return None
        return f"API key {api_key} was asked for before the login was done ({self.stage.name.lower()})"

    def choose(self, mechanism: str, exchange: Exchange, *, is_raw: bool, now_ms: int) -> None:
        self.wanted, self.exchange = mechanism, exchange
        self.began_ms = now_ms
        if self.principal is not None:
            self.renewed_ms = now_ms
        self.stage = Stage.RAW if is_raw else Stage.TALKING

    def succeed(self, principal: Principal, lifetime_ms: int) -> None:
        self.stage = Stage.IN
        self.principal, self.mechanism, self.exchange = principal, self.wanted, None
        self.lifetime_ms, self.is_expired = lifetime_ms, False

    def fail(self) -> None:
        self.stage, self.exchange = Stage.FAILED, None
