"""ApiVersions: which requests this node takes, and in which versions.

Only APIs that have a handler are told. Produce is told from version 0 on, though batches older than v2 are refused:
librdkafka 2.0 takes a broker without Produce 0 for one that cannot read compressed batches, and silently sends them
uncompressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.codec.wire import APIS, ErrorCode
from penstock.codec.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.gateways.kafka_context import RequestContext

# Kafka's rule for a client's name and for its version: they end up in the names of metrics.
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    def __init__(self, served_keys: Iterable[int]) -> None:
        self._api_keys = tuple(
            ApiVersion(
                api_key=key,
                min_version=APIS[key].version_min,
                max_version=APIS[key].version_max,
            )
            for key in sorted(served_keys)
        )

    def api_versions(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.api_version >= 3 and not (
            _SOFTWARE_NAME.fullmatch(request.client_software_name)
            and _SOFTWARE_NAME.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=self._api_keys)

    def unsupported(self) -> ApiVersionsResponse:
        """The answer to a version that is too new, sent in version 0 so that any client can read it."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._api_keys)
