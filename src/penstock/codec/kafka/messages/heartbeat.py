"""Heartbeat: a member of a classic group is alive, and hears whether the group is rebalancing."""

from __future__ import annotations

from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Request, Response, String, Versions


class HeartbeatRequest(Request, frozen=True):
    api_key = 12
    valid_versions = "0-4"
    flexible_versions = "4+"

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Versions("3+")] = None


class HeartbeatResponse(Response, frozen=True):
    api_key = 12
    valid_versions = "0-4"
    flexible_versions = "4+"

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
