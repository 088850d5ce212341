"""How a node logs in at another: SCRAM with the cluster's secret as one fixed user, then Hello, then all else.

CHOOSING ─► TALKING ─► IN, not greeted ── Hello ──► IN, greeted
                              └── another cluster, another feature level ──► FAILED: the connection ends
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.base.chance import Chance
from penstock.codec.kafka.internal.hello import HelloRequest
from penstock.domain.replication.identity import NODE_USER, NodeIdentity, login_password
from penstock.domain.security.sasl import derived_salt
from penstock.domain.security.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    SALT_BYTES,
    Mechanism,
    ScramCredential,
    make_credential,
    salt_password,
)
from penstock.gateways.kafka.login import API_VERSIONS_KEY, Login, Stage

# The secret is 32 bytes of chance: rounds protect weak passwords, and here would delay nothing but logins.
ITERATIONS: Final = ITERATIONS_MIN
_BEFORE_HELLO: Final = frozenset({API_VERSIONS_KEY, HelloRequest.api_key})


class PeerLogin(Login):
    """Greeted by whom; None before."""

    __slots__ = ("peer",)

    def __init__(self, began_ms: int) -> None:
        super().__init__(began_ms)
        self.peer: NodeIdentity | None = None

    def refusal(self, api_key: int) -> str | None:
        refusal = super().refusal(api_key)
        if refusal is None and self.stage is Stage.IN and self.peer is None and api_key not in _BEFORE_HELLO:
            return f"API key {api_key} was asked for before Hello"
        return refusal


class NodeUsers:
    """The one user that there is; its password is made of the cluster's secret."""

    def __init__(self, secret: bytes, chance: Chance) -> None:
        """Blocking, some milliseconds."""
        self._secret = secret
        self._chance = chance
        self._credentials: Mapping[Mechanism, ScramCredential] = {
            mechanism: _credential(secret, mechanism) for mechanism in MECHANISMS.values()
        }

    def find(self, mechanism: Mechanism, user: str) -> ScramCredential:
        known = self._credentials[mechanism]
        if user == NODE_USER:
            return known
        # No proof fits chance. That the name is another is no secret: there is one, and it stands in our documents.
        size = len(known.stored_key)
        salt = derived_salt(self._secret, user, mechanism.sasl_name, size=SALT_BYTES)
        return ScramCredential(mechanism, ITERATIONS, salt, self._chance.bytes(size), self._chance.bytes(size))

    async def is_password(
        self,
        user: str,  # noqa: ARG002
        password: str,  # noqa: ARG002
        *,
        address: str,  # noqa: ARG002
        is_unwanted: Callable[[], bool],  # noqa: ARG002
    ) -> bool | None:
        raise AssertionError("nodes log in by SCRAM, which shows nobody a password")

    def is_configured(self, user: str) -> bool:
        return user == NODE_USER


def _credential(secret: bytes, mechanism: Mechanism) -> ScramCredential:
    salt = derived_salt(secret, NODE_USER, mechanism.sasl_name, size=SALT_BYTES)
    salted = salt_password(mechanism, login_password(secret), salt=salt, iterations=ITERATIONS)
    made = make_credential(mechanism, iterations=ITERATIONS, salt=salt, salted_password=salted)
    assert isinstance(made, ScramCredential), made
    return made
