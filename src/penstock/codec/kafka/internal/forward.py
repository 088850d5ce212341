"""Forward: what a door was asked for and another node has to do, because it leads the partition.

`kind` says what the body is; the bodies are the doors' own and nobody on the way reads them. It is decided under the
leadership that is named, or not at all.
"""

from __future__ import annotations

from penstock.codec.kafka.schema import NO_UUID, Bytes, Int16, Int32, Request, Response, String, Uuid


class ForwardRequest(Request, frozen=True):
    api_key = 20_003
    valid_versions = "0"
    flexible_versions = "0+"

    kind: Int16 = 0
    topic_id: Uuid = NO_UUID
    partition: Int32 = -1
    # -1: whichever it is by now.
    leader_epoch: Int32 = -1
    timeout_ms: Int32 = 0
    body: Bytes = b""


class ForwardResponse(Response, frozen=True):
    api_key = 20_003
    valid_versions = "0"
    flexible_versions = "0+"

    error_code: Int16 = 0
    error_message: String | None = None
    # Who leads, as far as is known, where this node does not.
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    body: Bytes = b""
