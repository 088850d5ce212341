"""The login of one client on the server's side, mechanism by mechanism: tokens in, outcomes out.

    exchange.step(token) → Challenge        send its token and wait for the next one
                           PasswordCheck    PLAIN: somebody with time must look at the password
                           Accepted         who it is; its token goes along
                           Refused          the reason is for the operator's log, never for the client

An exchange is asked until it has accepted or refused, and never again. What a client learns of a refusal is one
sentence for every cause: who guesses names or passwords must not be told which of the two was wrong.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from penstock.domain.security import scram_messages
from penstock.domain.security.scram import ScramCredential
from penstock.domain.security.scram_messages import ClientFirst

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
# Kafka names no limit; a password is hashed whatever its length.
NAME_CHARACTERS_MAX: Final = 1_024
PASSWORD_CHARACTERS_MAX: Final = 4_096
TOKEN_BYTES_MAX: Final = 64 * 1024

REFUSAL: Final = "Authentication failed: the user or the password is wrong"


class Challenge(msgspec.Struct, frozen=True):
    token: bytes


class PasswordCheck(msgspec.Struct, frozen=True):
    user: str
    password: str


class Accepted(msgspec.Struct, frozen=True):
    user: str
    token: bytes = b""
    # When what was shown holds no longer, by the wall clock.
    expires_ms: int | None = None


class Refused(msgspec.Struct, frozen=True):
    reason: str
    user: str | None = None
    # The sentence for the client.
    told: str = REFUSAL


Step = Challenge | PasswordCheck | Accepted | Refused


class Exchange(Protocol):
    def step(self, token: bytes, *, now_ms: int) -> Step: ...


class PlainExchange:
    """RFC 4616: `[authorization id] NUL user NUL password`."""

    def step(self, token: bytes, *, now_ms: int) -> Step:  # noqa: ARG002
        try:
            fields = bytes(token).decode().split("\0")
        except UnicodeDecodeError:
            return Refused("the token is no text")
        if len(fields) != 3:
            return Refused(f"the token has {len(fields)} fields, expected 3")
        authorization, user, password = fields
        if not user or not password or len(user) > NAME_CHARACTERS_MAX or len(password) > PASSWORD_CHARACTERS_MAX:
            return Refused("the user or the password is empty or too long")
        if authorization not in ("", user):
            return Refused("a user cannot log in for another one", user)
        return PasswordCheck(user, password)


class ScramExchange:
    """`find` gives a credential for any name: for a name that does not exist one that no password fits."""

    def __init__(self, find: Callable[[str], ScramCredential], server_nonce: str) -> None:
        self._find = find
        self._server_nonce = server_nonce
        self._first: ClientFirst | None = None
        self._server_first = ""
        self._credential: ScramCredential | None = None

    def step(self, token: bytes, *, now_ms: int) -> Step:  # noqa: ARG002
        if self._first is None:
            return self._challenge(token)
        return self._judge(self._first, token)

    def _challenge(self, token: bytes) -> Step:
        first = scram_messages.parse_client_first(token)
        if isinstance(first, str):
            return Refused(first)
        if len(first.user) > NAME_CHARACTERS_MAX:
            return Refused("the user's name is too long")
        self._first = first
        self._credential = credential = self._find(first.user)
        self._server_first = scram_messages.write_server_first(
            first.nonce + self._server_nonce, credential.salt, credential.iterations
        )
        return Challenge(self._server_first.encode())

    def _judge(self, first: ClientFirst, token: bytes) -> Step:
        credential = self._credential
        assert credential is not None, "a challenge was sent for it"
        final = scram_messages.parse_client_final(token)
        if isinstance(final, str):
            return Refused(final, first.user)
        # librdkafka before 2.6.1 puts its own nonce in front once more. Kafka 3 takes anything there, Kafka 4 nothing;
        # this one form is as bound to this exchange as the right one is.
        nonce = first.nonce + self._server_nonce
        if final.gs2_header != first.gs2_header or final.nonce not in (nonce, first.nonce + nonce):
            return Refused("the second message does not belong to the first", first.user)
        message = scram_messages.auth_message(first, self._server_first, final.without_proof)
        if not scram_messages.is_proof(credential.mechanism, credential.stored_key, message, final.proof):
            return Refused("unknown user or wrong password", first.user)
        signature = scram_messages.sign(credential.mechanism, credential.server_key, message)
        return Accepted(first.user, scram_messages.write_server_final(signature))


class UnsecuredBearerExchange:
    """RFC 7628 with tokens that nobody has signed (`alg` none): whoever can write a name is believed. For development.

    A refused token is answered in two steps, as the RFC wants: the reason as JSON, then the client's empty word, then
    the end.
    """

    def __init__(self) -> None:
        self._refusal: Refused | None = None

    def step(self, token: bytes, *, now_ms: int) -> Step:
        if self._refusal is not None:
            return self._refusal
        outcome = _judge_bearer(bytes(token), now_ms)
        if isinstance(outcome, Accepted):
            return outcome
        self._refusal = outcome
        return Challenge(b'{"status":"invalid_token"}')


def _judge_bearer(token: bytes, now_ms: int) -> Accepted | Refused:
    jwt = _bearer_of(token)
    if jwt is None:
        return Refused("the message holds no bearer token")
    parts = jwt.split(".")
    if len(parts) != 3 or parts[2]:
        return Refused("the token is signed, or no token: only unsigned ones are taken")
    header, claims = _json_part(parts[0]), _json_part(parts[1])
    if header is None or claims is None or header.get("alg") != "none":
        return Refused("the token's header or claims are malformed, or it is signed")
    user, expires = claims.get("sub"), claims.get("exp")
    if not isinstance(user, str) or not 0 < len(user) <= NAME_CHARACTERS_MAX:
        return Refused("the token names nobody")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 < expires < 1e11:
        return Refused("the token does not say when it expires", user)
    expires_ms = int(expires * 1000)
    if expires_ms <= now_ms:
        return Refused(f"the token expired {now_ms - expires_ms} ms ago", user)
    return Accepted(user, expires_ms=expires_ms)


def _bearer_of(token: bytes) -> str | None:
    """`n,,` 0x01 `auth=Bearer <token>` 0x01 [`name=value` 0x01 …] 0x01"""
    if len(token) > TOKEN_BYTES_MAX or not token.startswith(b"n,") or not token.endswith(b"\x01\x01"):
        return None
    fields = token.split(b"\x01")
    # A field of the header that names another user asks for a right that nobody has.
    if fields[0] != b"n,,":
        return None
    found = [field for field in fields[1:] if field.startswith(b"auth=")]
    scheme, _, jwt = found[0][5:].partition(b" ") if len(found) == 1 else (b"", b"", b"")
    return jwt.decode("ascii", "replace").strip() if scheme.lower() == b"bearer" else None


def _json_part(text: str) -> dict[str, Any] | None:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        decoded = msgspec.json.decode(data)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def derived_salt(secret: bytes, user: str, mechanism: str, *, size: int) -> bytes:
    """The same for the same name at every try and after every restart, as a real salt is; nobody else can tell it."""
    salt = hmac.digest(secret, f"{mechanism}\0{user}".encode(), "sha512")
    while len(salt) < size:
        salt += hmac.digest(secret, salt, "sha512")
    return salt[:size]
