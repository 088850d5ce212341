"""FindCoordinator: who looks after a group or a transaction.

It is this node, and the internal topic is made and replayed before it is named: the client's next request finds it
ready. What a share group has done with a partition's messages is known where the partition is, which is here too.

FindCoordinator must be there at all events: librdkafka takes a broker without it for one that cannot read LZ4, and
silently sends such batches uncompressed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation, Resource
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.node_address import NodeAddress

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
MANY_KEYS_FROM: Final = 4
SHARE_KEYS_FROM: Final = 6

REASONS: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "nobody looks after it at the moment",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not allowed to see this group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not allowed to see this transactional id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed to look for share coordinators",
    ErrorCode.INVALID_REQUEST: "no such kind of coordinator, or no key of it",
}


class CoordinatorsHandler:
    def __init__(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinators,
        admission: Admission,
        address: Callable[[], NodeAddress],
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._admission = admission
        # Asked for at every reply: with port 0 it is known only once the door listens.
        self._address = address

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        if context.api_version >= MANY_KEYS_FROM:
            found = []
            pace = context.pace()
            # Named twice, told once.
            for key in dict.fromkeys(request.coordinator_keys):
                found.append(await self._find(key, request.key_type, context))
                await pace.rest_if_due()
            return FindCoordinatorResponse(coordinators=found)
        one = await self._find(request.key, request.key_type, context)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _find(self, key: str, key_type: int, context: RequestContext) -> Coordinator:
        code = self._problem(key, key_type, context)
        if code is ErrorCode.NONE and not await self._is_ready(key_type):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code is not ErrorCode.NONE:
            return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=REASONS[code])
        address = self._address().told_to(context.local_address)
        return Coordinator(key=key, node_id=address.node_id, host=address.host, port=address.port)

    async def _is_ready(self, key_type: int) -> bool:
        return await (self._transactions.ready() if key_type == TRANSACTION else self._groups.ready())

    def _problem(self, key: str, key_type: int, context: RequestContext) -> ErrorCode:
        match key_type:
            case _ if key_type == GROUP:
                is_allowed = self._may(context, Operation.DESCRIBE, access.group(key))
                return ErrorCode.NONE if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
            case _ if key_type == TRANSACTION:
                is_allowed = self._may(context, Operation.DESCRIBE, access.transactional_id(key))
                return ErrorCode.NONE if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            case _ if key_type == SHARE and context.api_version >= SHARE_KEYS_FROM:
                if not self._may(context, Operation.CLUSTER_ACTION, CLUSTER):
                    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                return ErrorCode.NONE if _is_share_key(key) else ErrorCode.INVALID_REQUEST
            case _:
                return ErrorCode.INVALID_REQUEST

    def _may(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        return self._admission.may(context.caller, operation, resource)


def _is_share_key(key: str) -> bool:
    """`group:topic id:partition`; brokers of a cluster look for it, clients never do."""
    parts = key.rsplit(":", 2)
    return len(parts) == 3 and all(parts) and parts[2].isdecimal()
