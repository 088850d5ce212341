"""DescribeCluster: brokers, controller and cluster id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int8, Int16, Int32, Message, Request, Response, String, Versions


class DescribeClusterRequest(Request, frozen=True):
    api_key = 60
    valid_versions = "0-2"
    flexible_versions = "0+"

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, Versions("1+")] = 1
    include_fenced_brokers: Annotated[Bool, Versions("2+")] = False


class DescribeClusterBroker(Message, frozen=True):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, Versions("2+")] = False


class DescribeClusterResponse(Response, frozen=True):
    api_key = 60
    valid_versions = "0-2"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Versions("1+")] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: Sequence[DescribeClusterBroker] = ()
    cluster_authorized_operations: Int32 = -0x80000000
