"""Logins where nobody has to log in: what a client hears that thinks it must."""

from __future__ import annotations

from conformance.differential.talk import Talk, dialogue
from penstock.codec.wire.messages.metadata import MetadataRequest
from penstock.codec.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.wire.messages.sasl_handshake import SaslHandshakeRequest


@dialogue(SaslHandshakeRequest, SaslAuthenticateRequest)
def login_at_an_open_door(talk: Talk) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "no such thing", ""):
        talk.ask(f"handshake {mechanism}", SaslHandshakeRequest(mechanism=mechanism))
    for token in (b"\0alice\0secret", b""):
        talk.ask(f"token of {len(token)} bytes", SaslAuthenticateRequest(auth_bytes=token))
    talk.ask("still open", MetadataRequest(topics=()))
