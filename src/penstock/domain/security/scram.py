"""Salted passwords of users (SCRAM, RFC 5802 and 7677), as they are kept: what proves a password, never the password.

From the salted password the client sends at AlterUserScramCredentials two keys are derived, and it is forgotten: who
steals the keys cannot log in with them. A password is its UTF-8 bytes and nothing else: Kafka's clients do not
normalize it (SASLprep), and two sides that differ in that could not agree on a proof.
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
# Where nobody says otherwise: as slow to guess as Kafka allows.
ITERATIONS_DEFAULT: Final = ITERATIONS_MAX
SALT_BYTES: Final = 32


class Mechanism(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """`SCRAM-SHA-256`, as it is called in a handshake."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return _HASHES[self]


_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}
# By the names that stand in handshakes.
MECHANISMS: Final = {mechanism.sasl_name: mechanism for mechanism in _HASHES}


class ScramCredential(msgspec.Struct, frozen=True):
    mechanism: Mechanism
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def salt_password(mechanism: Mechanism, password: str, *, salt: bytes, iterations: int) -> bytes:
    """Slow by intention, some milliseconds: never on a loop that serves others."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


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
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        mechanism,
        iterations,
        salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
    )


def is_password(credential: ScramCredential, password: str) -> bool:
    """Whether the credential was made of this password. As slow as `salt_password`."""
    salted = salt_password(credential.mechanism, password, salt=credential.salt, iterations=credential.iterations)
    made = make_credential(
        credential.mechanism, iterations=credential.iterations, salt=credential.salt, salted_password=salted
    )
    return isinstance(made, ScramCredential) and hmac.compare_digest(made.stored_key, credential.stored_key)
