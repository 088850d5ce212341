"""Our own client logs in, again when it has to, and does not fall for a broker that does not know the password."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest

from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.net.address import Address
from penstock.net.connection import Connection, ConnectionOptions
from penstock.net.errors import ConnectionLostError, LoginFailedError, ProtocolMismatchError
from penstock.net.login import Credentials, log_in
from support.door.conversation import TalkingNode, running_node
from support.door.sasl_phrases import ALL_MECHANISMS, PASSWORD, USER, login_config


def address(node: TalkingNode) -> Address:
    host, _, port = node.addresses["kafka"].rpartition(":")
    return Address(host, int(port))


def options(mechanism: str = "SCRAM-SHA-512", user: str = USER, password: str = PASSWORD) -> ConnectionOptions:
    return ConnectionOptions(credentials=Credentials(user, password, mechanism))


@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
async def test_right_password_opens_and_a_wrong_one_does_not(mechanism: str) -> None:
    async with running_node(kafka=login_config()) as node:
        connection = await Connection.open(address(node), options(mechanism))
        assert (await connection.call(MetadataRequest(topics=None), MetadataResponse)).brokers
        connection.close()
        with pytest.raises(LoginFailedError, match="refuses the login of 'alice'"):
            await Connection.open(address(node), options(mechanism, password="wrong"))


async def test_mechanism_that_is_not_offered_is_told_with_those_that_are() -> None:
    async with running_node(kafka=login_config(sasl_mechanisms=("SCRAM-SHA-256",))) as node:
        with pytest.raises(LoginFailedError, match="it offers SCRAM-SHA-256"):
            await Connection.open(address(node), options("PLAIN"))


async def test_who_is_not_told_to_log_in_hears_that_he_may_have_to() -> None:
    async with running_node(kafka=login_config()) as node:
        connection = await Connection.open(address(node), ConnectionOptions())
        with pytest.raises(ConnectionLostError, match="it may ask for a login"):
            await connection.call(MetadataRequest(topics=None), MetadataResponse)


async def test_login_where_nobody_asks_for_one_says_so() -> None:
    async with running_node() as node:
        with pytest.raises(LoginFailedError, match="try it without a user"):
            await Connection.open(address(node), options())


async def test_login_is_renewed_before_it_ends() -> None:
    mechanism = "SCRAM-SHA-512"
    async with running_node(kafka=login_config(reauthentication_ms_max=1_300)) as node:
        connection = await Connection.open(address(node), options(mechanism))
        accepted = (mechanism, True)
        assert node.server.sasl.counts[accepted] == 1
        async with asyncio.timeout(20):
            while node.server.sasl.counts[accepted] < 3:
                # Several at once: the login goes between them.
                asked = [await connection.send(MetadataRequest(topics=None), MetadataResponse) for _ in range(5)]
                for future in asked:
                    assert (await future).brokers
                await asyncio.sleep(0.05)
        connection.close()


class Impostor:
    """A broker that does not know the password, and says what the test tells it to."""

    def __init__(self, *, nonce: str | None = None, iterations: str = "4096", final: bytes | None = None) -> None:
        self._nonce = nonce
        self._iterations = iterations
        self._final = final
        self.heard: list[bytes] = []

    async def __call__(self, request: object, response: object) -> object:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=(request.mechanism,))
        assert isinstance(request, SaslAuthenticateRequest)
        self.heard.append(bytes(request.auth_bytes))
        if len(self.heard) == 1:
            nonce = self.heard[0].decode().partition("r=")[2] + "server" if self._nonce is None else self._nonce
            salt = base64.b64encode(b"salt").decode()
            return SaslAuthenticateResponse(auth_bytes=f"r={nonce},s={salt},i={self._iterations}".encode())
        key = hmac.digest(hashlib.pbkdf2_hmac("sha512", b"guess", b"salt", 4096), b"Server Key", "sha512")
        made = b"v=" + base64.b64encode(hmac.digest(key, b"message", "sha512"))
        return SaslAuthenticateResponse(auth_bytes=made if self._final is None else self._final)


@pytest.mark.parametrize(
    ("impostor", "tokens"),
    [
        (Impostor(), 2),
        (Impostor(final=b""), 2),
        (Impostor(final=b"e=other-error"), 2),
        # Found out before the proof is sent, from which a weak password could be guessed.
        (Impostor(nonce="another"), 1),
        (Impostor(nonce=""), 1),
        (Impostor(iterations="1"), 1),
        (Impostor(iterations="999999999"), 1),
        (Impostor(iterations="9" * 40), 1),
        (Impostor(iterations="-5"), 1),
    ],
)
async def test_broker_that_does_not_know_the_password_is_found_out(impostor: Impostor, tokens: int) -> None:
    with pytest.raises(ProtocolMismatchError):
        await log_in(impostor, Credentials("alice", "secret"), "broker")  # type: ignore[arg-type]
    assert len(impostor.heard) == tokens
    assert not any(b"secret" in token for token in impostor.heard)


def test_password_is_not_shown() -> None:
    assert "secret" not in repr(options(password="secret"))
