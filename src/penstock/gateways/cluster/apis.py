"""Which requests other nodes may send, and who answers each. What clients are answered with is answered by the same
handlers; rights are not asked for again, the node that was asked by a client has done so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from penstock.broker.parts import Parts
from penstock.codec.kafka import Request
from penstock.codec.kafka.internal.barrier import BarrierRequest
from penstock.codec.kafka.internal.describe_replica import DescribeReplicaRequest
from penstock.codec.kafka.internal.forward import ForwardRequest
from penstock.codec.kafka.internal.hello import HelloRequest
from penstock.codec.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest
from penstock.codec.kafka.messages.fetch import FetchRequest
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest
from penstock.codec.kafka.messages.write_txn_markers import WriteTxnMarkersRequest
from penstock.gateways.admission import Admission
from penstock.gateways.cluster.hello import HelloHandler
from penstock.gateways.cluster.replicas import ReplicaHandlers
from penstock.gateways.kafka.context import Handler
from penstock.gateways.kafka.handlers.group.offsets import GroupOffsetsHandler
from penstock.gateways.kafka.handlers.offsets import OffsetsHandler
from penstock.gateways.kafka.handlers.produce import ProduceHandler
from penstock.gateways.kafka.handlers.transaction.admin import TransactionsAdminHandler
from penstock.gateways.kafka.handlers.transaction.requests import TransactionsHandler
from penstock.gateways.kafka.sasl import SaslHandler
from penstock.gateways.kafka.versions import ApiVersionsHandler


def make_handlers(
    parts: Parts, admission: Admission, *, hello: HelloHandler, replicas: ReplicaHandlers, sasl: SaslHandler
) -> dict[int, Handler]:
    broker, groups, transactions = parts.broker, parts.groups, parts.transactions
    markers = TransactionsAdminHandler(broker, transactions, parts.markers, admission)
    producers = TransactionsHandler(broker, transactions, groups, admission)
    table: dict[type[Request], Callable[[Any, Any], Any]] = {
        SaslHandshakeRequest: sasl.sasl_handshake,
        SaslAuthenticateRequest: sasl.sasl_authenticate,
        HelloRequest: hello.hello,
        FetchRequest: replicas.fetch,
        BarrierRequest: replicas.barrier,
        DescribeReplicaRequest: replicas.describe,
        ForwardRequest: replicas.forward,
        ProduceRequest: ProduceHandler(broker, admission, transactions, parts.delays).produce,
        WriteTxnMarkersRequest: markers.write_txn_markers,
        AddPartitionsToTxnRequest: producers.add_partitions_to_txn,
        ListOffsetsRequest: OffsetsHandler(broker, admission, parts.site.readers).list_offsets,
        OffsetFetchRequest: GroupOffsetsHandler(broker, groups, admission).offset_fetch,
    }
    versions = ApiVersionsHandler([*(request.api_key for request in table), ApiVersionsRequest.api_key])
    table[ApiVersionsRequest] = versions.api_versions
    return {request.api_key: cast(Handler, handler) for request, handler in table.items()}
