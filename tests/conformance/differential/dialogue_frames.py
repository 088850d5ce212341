"""Frames that no client of good manners sends: what is closed, what is answered."""

from __future__ import annotations

import struct

from conformance.differential.talk import Talk, dialogue
from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest
from penstock.codec.kafka.messages.metadata import MetadataRequest
from support.door.kafka_phrases import list_offsets, metadata
from support.group.phrases import heartbeat


def frame(key: int, version: int, body: bytes = b"", client: bytes | None = b"raw", *, tags: bytes = b"") -> bytes:
    head = struct.pack(">hhih", key, version, 7, -1 if client is None else len(client))
    whole = head + (client or b"") + tags + body
    return struct.pack(">i", len(whole)) + whole


def error_of(answer: bytes) -> str:
    return ErrorCode(struct.unpack_from(">h", answer)[0]).name


@dialogue(ApiVersionsRequest)
def frames_of_unknown_requests(talk: Talk) -> None:
    talk.raw("no such API", frame(9999, 0))
    talk.raw("negative API", frame(-1, 0))
    talk.raw("an API between controllers", frame(52, 0))
    talk.raw("an API between brokers of old", frame(4, 0))
    talk.raw("ApiVersions too new", frame(18, 99), show=error_of)
    talk.raw("ApiVersions too old", frame(18, -1))
    for name, request in (
        ("Produce", wire.ProduceRequest),
        ("Metadata", MetadataRequest),
        ("Fetch", wire.FetchRequest),
    ):
        talk.raw(f"{name} too new", frame(request.api_key, 99))
        talk.raw(f"{name} of a negative version", frame(request.api_key, -1))
    talk.raw("Fetch too old", frame(1, 3))
    talk.raw("ListOffsets too old", frame(2, 0))


@dialogue(HeartbeatRequest, ListOffsetsRequest)
def frames_that_are_damaged(talk: Talk) -> None:
    version = talk.version(HeartbeatRequest)
    good = wire.encode_request(heartbeat("me", 1, group=talk.name("g")), version, 7, "raw")
    talk.raw("good", good)
    talk.raw("a byte too few", struct.pack(">i", len(good) - 5) + good[4:-1])
    talk.raw("a byte too many", struct.pack(">i", len(good) - 3) + good[4:] + b"\0")
    talk.raw("without a client", wire.encode_request(heartbeat("me", 1, group=talk.name("g")), version, 7, None))
    talk.raw("nothing", struct.pack(">i", 0))
    talk.raw("half a header", struct.pack(">i", 5) + b"\0\3\0\0\0")
    talk.raw("a negative length", struct.pack(">i", -1))
    talk.raw("a length beyond everything", struct.pack(">i", 2**31 - 1) + good[4:])
    offsets_version = talk.version(ListOffsetsRequest)
    body = wire.encode(list_offsets(talk.name("absent"), -1), offsets_version)
    tags = b"\0" if offsets_version >= 6 else b""
    talk.raw("array", frame(2, offsets_version, body, tags=tags), show=len)
    start = 4 if offsets_version < 2 else 5
    for step, length in (("negative array", b"\xff\xff\xff\xfe"), ("array beyond the end", b"\x7f\xff\xff\xff")):
        if offsets_version < 6:
            talk.raw(step, frame(2, offsets_version, body[:start] + length + body[start + 4 :]))
    text = wire.encode(metadata(talk.name("x")), 4)
    talk.raw(
        "text that is not UTF-8",
        frame(3, 4, text.replace(talk.name("x").encode(), b"\xff" * len(talk.name("x")))),
        show=len,
    )


@dialogue(HeartbeatRequest)
def answers_keep_their_order(talk: Talk) -> None:
    """Requests that are sent without waiting are answered in their order."""
    first = talk.send("first", heartbeat("me", 1, group=talk.name("g")))
    second = talk.send("second", metadata(), version=9)
    third = talk.send("third", heartbeat("you", 1, group=talk.name("g")))
    talk.hear(first)
    talk.hear(second)
    talk.hear(third)
