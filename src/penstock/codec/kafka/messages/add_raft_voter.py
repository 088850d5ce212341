"""AddRaftVoter: one more controller votes on the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Bool,
    Int16,
    Int32,
    Message,
    Request,
    Response,
    String,
    Uint16,
    Uuid,
    Versions,
)


class Listener(Message, frozen=True):
    name: String = ""
    host: String = ""
    port: Uint16 = 0


class AddRaftVoterRequest(Request, frozen=True):
    api_key = 80
    valid_versions = "0-1"
    flexible_versions = "0+"

    cluster_id: String | None = None
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    listeners: Sequence[Listener] = ()
    ack_when_committed: Annotated[Bool, Versions("1+")] = True


class AddRaftVoterResponse(Response, frozen=True):
    api_key = 80
    valid_versions = "0-1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
