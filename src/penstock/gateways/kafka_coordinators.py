"""FindCoordinator: who looks after a group or a transaction.

Nobody yet: groups and transactions are not served. It is answered all the same, because librdkafka takes a broker
without FindCoordinator for one that cannot read LZ4, and silently sends such batches uncompressed.
"""

from __future__ import annotations

from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.gateways.kafka_context import RequestContext

MANY_KEYS_FROM = 4
REASON = "consumer groups and transactions are not served yet"


def find_coordinator(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if context.api_version < MANY_KEYS_FROM:
        return FindCoordinatorResponse(error_code=code, error_message=REASON, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=REASON)
            for key in request.coordinator_keys
        ]
    )
