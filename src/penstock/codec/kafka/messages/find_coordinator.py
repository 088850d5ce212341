"""FindCoordinator: the broker that looks after a group (0), a transaction (1) or a share partition (2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int8, Int16, Int32, Message, Request, Response, String, Versions


class FindCoordinatorRequest(Request, frozen=True):
    api_key = 10
    valid_versions = "0-6"
    flexible_versions = "3+"

    key: Annotated[String, Versions("0-3")] = ""
    key_type: Annotated[Int8, Versions("1+")] = 0
    coordinator_keys: Annotated[Sequence[String], Versions("4+")] = ()


class Coordinator(Message, frozen=True):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class FindCoordinatorResponse(Response, frozen=True):
    api_key = 10
    valid_versions = "0-6"
    flexible_versions = "3+"

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Annotated[Int16, Versions("0-3")] = 0
    error_message: Annotated[String | None, Versions("1-3")] = None
    node_id: Annotated[Int32, Versions("0-3")] = 0
    host: Annotated[String, Versions("0-3")] = ""
    port: Annotated[Int32, Versions("0-3")] = 0
    coordinators: Annotated[Sequence[Coordinator], Versions("4+")] = ()
