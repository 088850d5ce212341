"""What is kept of a password proves it and does not give it away."""

from __future__ import annotations

import base64
import hashlib

import pytest

from penstock.domain.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, Mechanism, ScramCredential, make_credential

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def test_keys_are_those_of_the_example_in_rfc_7677() -> None:
    """User `user`, password `pencil`: the client's proof and the server's signature there follow from these keys."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    made = make_credential(Mechanism.SCRAM_SHA_256, iterations=4096, salt=SALT, salted_password=salted)
    assert isinstance(made, ScramCredential)
    first_bare = "n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = f"{first_bare},{server_first},{final}".encode()
    signature = hmac_sha256(made.stored_key, message)
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == made.stored_key
    assert hmac_sha256(made.server_key, message) == base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    import hmac

    return hmac.digest(key, message, "sha256")


def test_salted_password_itself_is_not_kept() -> None:
    made = make_credential(Mechanism.SCRAM_SHA_512, iterations=4096, salt=b"salt", salted_password=b"secret" * 8)
    assert isinstance(made, ScramCredential)
    assert (len(made.stored_key), len(made.server_key)) == (64, 64)
    assert b"secret" not in made.stored_key + made.server_key


@pytest.mark.parametrize(
    ("mechanism", "iterations", "salt", "password"),
    [
        (Mechanism.UNKNOWN, 4096, b"s", b"p"),
        (Mechanism.SCRAM_SHA_256, ITERATIONS_MIN - 1, b"s", b"p"),
        (Mechanism.SCRAM_SHA_256, ITERATIONS_MAX + 1, b"s", b"p"),
        (Mechanism.SCRAM_SHA_256, 4096, b"", b"p"),
        (Mechanism.SCRAM_SHA_256, 4096, b"s", b""),
    ],
)
def test_weak_credential_is_refused_with_a_reason(
    mechanism: Mechanism, iterations: int, salt: bytes, password: bytes
) -> None:
    made = make_credential(mechanism, iterations=iterations, salt=salt, salted_password=password)
    assert isinstance(made, str)
    assert made
