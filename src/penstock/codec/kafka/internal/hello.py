"""Hello: the first request of a node that has logged in at another. Each says who it is, and which cluster it means."""

from __future__ import annotations

from penstock.codec.kafka.schema import Int16, Int32, Int64, Request, Response, String


class HelloRequest(Request, frozen=True):
    api_key = 20_000
    valid_versions = "0"
    flexible_versions = "0+"

    cluster_id: String = ""
    node_id: Int32 = -1
    broker_epoch: Int64 = -1
    feature_level: Int16 = 0


class HelloResponse(Response, frozen=True):
    """With an error too it says who answers: the caller's log names both."""

    api_key = 20_000
    valid_versions = "0"
    flexible_versions = "0+"

    error_code: Int16 = 0
    error_message: String | None = None
    cluster_id: String = ""
    node_id: Int32 = -1
    broker_epoch: Int64 = -1
    feature_level: Int16 = 0
