"""Kafka's wire protocol: messages as typed classes, compiled into functions that read and write them.

`messages/` declares one module per API in the language of `schema`; `compiler_decode` and `compiler_encode`
turn a declaration into straight-line code for one version at its first use; `api` knows keys, headers and
frames.

Decoding never raises: whatever a peer sends is a message or a `Malformed` that says why not.
"""

from penstock.codec.kafka import messages
from penstock.codec.kafka.api import (
    APIS,
    Api,
    Encoded,
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_body_in_steps,
    encode_request,
    encode_response_in_steps,
    encode_response_parts,
    refusal_of,
)
from penstock.codec.kafka.bounds import BOUNDS, RequestBound
from penstock.codec.kafka.error_codes import ErrorCode
from penstock.codec.kafka.message_codec import decode, decode_in_steps, encode
from penstock.codec.kafka.messages import *  # noqa: F403  every request and response, by its name
from penstock.codec.kafka.primitives import Malformed, OverBound
from penstock.codec.kafka.schema import NO_UUID, BytesLike, Message, Request, Response

__all__ = [
    "APIS",
    "Api",
    "BOUNDS",
    "BytesLike",
    "Encoded",
    "ErrorCode",
    "Malformed",
    "Message",
    "NO_UUID",
    "OverBound",
    "Request",
    "RequestBound",
    "RequestHeader",
    "Response",
    "decode",
    "decode_in_steps",
    "decode_request_header",
    "decode_response",
    "encode",
    "encode_body_in_steps",
    "encode_request",
    "encode_response_in_steps",
    "encode_response_parts",
    "refusal_of",
]
__all__ += messages.__all__
