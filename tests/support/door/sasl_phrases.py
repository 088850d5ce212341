"""What a client says to log in at a node of a test, frame by frame."""

from __future__ import annotations

from typing import Final

from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.domain.security import scram_messages
from penstock.domain.security.scram import MECHANISMS, salt_password
from penstock.gateways.kafka.server_config import KafkaServerConfig
from support.door.conversation import ANY_PORT, Conversation

USER: Final = "alice"
PASSWORD: Final = "in Wonderland"
ALL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def login_config(**settings: object) -> KafkaServerConfig:
    wishes = {
        "listen": ANY_PORT,
        "sasl_mechanisms": ALL_MECHANISMS,
        "users": {USER: PASSWORD, "bob": "builder"},
        "failed_login_delay_ms": 1,
        **settings,
    }
    return KafkaServerConfig(**wishes)  # type: ignore[arg-type]


def plain(user: str = USER, password: str = PASSWORD) -> bytes:
    return f"\0{user}\0{password}".encode()


async def handshake(talk: Conversation, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    return await talk.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, version)


async def authenticate(talk: Conversation, token: bytes, version: int | None = None) -> SaslAuthenticateResponse:
    return await talk.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, version)


async def log_in(
    talk: Conversation, mechanism: str = "PLAIN", user: str = USER, password: str = PASSWORD
) -> SaslAuthenticateResponse:
    """The last answer, whatever it says."""
    chosen = await handshake(talk, mechanism)
    assert chosen.error_code == 0, chosen
    if mechanism == "PLAIN":
        return await authenticate(talk, plain(user, password))
    first = scram_messages.write_client_first(user, "nonce")
    answer = await authenticate(talk, f"{first.gs2_header}{first.bare}".encode())
    assert answer.error_code == 0, answer
    return await authenticate(talk, final_message(mechanism, first, bytes(answer.auth_bytes), password))


def final_message(mechanism: str, first: scram_messages.ClientFirst, challenge: bytes, password: str) -> bytes:
    server_first = scram_messages.parse_server_first(challenge)
    assert not isinstance(server_first, str), server_first
    scram = MECHANISMS[mechanism]
    salted = salt_password(scram, password, salt=server_first.salt, iterations=server_first.iterations)
    without_proof = scram_messages.write_client_final(first, server_first.nonce)
    message = scram_messages.auth_message(first, challenge.decode(), without_proof)
    return scram_messages.with_proof(without_proof, scram_messages.make_proof(scram, salted, message))
