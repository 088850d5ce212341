"""DeleteShareGroupOffsets (KIP-932): a share group without members forgets what it knows of topics."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Message, Request, Response, String, Uuid


class DeleteShareGroupOffsetsRequestTopic(Message, frozen=True):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(Request, frozen=True):
    api_key = 92
    valid_versions = "0"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = ()


class DeleteShareGroupOffsetsResponseTopic(Message, frozen=True):
    topic_name: String = ""
    topic_id: Uuid = NO_UUID
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(Response, frozen=True):
    api_key = 92
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = ()
