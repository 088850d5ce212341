"""Logins on the server's side: the RFCs' own examples, and what must be refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.security import scram_messages
from penstock.domain.security.sasl import (
    REFUSAL,
    Accepted,
    Challenge,
    PasswordCheck,
    PlainExchange,
    Refused,
    ScramExchange,
    UnsecuredBearerExchange,
    derived_salt,
)
from penstock.domain.security.scram import Mechanism, ScramCredential, is_password, make_credential, salt_password

NOW_MS = 1_700_000_000_000
# RFC 7677, chapter 3.
RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
RFC_SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
RFC_CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
RFC_SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(
    password: str, mechanism: Mechanism = Mechanism.SCRAM_SHA_256, salt: bytes = RFC_SALT
) -> ScramCredential:
    salted = salt_password(mechanism, password, salt=salt, iterations=4096)
    made = make_credential(mechanism, iterations=4096, salt=salt, salted_password=salted)
    assert isinstance(made, ScramCredential)
    return made


def rfc_exchange(found: Callable[[str], ScramCredential] = lambda _: credential("pencil")) -> ScramExchange:
    return ScramExchange(found, RFC_SERVER_NONCE)


def test_exchange_of_rfc_7677_is_spoken_word_for_word() -> None:
    exchange = rfc_exchange()
    assert exchange.step(RFC_CLIENT_FIRST, now_ms=0) == Challenge(RFC_SERVER_FIRST)
    assert exchange.step(RFC_CLIENT_FINAL, now_ms=0) == Accepted("user", RFC_SERVER_FINAL)


def test_clients_half_of_rfc_7677_is_spoken_word_for_word() -> None:
    first = scram_messages.write_client_first("user", "rOprNGfwEbeRWgbNEkqO")
    assert f"{first.gs2_header}{first.bare}".encode() == RFC_CLIENT_FIRST
    server_first = scram_messages.parse_server_first(RFC_SERVER_FIRST)
    assert not isinstance(server_first, str)
    salted = salt_password(
        Mechanism.SCRAM_SHA_256, "pencil", salt=server_first.salt, iterations=server_first.iterations
    )
    without_proof = scram_messages.write_client_final(first, server_first.nonce)
    message = scram_messages.auth_message(first, RFC_SERVER_FIRST.decode(), without_proof)
    proof = scram_messages.make_proof(Mechanism.SCRAM_SHA_256, salted, message)
    assert scram_messages.with_proof(without_proof, proof) == RFC_CLIENT_FINAL
    assert scram_messages.parse_server_final(RFC_SERVER_FINAL) == base64.b64decode(RFC_SERVER_FINAL[2:])


@pytest.mark.parametrize("mechanism", [Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512])
@pytest.mark.parametrize("user", ["alice", "a=b,c", "=2C", "ü/名", ","])
def test_every_name_and_mechanism_gets_in_with_the_password_and_not_without(mechanism: Mechanism, user: str) -> None:
    for password, is_right in (("p,ss=wörd", True), ("p,ss=wördx", False)):
        named: list[str] = []

        def find(name: str, named: list[str] = named) -> ScramCredential:
            named.append(name)
            return credential("p,ss=wörd", mechanism)

        exchange = ScramExchange(find, "server")
        first = scram_messages.write_client_first(user, "client")
        challenge = exchange.step(f"{first.gs2_header}{first.bare}".encode(), now_ms=0)
        assert isinstance(challenge, Challenge)
        assert named == [user]
        salted = salt_password(mechanism, password, salt=RFC_SALT, iterations=4096)
        without_proof = scram_messages.write_client_final(first, "clientserver")
        message = scram_messages.auth_message(first, challenge.token.decode(), without_proof)
        proof = scram_messages.make_proof(mechanism, salted, message)
        outcome = exchange.step(scram_messages.with_proof(without_proof, proof), now_ms=0)
        assert isinstance(outcome, Accepted if is_right else Refused)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,n=user=2,r=abc",
        b"n,,r=abc,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,m=x",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=user,r=a\x00c",
        b"\xff\xfe",
        b"n,,n=" + b"u" * 2000 + b",r=abc",
        b"n,,n=user,r=" + b"x" * 20_000,
    ],
)
def test_malformed_first_message_is_refused(first: bytes) -> None:
    assert isinstance(rfc_exchange().step(first, now_ms=0), Refused)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws",
        RFC_CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        RFC_CLIENT_FINAL.replace(b"c=biws", b"c=!!"),
        RFC_CLIENT_FINAL.replace(b"$k0", b"$k1"),
        RFC_CLIENT_FINAL.replace(b"p=dHzb", b"p=dHzc"),
        RFC_CLIENT_FINAL.replace(b"p=dHzb", b"p="),
        RFC_CLIENT_FINAL.partition(b",p=")[0],
        RFC_CLIENT_FINAL.partition(b",p=")[0] + b",p=",
        RFC_CLIENT_FIRST,
    ],
)
def test_second_message_with_one_thing_wrong_is_refused(final: bytes) -> None:
    exchange = rfc_exchange()
    exchange.step(RFC_CLIENT_FIRST, now_ms=0)
    outcome = exchange.step(final, now_ms=0)
    assert isinstance(outcome, Refused)
    assert outcome.told == REFUSAL


@pytest.mark.parametrize(("front", "is_taken"), [("abc", True), ("", False), ("abcabc", False), ("abd", False)])
def test_nonce_that_an_old_librdkafka_repeats_is_taken_and_nothing_else(front: str, is_taken: bool) -> None:
    exchange = rfc_exchange()
    first = scram_messages.write_client_first("user", "abc")
    challenge = exchange.step(f"{first.gs2_header}{first.bare}".encode(), now_ms=0)
    assert isinstance(challenge, Challenge)
    without_proof = scram_messages.write_client_final(
        first, f"{front}abc{RFC_SERVER_NONCE}" if front else RFC_SERVER_NONCE
    )
    message = scram_messages.auth_message(first, challenge.token.decode(), without_proof)
    salted = salt_password(Mechanism.SCRAM_SHA_256, "pencil", salt=RFC_SALT, iterations=4096)
    proof = scram_messages.make_proof(Mechanism.SCRAM_SHA_256, salted, message)
    outcome = exchange.step(scram_messages.with_proof(without_proof, proof), now_ms=0)
    assert isinstance(outcome, Accepted if is_taken else Refused)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=2))
def test_garbage_never_gets_in_and_never_raises(tokens: list[bytes]) -> None:
    for exchange in (rfc_exchange(), PlainExchange(), UnsecuredBearerExchange()):
        for token in tokens:
            outcome = exchange.step(token, now_ms=NOW_MS)
            assert not isinstance(outcome, Accepted)
            if isinstance(outcome, Refused):
                break


def test_plain_names_user_and_password() -> None:
    assert PlainExchange().step(b"\0alice\0secret", now_ms=0) == PasswordCheck("alice", "secret")
    assert PlainExchange().step(b"alice\0alice\0secret", now_ms=0) == PasswordCheck("alice", "secret")


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0alice",
        b"\0\0secret",
        b"\0alice\0",
        b"bob\0alice\0secret",
        b"\0a\0b\0c",
        b"\0\xff\0x",
        b"\0a\0" + b"x" * 5000,
    ],
)
def test_malformed_plain_is_refused(token: bytes) -> None:
    assert isinstance(PlainExchange().step(token, now_ms=0), Refused)


def test_password_is_known_by_its_credential_alone() -> None:
    kept = credential("pencil", Mechanism.SCRAM_SHA_512)
    assert is_password(kept, "pencil")
    assert not is_password(kept, "Pencil")


def bearer(claims: dict[str, object], *, header: dict[str, object] | None = None, signature: str = "") -> bytes:
    parts = [json.dumps(part).encode() for part in (header or {"alg": "none"}, claims)]
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return f"n,,\x01auth=Bearer {'.'.join(encoded)}.{signature}\x01\x01".encode()


def test_unsigned_token_tells_who_and_for_how_long() -> None:
    token = bearer({"sub": "alice", "exp": NOW_MS / 1000 + 5.5})
    assert UnsecuredBearerExchange().step(token, now_ms=NOW_MS) == Accepted("alice", expires_ms=NOW_MS + 5_500)


@pytest.mark.parametrize(
    "token",
    [
        bearer({"sub": "alice", "exp": NOW_MS / 1000 - 1}),
        bearer({"sub": "alice"}),
        bearer({"sub": "alice", "exp": True}),
        bearer({"sub": "alice", "exp": 1e300}),
        bearer({"exp": NOW_MS / 1000 + 5}),
        bearer({"sub": "", "exp": NOW_MS / 1000 + 5}),
        bearer({"sub": "alice", "exp": NOW_MS / 1000 + 5}, header={"alg": "HS256"}),
        bearer({"sub": "alice", "exp": NOW_MS / 1000 + 5}, signature="abc"),
        bearer({"sub": "alice", "exp": NOW_MS / 1000 + 5}).replace(b"n,,", b"n,a=bob,"),
        b"n,,\x01auth=Bearer x.y.\x01\x01",
        b"n,,\x01\x01",
    ],
)
def test_bad_token_is_told_so_and_then_refused(token: bytes) -> None:
    exchange = UnsecuredBearerExchange()
    assert exchange.step(token, now_ms=NOW_MS) == Challenge(b'{"status":"invalid_token"}')
    # Whatever comes next, even a good token.
    good = bearer({"sub": "alice", "exp": NOW_MS / 1000 + 5})
    assert isinstance(exchange.step(good, now_ms=NOW_MS), Refused)


def test_derived_salt_is_the_same_for_a_name_and_another_for_any_other() -> None:
    salts = {derived_salt(b"secret", user, "SCRAM-SHA-256", size=26) for user in ("a", "b", "a", "c")}
    assert len(salts) == 3
    assert {len(salt) for salt in salts} == {26}
    assert len(derived_salt(b"secret", "a", "x", size=200)) == 200
