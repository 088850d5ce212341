"""The four messages of a SCRAM exchange, as text, and the arithmetic of its proofs (RFC 5802).

    client first   n,,n=alice,r=<client nonce>
    server first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client final   c=biws,r=<both nonces>,p=<proof>
    server final   v=<signature>

Channel binding is not spoken (`p=`): there is no `-PLUS` mechanism in Kafka. What cannot be read is a sentence that
says why; it never holds anything secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from penstock.domain.security.scram import Mechanism

# Far above what any client sends, far below what would be worth sending to a node that does not know its sender.
MESSAGE_BYTES_MAX: Final = 16 * 1024


class ClientFirst(msgspec.Struct, frozen=True):
    # As it came: the client repeats it in its second message.
    gs2_header: str
    user: str
    nonce: str
    bare: str


class ServerFirst(msgspec.Struct, frozen=True):
    nonce: str
    salt: bytes
    iterations: int


class ClientFinal(msgspec.Struct, frozen=True):
    gs2_header: str
    nonce: str
    proof: bytes
    without_proof: str


def parse_client_first(message: bytes) -> ClientFirst | str:
    text = _text_of(message)
    if text is None:
        return "the first message is too long or no text"
    parts = text.split(",", 2)
    if len(parts) != 3:
        return "the first message has no header"
    binding, authorization, bare = parts
    if binding not in ("n", "y"):
        return "channel binding is not spoken here"
    fields = bare.split(",")
    if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
        return "the first message names no user and nonce"
    user, nonce = _unescape(fields[0][2:]), fields[1][2:]
    if not user or not _is_nonce(nonce):
        return "the user's name or the nonce is malformed"
    if authorization and authorization != f"a={fields[0][2:]}":
        return "a user cannot log in for another one"
    if any(field.startswith(("m=", "tokenauth=")) for field in fields[2:]):
        return "an extension is asked for that is not known here"
    return ClientFirst(f"{binding},{authorization},", user, nonce, bare)


def write_client_first(user: str, nonce: str) -> ClientFirst:
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    return ClientFirst("n,,", user, nonce, f"n={escaped},r={nonce}")


def parse_server_first(message: bytes) -> ServerFirst | str:
    fields = (_text_of(message) or "").split(",")
    if len(fields) < 3 or [field[:2] for field in fields[:3]] != ["r=", "s=", "i="]:
        return "the server's first message is malformed"
    salt, iterations = _decode(fields[1][2:]), fields[2][2:]
    # Nine digits: a longer number is none that anybody would want to count to.
    if not salt or not (iterations.isascii() and iterations.isdigit() and len(iterations) <= 9):
        return "the server's salt or number of iterations is malformed"
    return ServerFirst(fields[0][2:], salt, int(iterations))


def write_server_first(nonce: str, salt: bytes, iterations: int) -> str:
    return f"r={nonce},s={_encode(salt)},i={iterations}"


def parse_client_final(message: bytes) -> ClientFinal | str:
    text = _text_of(message) or ""
    without_proof, separator, proof_text = text.rpartition(",p=")
    fields = without_proof.split(",")
    if not separator or len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
        return "the second message is malformed"
    header, proof = _decode(fields[0][2:]), _decode(proof_text)
    if header is None or not proof:
        return "the second message's header or proof is malformed"
    return ClientFinal(header.decode(errors="replace"), fields[1][2:], proof, without_proof)


def write_client_final(first: ClientFirst, nonce: str) -> str:
    """Without the proof, which is made over it."""
    return f"c={_encode(first.gs2_header.encode())},r={nonce}"


def with_proof(without_proof: str, proof: bytes) -> bytes:
    return f"{without_proof},p={_encode(proof)}".encode()


def parse_server_final(message: bytes) -> bytes | str:
    """The server's signature."""
    text = _text_of(message) or ""
    signature = _decode(text[2:].split(",")[0]) if text.startswith("v=") else None
    return signature or "the server's last message holds no signature"


def write_server_final(signature: bytes) -> bytes:
    return f"v={_encode(signature)}".encode()


# Proofs


def auth_message(first: ClientFirst, server_first: str, without_proof: str) -> bytes:
    return f"{first.bare},{server_first},{without_proof}".encode()


def make_proof(mechanism: Mechanism, salted_password: bytes, message: bytes) -> bytes:
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return _mix(client_key, hmac.digest(stored_key, message, mechanism.hash_name))


def is_proof(mechanism: Mechanism, stored_key: bytes, message: bytes, proof: bytes) -> bool:
    signature = hmac.digest(stored_key, message, mechanism.hash_name)
    if len(proof) != len(signature):
        return False
    client_key = _mix(proof, signature)
    return hmac.compare_digest(hashlib.new(mechanism.hash_name, client_key).digest(), stored_key)


def sign(mechanism: Mechanism, server_key: bytes, message: bytes) -> bytes:
    return hmac.digest(server_key, message, mechanism.hash_name)


def _mix(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=True))


# Text


def _text_of(message: bytes) -> str | None:
    if len(message) > MESSAGE_BYTES_MAX:
        return None
    try:
        return message.decode()
    except UnicodeDecodeError:
        return None


def _is_nonce(text: str) -> bool:
    """Printable ASCII without a comma, which the fields before it cannot hold."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _unescape(name: str) -> str | None:
    """A comma stands as =2C and = as =3D; = followed by anything else is malformed."""
    pieces = name.split("=")
    if any(piece[:2] not in ("2C", "3D") for piece in pieces[1:]):
        return None
    return pieces[0] + "".join((("," if piece[:2] == "2C" else "=") + piece[2:]) for piece in pieces[1:])


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
