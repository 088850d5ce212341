"""InitProducerId: an identity for a producer.

An idempotent one gets an id that nobody else has, so that its retries are recognised. A transactional one gets the id
that belongs to its transactional id with a higher epoch, which shuts out whoever had it before and aborts what that one
left behind.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final

from penstock.broker.transaction.node import TransactionCoordinators
from penstock.cluster.producer_ids import ProducerIds
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, SOME_TOPIC, Operation
from penstock.domain.transaction.commands import InitProducer, ProducerReady, Refused
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import transaction_code

FENCED_FROM: Final = 4


class ProducersHandler:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinators, admission: Admission) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions
        self._admission = admission

    def init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse | Coroutine[object, object, InitProducerIdResponse]:
        if request.transactional_id is not None:
            return self._init_transactional(request.transactional_id, request, context)
        if not self._may_be_idempotent(context):
            return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return _refused(ErrorCode.INVALID_REQUEST)
        # Whatever id it had before, a producer without transactions starts anew, as with Kafka: nobody can tell that
        # the one who asks is the one who had it.
        producer_id = self._producer_ids.take_now()
        if producer_id is None:
            return self._take()
        return InitProducerIdResponse(producer_id=producer_id)

    def _may_be_idempotent(self, context: RequestContext) -> bool:
        """Who may write to any topic may do it safely: producers are idempotent nowadays without being told to. The
        topic need not exist: they ask before they have it created."""
        may = self._admission.may
        return may(context.caller, Operation.IDEMPOTENT_WRITE, CLUSTER) or may(
            context.caller, Operation.WRITE, SOME_TOPIC
        )

    async def _take(self) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=await self._producer_ids.take())

    async def _init_transactional(
        self, transactional_id: str, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        resource = access.transactional_id(transactional_id)
        if not self._admission.may(context.caller, Operation.WRITE, resource):
            return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        reply = await self._transactions.submit_patiently(
            InitProducer(
                transactional_id,
                request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            )
        )
        if isinstance(reply, Refused):
            return _refused(transaction_code(reply, knows_fenced=context.api_version >= FENCED_FROM))
        assert isinstance(reply, ProducerReady), reply
        return InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
