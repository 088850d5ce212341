"""FindCoordinator: who looks after a group or a transaction.

It is the node that leads the partition of the internal topic to which the group or the transactional id belongs. The
topic is made before anybody is named; where this node leads, it is replayed too, so the client's next request finds it
ready. What a share group has done with a partition's messages is known where the partition is led.

FindCoordinator must be there at all events: librdkafka takes a broker without it for one that cannot read LZ4, and
silently sends such batches uncompressed.
"""

from __future__ import annotations

import base64
from typing import Final

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.topic.broker import Broker
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.domain.replication.state import NO_LEADER
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation, Resource
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.cluster_view import ClusterView, Endpoint
from penstock.gateways.kafka.context import RequestContext

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
        broker: Broker,
        groups: GroupCoordinator,
        transactions: TransactionCoordinators,
        admission: Admission,
        cluster: ClusterView,
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._transactions = transactions
        self._admission = admission
        self._cluster = cluster

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
        if code is not ErrorCode.NONE:
            return _nobody(key, code)
        found = await self._endpoint(key, key_type, context)
        if found is None:
            return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Coordinator(key=key, node_id=found.node_id, host=found.host, port=found.port)

    async def _endpoint(self, key: str, key_type: int, context: RequestContext) -> Endpoint | None:
        """None: nobody leads the partition at the moment, or the internal topic cannot be made."""
        is_transaction = key_type == TRANSACTION
        coordinators = self._transactions if is_transaction else self._groups
        if not await coordinators.ready():
            return None
        if key_type == SHARE:
            leader = self._share_leader(key)
        else:
            topic = self._broker.topic(TRANSACTION_STATE if is_transaction else CONSUMER_OFFSETS)
            leader = NO_LEADER if topic is None else self._cluster.leader(topic, coordinators.partition_of(key))
        return self._cluster.endpoint(leader, context.local_address)

    def _share_leader(self, key: str) -> int:
        """Of a partition that nobody knows this node tells as much as any other."""
        _, topic_id, index = key.rsplit(":", 2)
        topic = self._broker.topic_by_id(_decoded_id(topic_id))
        return self._cluster.node_id if topic is None else self._cluster.leader(topic, int(index))

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


def _nobody(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=REASONS[code])


def _decoded_id(text: str) -> bytes:
    """As Kafka writes a topic's id; empty where this is none."""
    try:
        return base64.urlsafe_b64decode(text + "==")
    except ValueError:
        return b""


def _is_share_key(key: str) -> bool:
    """`group:topic id:partition`; brokers of a cluster look for it, clients never do."""
    parts = key.rsplit(":", 2)
    return len(parts) == 3 and all(parts) and parts[2].isdecimal()
