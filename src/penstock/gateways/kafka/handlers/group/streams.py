"""Streams groups (KIP-1071): refused, as by a Kafka where `streams.version` is not switched on.

Kafka Streams uses them only where `group.protocol=streams` is set, and then stops with this error; without the setting
its members are those of a classic group, which are served.
"""

from __future__ import annotations

from typing import Final

from penstock.base.long_work import Steps
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from penstock.codec.kafka.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from penstock.gateways.kafka.context import RequestContext

REASON: Final = "streams groups are not served; set group.protocol=classic"


class StreamsGroupsHandler:
    def streams_group_heartbeat(
        self,
        request: StreamsGroupHeartbeatRequest,  # noqa: ARG002
        context: RequestContext,  # noqa: ARG002
    ) -> StreamsGroupHeartbeatResponse:
        return StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REASON)

    def streams_group_describe(
        self,
        request: StreamsGroupDescribeRequest,
        context: RequestContext,  # noqa: ARG002
    ) -> Steps[StreamsGroupDescribeResponse]:
        groups = []
        for name in request.group_ids:
            groups.append(DescribedGroup(ErrorCode.UNSUPPORTED_VERSION, REASON, name))
            yield
        return StreamsGroupDescribeResponse(groups=groups)
