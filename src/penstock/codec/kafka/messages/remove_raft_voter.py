"""RemoveRaftVoter: a controller votes no longer on the metadata."""

from __future__ import annotations

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Request, Response, String, Uuid


class RemoveRaftVoterRequest(Request, frozen=True):
    api_key = 81
    valid_versions = "0"
    flexible_versions = "0+"

    cluster_id: String | None = None
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID


class RemoveRaftVoterResponse(Response, frozen=True):
    api_key = 81
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
