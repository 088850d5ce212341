"""DeleteTopics: by name, and from version 6 on also by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Int16,
    Int32,
    Message,
    Nullable,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class DeleteTopicState(Message, frozen=True):
    name: String | None = None
    topic_id: Uuid = NO_UUID


class DeleteTopicsRequest(Request, frozen=True):
    api_key = 20
    valid_versions = "1-6"
    flexible_versions = "4+"

    topics: Annotated[Sequence[DeleteTopicState], Versions("6+")] = ()
    topic_names: Annotated[Sequence[String], Versions("0-5")] = ()
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message, frozen=True):
    name: Annotated[String | None, Nullable("6+")] = ""
    topic_id: Annotated[Uuid, Versions("6+")] = NO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("5+")] = None


class DeleteTopicsResponse(Response, frozen=True):
    api_key = 20
    valid_versions = "1-6"
    flexible_versions = "4+"

    throttle_time_ms: Int32 = 0
    responses: Sequence[DeletableTopicResult] = ()
