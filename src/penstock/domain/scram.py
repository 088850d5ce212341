"""Salted passwords of users (SCRAM, RFC 5802), as they are kept: what proves a password, never the password itself.

From the salted password the client sends at AlterUserScramCredentials two keys are derived, and it is forgotten: who
steals the keys cannot log in with them.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import Final

import msgspec

# Kafka's own bounds.
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384


class Mechanism(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}


class ScramCredential(msgspec.Struct, frozen=True):
    mechanism: Mechanism
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def make_credential(
    mechanism: Mechanism, *, iterations: int, salt: bytes, salted_password: bytes
) -> ScramCredential | str:
    """The credential, or why there can be none."""
    if mechanism not in _HASHES:
        return "the mechanism is not known: SCRAM-SHA-256 (1) and SCRAM-SHA-512 (2) are"
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        return f"{iterations} iterations: from {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken"
    if not salt or not salted_password:
        return "the salt or the salted password is empty"
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        mechanism,
        iterations,
        salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
    )
