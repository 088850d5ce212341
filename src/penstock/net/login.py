"""A client's side of a login: PLAIN and SCRAM, over SaslHandshake and SaslAuthenticate.

    credentials ──log_in(ask)──→ how long the login holds, or LoginFailedError

`ask` sends one request and brings its reply. With SCRAM the broker proves that it knows the password as well: a
stranger who answers in its place is found out before anything else is sent.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.base.chance import SYSTEM_CHANCE
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.codec.kafka.schema import Request, Response
from penstock.domain.security import scram_messages
from penstock.domain.security.sasl import PLAIN
from penstock.domain.security.scram import ITERATIONS_MIN, MECHANISMS, Mechanism, salt_password
from penstock.net.errors import LoginFailedError, ProtocolMismatchError

R = TypeVar("R", bound=Response)

MECHANISM_DEFAULT: Final = Mechanism.SCRAM_SHA_512.sasl_name
CLIENT_MECHANISMS: Final = (PLAIN, *MECHANISMS)
# Half a second of work; a broker that asks for more does not mean well.
ITERATIONS_TAKEN_MAX: Final = 1_000_000
NONCE_BYTES: Final = 24


class Credentials(msgspec.Struct, frozen=True):
    user: str
    password: str
    mechanism: str = MECHANISM_DEFAULT

    def __repr__(self) -> str:
        """Without the password: this ends up in logs and tracebacks."""
        return f"Credentials(user={self.user!r}, mechanism={self.mechanism!r})"


class Ask(Protocol):
    async def __call__(self, request: Request, response: type[R]) -> R: ...


async def log_in(ask: Ask, credentials: Credentials, broker: object) -> int:
    """The milliseconds for which the login holds; 0: for as long as the connection."""
    chosen = await ask(SaslHandshakeRequest(mechanism=credentials.mechanism), SaslHandshakeResponse)
    if chosen.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(chosen.mechanisms) or "none"
        raise LoginFailedError(f"{broker} does not take {credentials.mechanism}; it offers {offered}")
    if chosen.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise LoginFailedError(f"{broker} asks nobody to log in, or not now: try it without a user")
    if chosen.error_code:
        raise LoginFailedError(f"{broker} refuses the handshake with error code {chosen.error_code}")
    if credentials.mechanism == PLAIN:
        done = await _authenticate(ask, f"\0{credentials.user}\0{credentials.password}".encode(), credentials, broker)
        return done.session_lifetime_ms
    return await _log_in_by_scram(ask, MECHANISMS[credentials.mechanism], credentials, broker)


async def _log_in_by_scram(ask: Ask, mechanism: Mechanism, credentials: Credentials, broker: object) -> int:
    first = scram_messages.write_client_first(credentials.user, SYSTEM_CHANCE.text(NONCE_BYTES))
    answer = await _authenticate(ask, f"{first.gs2_header}{first.bare}".encode(), credentials, broker)
    server_first = scram_messages.parse_server_first(bytes(answer.auth_bytes))
    if isinstance(server_first, str):
        raise ProtocolMismatchError(f"{broker}: {server_first}")
    if not server_first.nonce.startswith(first.nonce) or server_first.nonce == first.nonce:
        raise ProtocolMismatchError(f"{broker} answered somebody else's login")
    if not ITERATIONS_MIN <= server_first.iterations <= ITERATIONS_TAKEN_MAX:
        raise ProtocolMismatchError(f"{broker} asks for {server_first.iterations} iterations of the password")
    salted = await asyncio.to_thread(
        salt_password,
        mechanism,
        credentials.password,
        salt=server_first.salt,
        iterations=server_first.iterations,
    )
    without_proof = scram_messages.write_client_final(first, server_first.nonce)
    message = scram_messages.auth_message(first, bytes(answer.auth_bytes).decode(), without_proof)
    proof = scram_messages.make_proof(mechanism, salted, message)
    done = await _authenticate(ask, scram_messages.with_proof(without_proof, proof), credentials, broker)
    signature = scram_messages.parse_server_final(bytes(done.auth_bytes))
    server_key = hmac.digest(salted, b"Server Key", mechanism.hash_name)
    expected = scram_messages.sign(mechanism, server_key, message)
    if isinstance(signature, str) or not hmac.compare_digest(signature, expected):
        raise ProtocolMismatchError(f"{broker} could not prove that it knows the password: it may be another's")
    return done.session_lifetime_ms


async def _authenticate(ask: Ask, token: bytes, credentials: Credentials, broker: object) -> SaslAuthenticateResponse:
    answer = await ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
    if answer.error_code:
        reason = answer.error_message or f"error code {answer.error_code}"
        raise LoginFailedError(f"{broker} refuses the login of {credentials.user!r}: {reason}")
    return answer
