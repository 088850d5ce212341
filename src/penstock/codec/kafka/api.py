"""Which request has which key, and the frames around requests and responses.

    request  = length  api key  api version  correlation id  client id  [tags]  body
    response = length  correlation id  [tags]  body

The tagged section is there if the body's version is flexible. Two exceptions, both because the other side
cannot know yet what is spoken: the client id is never a compact string, and a response to ApiVersions never
has the tags.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, Final, TypeVar

import msgspec

from penstock.codec.kafka.internal import INTERNAL_KEYS_FROM, INTERNAL_MESSAGES
from penstock.codec.kafka.message_codec import REFUSALS, decode, encode, encoder_for, reason_of, step_encoder_for
from penstock.codec.kafka.messages import API_MESSAGES
from penstock.codec.kafka.primitives import Malformed, read_varint, skip_tags
from penstock.codec.kafka.schema import VERSION_LAST, BytesLike, Request, Response, fields_of, version_range

API_VERSIONS_KEY: Final = 18

# Key, version, correlation id, length of the client id.
_REQUEST_HEAD = struct.Struct(">hhih")
_REQUEST_FRAME_HEAD = struct.Struct(">ihhih")
_RESPONSE_FRAME_HEAD = struct.Struct(">ii")
_RESPONSE_FRAME_HEAD_FLEXIBLE = struct.Struct(">iix")
_CORRELATION_ID = struct.Struct(">i")
_LENGTH_BYTES: Final = 4
# A millisecond's work: a quarter of a million of them at once took more than twenty.
_JOINED_PIECES: Final = 10_000

ResponseT = TypeVar("ResponseT", bound=Response)


class Encoded(Response, frozen=True, gc=False):
    """A response whose body was encoded before, in the version that is asked for: many clients get the same."""

    key: int
    body: bytes


class Api(msgspec.Struct, frozen=True):
    key: int
    name: str
    request: type[Request]
    response: type[Response]
    # What can be decoded; a broker advertises these or fewer.
    version_min: int
    version_max: int
    # Past every version if the API has no flexible ones.
    flexible_from: int

    @property
    def is_internal(self) -> bool:
        """Nodes ask each other; Kafka has none like it."""
        return self.key >= INTERNAL_KEYS_FROM


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def _describe(request: type[Request], response: type[Response]) -> Api:
    assert request.api_key == response.api_key
    assert request.valid_versions == response.valid_versions
    assert request.flexible_versions == response.flexible_versions
    versions = version_range(request.valid_versions)
    flexible = version_range(request.flexible_versions)
    return Api(
        key=request.api_key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        version_min=versions.first,
        version_max=versions.last,
        flexible_from=flexible.first if flexible.last == VERSION_LAST else VERSION_LAST + 1,
    )


APIS: Final[dict[int, Api]] = {
    api.key: api for api in (_describe(request, response) for request, response in API_MESSAGES + INTERNAL_MESSAGES)
}
_FLEXIBLE_FROM: Final = {api.key: api.flexible_from for api in APIS.values()}


def decode_request_header(frame: BytesLike) -> RequestHeader | Malformed:
    """The header of a frame without its length. A key not in `APIS` is malformed: its header is unknown."""
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEAD.unpack_from(frame)
        position = 10
        client_id = None
        if length >= 0:
            stop = position + length
            client_id = bytes(frame[position:stop]).decode()
            position = stop
        elif length != -1:
            return Malformed(f"client id has length {length}")
        flexible_from = _FLEXIBLE_FROM.get(api_key)
        if flexible_from is None:
            return Malformed(f"no API has the key {api_key}")
        if api_version >= flexible_from:
            position = _skip_header_tags(frame, position) if frame[position] else position + 1
        if position > len(frame):
            return Malformed(f"client id of {length} bytes in a frame of {len(frame)}")
    except REFUSALS as error:
        return Malformed(f"request header: {reason_of(error)}")
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def _skip_header_tags(frame: BytesLike, position: int) -> int:
    count, position = read_varint(frame, position)
    return skip_tags(frame, position, count) if count else position


def encode_request(message: Request, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A whole frame, its length included."""
    name = b"" if client_id is None else client_id.encode()
    name_length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= _FLEXIBLE_FROM[message.api_key] else b""
    body = encode(message, version)
    length = _REQUEST_FRAME_HEAD.size - _LENGTH_BYTES + len(name) + len(tags) + len(body)
    head = _REQUEST_FRAME_HEAD.pack(length, message.api_key, version, correlation_id, name_length)
    return b"".join((head, name, tags, body))


