"""InitProducerId: an identity for an idempotent producer, so that its retries are recognised."""

from __future__ import annotations

from collections.abc import Coroutine

from penstock.cluster.producer_ids import ProducerIds
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.domain.access import CLUSTER, Authorizer, Operation
from penstock.gateways.kafka_context import RequestContext


class ProducersHandler:
    def __init__(self, producer_ids: ProducerIds, authorizer: Authorizer) -> None:
        self._producer_ids = producer_ids
        self._authorizer = authorizer

    def init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse | Coroutine[object, object, InitProducerIdResponse]:
        if not self._authorizer.authorize(context.principal, Operation.IDEMPOTENT_WRITE, CLUSTER):
            return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if request.transactional_id is not None:
            # Said as Kafka says it of a node that coordinates no transactions.
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        # Whatever id it had before, a producer without transactions starts anew, as with Kafka: nobody can tell that
        # the one who asks is the one who had it.
        producer_id = self._producer_ids.take_now()
        if producer_id is None:
            return self._take()
        return InitProducerIdResponse(producer_id=producer_id)

    async def _take(self) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=await self._producer_ids.take())
