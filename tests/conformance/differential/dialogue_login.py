"""Logins: at a door that asks for them, and at one where a client only thinks that it must.

After version 0 of the handshake tokens travel bare; from version 1 on in SaslAuthenticate.
"""

from __future__ import annotations

from typing import Any

from conformance.differential.talk import LOGIN, MAIN, Talk, dialogue
from penstock.codec.kafka.messages import alter_user_scram_credentials as au
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest
from penstock.codec.kafka.messages.metadata import MetadataRequest
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest
from penstock.domain.security import scram_messages
from penstock.domain.security.scram import Mechanism, salt_password

USER, PASSWORD = "alice", "in-wonderland"
SCRAM = Mechanism.SCRAM_SHA_256
GOOD = f"\0{USER}\0{PASSWORD}".encode()


@dialogue(SaslHandshakeRequest, SaslAuthenticateRequest)
def login_at_an_open_door(talk: Talk) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "no such thing", ""):
        talk.ask(f"handshake {mechanism}", SaslHandshakeRequest(mechanism=mechanism))
    for token in (b"\0alice\0secret", b""):
        talk.ask(f"token of {len(token)} bytes", SaslAuthenticateRequest(auth_bytes=token))
    talk.ask("still open", MetadataRequest(topics=()))


def shake(talk: Talk, step: str, mechanism: str = "PLAIN", on: str = MAIN) -> None:
    """The mechanisms are offered in no order."""
    request = SaslHandshakeRequest(mechanism=mechanism)
    talk.ask(step, request, on=on, show=lambda reply: [reply.error_code, sorted(reply.mechanisms)])


def token(talk: Talk, step: str, data: bytes, on: str = MAIN, *, with_bytes: bool = True) -> bytes | None:
    if talk.version(SaslHandshakeRequest) == 0:
        answer = talk.bare(data, on=on)
        talk.note(step, "closed" if answer is None else answer if with_bytes else "a token")
        return answer

    def show(reply: Any) -> Any:
        return {
            "error_code": reply.error_code,
            "has_message": bool(reply.error_message),
            "auth_bytes": bytes(reply.auth_bytes) if with_bytes else bool(reply.auth_bytes),
            "session_lifetime_ms": reply.session_lifetime_ms,
        }

    reply = talk.ask(step, SaslAuthenticateRequest(auth_bytes=data), on=on, show=show)
    return None if reply is None else bytes(reply.auth_bytes)


def look(talk: Talk, step: str, on: str = MAIN) -> None:
    talk.ask(step, MetadataRequest(topics=()), on=on, show=lambda reply: len(reply.brokers))


@dialogue(SaslHandshakeRequest, SaslAuthenticateRequest, at=LOGIN)
def login_by_password(talk: Talk) -> None:
    talk.ask("versions first", ApiVersionsRequest(), version=0, show=lambda reply: reply.error_code)
    shake(talk, "handshake")
    token(talk, "token", GOOD)
    look(talk, "inside")
    for name, data in (
        ("wrong password", f"\0{USER}\0wrong".encode()),
        ("nobody", b"\0nobody\0wrong"),
        ("for another", f"bob\0{USER}\0{PASSWORD}".encode()),
        ("for oneself", f"{USER}\0{USER}\0{PASSWORD}".encode()),
        ("no password", f"\0{USER}\0".encode()),
        ("no name", b"\0\0secret"),
        ("two fields", b"\0alice"),
        ("four fields", GOOD + b"\0x"),
        ("garbage", b"\xff\xfe"),
    ):
        shake(talk, f"handshake, {name}", on=name)
        token(talk, name, data, on=name)
        look(talk, f"after {name}", on=name)


@dialogue(SaslHandshakeRequest, SaslAuthenticateRequest, at=LOGIN)
def login_out_of_order(talk: Talk) -> None:
    look(talk, "nothing said", on="1")
    talk.ask("a token first", SaslAuthenticateRequest(auth_bytes=GOOD), on="2")
    shake(talk, "no such mechanism", "GSSAPI", on="3")
    look(talk, "after no such mechanism", on="3")
    shake(talk, "handshake", on="4")
    if talk.version(SaslHandshakeRequest):
        look(talk, "in the middle", on="4")
        shake(talk, "handshake again", on="5")
        shake(talk, "and again", on="5")


@dialogue(SaslHandshakeRequest, SaslAuthenticateRequest, at=LOGIN)
def login_again(talk: Talk) -> None:
    shake(talk, "handshake")
    token(talk, "token", GOOD)
    shake(talk, "handshake inside")
    token(talk, "token inside", GOOD)
    look(talk, "still inside")
    shake(talk, "handshake too soon")
    talk.ask("token out of place", SaslAuthenticateRequest(auth_bytes=GOOD), show=lambda reply: reply.error_code)
    look(talk, "still inside after that")
    for name, mechanism, data in (
        ("as another", "PLAIN", b"\0bob\0builder"),
        ("with a wrong password", "PLAIN", f"\0{USER}\0wrong".encode()),
    ):
        shake(talk, f"first, {name}", on=name)
        token(talk, f"first token, {name}", GOOD, on=name)
        shake(talk, f"second, {name}", mechanism, on=name)
        token(talk, f"second token, {name}", data, on=name)
        look(talk, f"after {name}", on=name)


@dialogue(SaslHandshakeRequest, SaslAuthenticateRequest, at=LOGIN)
def login_by_scram(talk: Talk) -> None:
    talk.quietly(SaslHandshakeRequest(mechanism="PLAIN"), on="admin", version=1)
    talk.quietly(SaslAuthenticateRequest(auth_bytes=GOOD), on="admin")
    user, salt = talk.name("carol"), b"a salt of her own"
    salted = salt_password(SCRAM, "sings", salt=salt, iterations=4096)
    wish = au.AlterUserScramCredentialsRequest(
        upsertions=(au.ScramCredentialUpsertion(user, SCRAM, 4096, salt, salted),)
    )
    made = talk.quietly(wish, on="admin")
    assert [result.error_code for result in made.results] == [0], made
    for name, password, nonce in (
        ("right", "sings", ""),
        ("wrong", "hums", ""),
        ("nonce repeated", "sings", "nonce"),
        ("nonce of another", "sings", "other"),
    ):
        shake(talk, f"handshake, {name}", SCRAM.sasl_name, on=name)
        first = scram_messages.write_client_first(user, "nonce")
        challenge = token(talk, f"first, {name}", f"{first.gs2_header}{first.bare}".encode(), on=name, with_bytes=False)
        server_first = scram_messages.parse_server_first(challenge or b"")
        assert not isinstance(server_first, str), server_first
        talk.note(f"challenge, {name}", [server_first.nonce.startswith("nonce"), server_first.iterations])
        whole = "nonce-of-another" if nonce == "other" else nonce + server_first.nonce
        without_proof = scram_messages.write_client_final(first, whole)
        message = scram_messages.auth_message(first, (challenge or b"").decode(), without_proof)
        hashed = salt_password(SCRAM, password, salt=server_first.salt, iterations=server_first.iterations)
        final = scram_messages.with_proof(without_proof, scram_messages.make_proof(SCRAM, hashed, message))
        token(talk, f"second, {name}", final, on=name, with_bytes=False)
        look(talk, f"after {name}", on=name)
    for name, data in (
        ("nobody", b"n,,n=nobody,r=nonce"),
        ("garbage", b"garbage"),
        ("channel binding", b"p=tls-unique,,n=alice,r=nonce"),
    ):
        shake(talk, f"handshake, {name}", SCRAM.sasl_name, on=name)
        token(talk, name, data, on=name, with_bytes=False)
