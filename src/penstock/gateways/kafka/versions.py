"""ApiVersions: which requests this node takes, in which versions, and which features are switched on.

Only APIs that have a handler are told. Produce is told from version 0 on, though batches older than v2 are refused:
librdkafka 2.0 takes a broker without Produce 0 for one that cannot read compressed batches, and silently sends them
uncompressed.

Features are Kafka's: clients look at the finalized `transaction.version` to learn whether every end of a transaction
gives them a new epoch (KIP-890), and at `group.version` for the consumer protocol (KIP-848).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.codec.kafka import APIS, ErrorCode
from penstock.codec.kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from penstock.domain.transaction.state import VERSION_TWO
from penstock.gateways.kafka.context import RequestContext

# Kafka's rule for a client's name and for its version: they end up in the names of metrics.
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
NAMES_FROM: Final = 3
# Clients before version 4 cannot read a feature whose levels begin at 0, so it is left out, as Kafka leaves it out.
LEVEL_ZERO_FROM: Final = 4

# The highest level of each, which is also the one that is switched on: there is no way to choose another.
FEATURES: Final = {"group.version": 1, "share.version": 1, "transaction.version": VERSION_TWO}
# Grows when levels change, which they never do while a node runs. A client believes nothing below 0.
FEATURES_EPOCH: Final = 1

_FINALIZED: Final = tuple(FinalizedFeatureKey(name, level, level) for name, level in FEATURES.items())


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
        if context.api_version >= NAMES_FROM and not (
            _SOFTWARE_NAME.fullmatch(request.client_software_name)
            and _SOFTWARE_NAME.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        told = FEATURES if context.api_version >= LEVEL_ZERO_FROM else {}
        return ApiVersionsResponse(
            api_keys=self._api_keys,
            supported_features=[SupportedFeatureKey(name, 0, level) for name, level in told.items()],
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=_FINALIZED,
        )

    def unsupported(self) -> ApiVersionsResponse:
        """The answer to a version that is too new, sent in version 0 so that any client can read it."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._api_keys)