def encode_response_parts(message: Response, version: int, correlation_id: int) -> list[BytesLike]:
    """A whole frame, its length included; records are parts of their own, uncopied."""
    pieces: list[bytes] = []
    parts: list[BytesLike] = []
    encoder_for(type(message), version)(message, pieces, parts)
    return _framed(message.api_key, version, correlation_id, pieces, parts)


def encode_response_in_steps(
    message: Response, version: int, correlation_id: int
) -> Generator[None, None, list[BytesLike]]:
    """The same in steps, for a message that may be long."""
    if isinstance(message, Encoded):
        return _framed(message.key, version, correlation_id, [], [message.body])
    pieces: list[bytes] = []
    parts: list[BytesLike] = []
    yield from _encode_in_steps(message, version, pieces, parts)
    return _framed(message.api_key, version, correlation_id, pieces, parts)


def encode_body_in_steps(message: Response, version: int) -> Generator[None, None, Encoded]:
    """To be sent more than once."""
    pieces: list[bytes] = []
    parts: list[BytesLike] = []
    yield from _encode_in_steps(message, version, pieces, parts)
    return Encoded(message.api_key, b"".join([*parts, *pieces]))


def _encode_in_steps(
    message: Response, version: int, pieces: list[bytes], parts: list[BytesLike]
) -> Generator[None, None, None]:
    for _ in step_encoder_for(type(message), version)(message, pieces, parts):
        if len(pieces) >= _JOINED_PIECES:
            parts.append(b"".join(pieces))
            pieces.clear()
        yield


def _framed(
    api_key: int, version: int, correlation_id: int, pieces: list[bytes], parts: list[BytesLike]
) -> list[BytesLike]:
    if pieces or not parts:
        parts.append(b"".join(pieces))
    body_bytes = sum(map(len, parts))
    if has_header_tags(api_key, version):
        head = _RESPONSE_FRAME_HEAD_FLEXIBLE.pack(body_bytes + 5, correlation_id)
    else:
        head = _RESPONSE_FRAME_HEAD.pack(body_bytes + 4, correlation_id)
    # The first part is never records, so it is short; a head apart would cost the transport one more buffer.
    parts[0] = head + parts[0]
    return parts


def decode_response(
    message_class: type[ResponseT], version: int, frame: BytesLike
) -> tuple[int, ResponseT] | Malformed:
    """The correlation id and the message of a frame without its length."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        position = 4
        if has_header_tags(message_class.api_key, version):
            position = _skip_header_tags(frame, position)
    except REFUSALS as error:
        return Malformed(f"response header: {reason_of(error)}")
    message = decode(message_class, version, frame, position)
    if isinstance(message, Malformed):
        return message
    return correlation_id, message


def refusal_of(api_key: int, version: int, code: int, reason: str) -> Response | None:
    """The response that says no more than this, if those of the API have a place for it in this version."""
    response = APIS[api_key].response
    places = {field.name for field in fields_of(response) if version in field.versions}
    if "error_code" not in places:
        return None
    values: dict[str, Any] = {"error_code": int(code)}
    return response(**values, error_message=reason) if "error_message" in places else response(**values)


def has_header_tags(api_key: int, version: int) -> bool:
    """A response to `api_key` has a tagged section in its header."""
    return api_key != API_VERSIONS_KEY and version >= _FLEXIBLE_FROM[api_key]
