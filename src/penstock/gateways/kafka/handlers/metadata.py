"""Metadata, DescribeCluster, DescribeTopicPartitions: which topics there are, and who leads what.

Asking for a topic that does not exist creates it where the client allows it and the node is set so: this is the only
request that creates topics by itself. It creates a few at a time: of the others a client hears that they have no leader
yet, and asks again.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Final

from penstock.base.long_work import Steps, all_at_once
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.topics import InvalidName
from penstock.codec.kafka import NO_UUID, Encoded, ErrorCode, Response, encode_body_in_steps
from penstock.codec.kafka.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.codec.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from penstock.codec.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.domain import topic_rules
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.cluster_view import ClusterView, Endpoint, Placement
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers.metadata_cache import ReplyCache
from penstock.gateways.kafka.store import StoreFailed, ask_store

NOT_ASKED: Final = -0x80000000
ENDPOINT_BROKERS: Final = 1
ENDPOINT_CONTROLLERS: Final = 2
# As Kafka's max.request.partition.size.limit.
PARTITIONS_PER_REPLY_MAX: Final = 2_000
# Names that are looked up at once: half a millisecond.
AT_ONCE_MAX: Final = 500
# Partitions of one topic that are described at once: half a millisecond.
PARTITIONS_AT_ONCE: Final = 500
# Partitions of a reply that is kept for others: half a millisecond's encoding. Shorter ones cost less than looking.
SHARED_FROM: Final = 200
# Topics that one request creates because it named them. Clients that wait for a leader ask again after 100 ms, so a
# thousand new topics are there after seconds; and one of a misled client leaves a hundred behind, not all of them.
CREATED_MAX: Final = 100
# Topics that all clients together are having created in this way at a time.
CREATING_MAX: Final = 500


class MetadataHandler:
    def __init__(self, broker: Broker, admission: Admission, cluster: ClusterView) -> None:
        self._broker = broker
        self._admission = admission
        self._cluster = cluster
        self._replies = ReplyCache()
        # Topics being created because somebody named them.
        self._creating = 0

    def metadata(
        self, request: MetadataRequest, context: RequestContext
    ) -> Steps[Response] | Coroutine[object, object, Response]:
        if not request.allow_auto_topic_creation or not self._broker.config.auto_create_topics:
            return self._answer(request, context, {})
        if len(request.topics or ()) > AT_ONCE_MAX:
            return self._create_some_and_answer(request, context)
        missing = all_at_once(self._to_create(request, context))
        if missing:
            return self._create_and_answer(request, missing, context)
        return self._answer(request, context, {})

    def _to_create(self, request: MetadataRequest, context: RequestContext) -> Steps[list[str]]:
        missing = []
        for name in sorted({topic.name for topic in request.topics or () if topic.name}):
            if (
                self._broker.topic(name) is None
                and not topic_rules.is_internal(name)
                and self._admission.may(context.caller, Operation.DESCRIBE, access.topic(name))
            ):
                missing.append(name)
            yield
        return missing

    def _may_create(self, name: str, context: RequestContext) -> bool:
        may = self._admission.may
        return may(context.caller, Operation.CREATE, CLUSTER) or may(
            context.caller, Operation.CREATE, access.topic(name)
        )

    async def _create_some_and_answer(self, request: MetadataRequest, context: RequestContext) -> Response:
        missing = await context.work.run(self._to_create(request, context))
        return await self._create_and_answer(request, missing, context)

    async def _create_and_answer(
        self, request: MetadataRequest, missing: list[str], context: RequestContext
    ) -> Response:
        refused: dict[str, ErrorCode] = {}
        allowed: list[str] = []
        pace = context.pace()
        for name in missing:
            if self._may_create(name, context):
                allowed.append(name)
                refused[name] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await pace.rest_if_due()
        await self._create(allowed[: min(CREATED_MAX, CREATING_MAX - self._creating)], refused)
        return await context.work.run(self._answer(request, context, refused))

    async def _create(self, names: Sequence[str], refused: dict[str, ErrorCode]) -> None:
        """Notes what is refused for good; what another time may bring stays as it is noted."""
        self._creating += len(names)
        try:
            for name in names:
                outcome = await ask_store(self._broker.create_topic_by_default(name))
                if isinstance(outcome, InvalidName):
                    refused[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
                elif not isinstance(outcome, StoreFailed):
                    del refused[name]
        finally:
            self._creating -= len(names)

    def _answer(
        self, request: MetadataRequest, context: RequestContext, refused: dict[str, ErrorCode]
    ) -> Steps[Response]:
        # In version 0 an empty list asks for all topics; later null does.
        wants_all = request.topics is None or (context.api_version == 0 and not request.topics)
        named = None if wants_all else tuple(dict.fromkeys(request.topics or ()))
        shared = yield from self._shared(request, named, context)
        if shared is not None:
            return shared
        with_operations = request.include_topic_authorized_operations
        topics: list[MetadataResponseTopic] = []
        if named is None:
            for topic in self._broker.topics():
                if self._admission.may(context.caller, Operation.DESCRIBE, topic.resource):
                    topics.append((yield from self._describe(topic, context, with_operations=with_operations)))
                yield
        else:
            # Named twice, told once.
            for wanted in named:
                topics.append((yield from self._find(wanted, context, refused, with_operations=with_operations)))
                yield
        cluster_operations = NOT_ASKED
        if request.include_cluster_authorized_operations:
            cluster_operations = self._admission.operations(context.caller, CLUSTER)
        return self._response(topics, self._cluster.endpoints(context.local_address), cluster_operations)

    def _response(
        self, topics: list[MetadataResponseTopic], endpoints: Sequence[Endpoint], cluster_operations: int = NOT_ASKED
    ) -> MetadataResponse:
        return MetadataResponse(
            brokers=[MetadataResponseBroker(each.node_id, each.host, each.port, each.rack) for each in endpoints],
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            topics=topics,
            cluster_authorized_operations=cluster_operations,
        )

    def _shared(
        self, request: MetadataRequest, named: Sequence[MetadataRequestTopic] | None, context: RequestContext
    ) -> Steps[Response | None]:
        """The reply that others get too, if it is a long one; None: it is short, or for this caller alone."""
        if request.include_topic_authorized_operations or request.include_cluster_authorized_operations:
            return None
        topics = self._plainly_asked(named)
        if sum(topic.partition_count for topic in topics) < SHARED_FROM:
            return None
        seen = [topic for topic in topics if self._admission.may(context.caller, Operation.DESCRIBE, topic.resource)]
        if named is not None and len(seen) < len(topics):
            return None
        stamp, endpoints = self._cluster.stamp, self._cluster.endpoints(context.local_address)
        key = (context.api_version, tuple(endpoints), tuple(topic.topic_id for topic in seen))
        body = self._replies.get(stamp, key)
        if body is not None:
            return Encoded(MetadataRequest.api_key, body)
        described = []
        for topic in seen:
            described.append((yield from self._describe(topic, context, with_operations=False)))
            yield
        encoded = yield from encode_body_in_steps(self._response(described, endpoints), context.api_version)
        if stamp == self._cluster.stamp:
            self._replies.put(stamp, key, encoded.body)
        return encoded

    def _plainly_asked(self, named: Sequence[MetadataRequestTopic] | None) -> Sequence[ServedTopic]:
        """Those that are asked for, if each is there and named by its name."""
        if named is None:
            return self._broker.topics()
        found = [self._broker.topic(wanted.name or "") for wanted in named if wanted.topic_id == NO_UUID]
        topics = [topic for topic in found if topic is not None]
        return topics if len(topics) == len(named) else ()

    def _find(
        self,
        wanted: MetadataRequestTopic,
        context: RequestContext,
        refused: dict[str, ErrorCode],
        *,
        with_operations: bool,
    ) -> Steps[MetadataResponseTopic]:
        by_id = wanted.topic_id != NO_UUID
        name = wanted.name or ""
        topic = self._broker.topic_by_id(wanted.topic_id) if by_id else self._broker.topic(name)
        resource = access.topic(name) if topic is None else topic.resource
        is_hidden = not self._admission.may(context.caller, Operation.DESCRIBE, resource)
        if topic is not None and not is_hidden:
            return (yield from self._describe(topic, context, with_operations=with_operations))
        if by_id:
            # Whoever knows an id may learn that it is one, as with Kafka; not what it stands for.
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                name=None if context.api_version >= 12 else "",
                topic_id=wanted.topic_id,
            )
        if is_hidden:
            return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        code = refused.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_rules.check_name(name) is not None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(error_code=code, name=name)

    def _describe(
        self, topic: ServedTopic, context: RequestContext, *, with_operations: bool
    ) -> Steps[MetadataResponseTopic]:
        partitions: list[MetadataResponsePartition] = []
        for first in range(0, topic.partition_count, PARTITIONS_AT_ONCE):
            if first:
                yield
            partitions += map(_partition, self._cluster.placements(topic, first, PARTITIONS_AT_ONCE))
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.description.is_internal,
            partitions=partitions,
            topic_authorized_operations=(
                self._admission.operations(context.caller, topic.resource) if with_operations else NOT_ASKED
            ),
        )

    def describe_cluster(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type != ENDPOINT_BROKERS:
            is_known = request.endpoint_type == ENDPOINT_CONTROLLERS
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"endpoint type {request.endpoint_type}: only brokers (1) are listed here",
            )
        operations = NOT_ASKED
        if request.include_cluster_authorized_operations:
            operations = self._admission.operations(context.caller, CLUSTER)
        return DescribeClusterResponse(
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            brokers=[
                DescribeClusterBroker(each.node_id, each.host, each.port, each.rack)
                for each in self._cluster.endpoints(context.local_address)
            ],
            cluster_authorized_operations=operations,
        )

    # DescribeTopicPartitions: the same facts in pages

    def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> Steps[DescribeTopicPartitionsResponse]:
        if _is_cursor_wrong(request):
            refused = [
                DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, each.name) for each in request.topics
            ]
            return DescribeTopicPartitionsResponse(topics=refused)
        room = max(1, min(request.response_partition_limit, PARTITIONS_PER_REPLY_MAX))
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        for name in self._names_from(request, context):
            first = 0
            if request.cursor is not None and request.cursor.topic_name == name:
                first = max(0, request.cursor.partition_index)
            if room == 0:
                return DescribeTopicPartitionsResponse(topics=topics, next_cursor=Cursor(name, first))
            entry, count = self._page(name, context, first=first, room=room)
            topics.append(entry)
            yield
            room -= len(entry.partitions)
            if first + len(entry.partitions) < count:
                cursor = Cursor(name, first + len(entry.partitions))
                return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
        return DescribeTopicPartitionsResponse(topics=topics)

    def _names_from(self, request: DescribeTopicPartitionsRequest, context: RequestContext) -> Sequence[str]:
        names = sorted({topic.name for topic in request.topics}) or [
            topic.name
            for topic in self._broker.topics()
            if self._admission.may(context.caller, Operation.DESCRIBE, topic.resource)
        ]
        if request.cursor is None:
            return names
        start = request.cursor.topic_name
        return [name for name in names if name >= start]

    def _page(
        self, name: str, context: RequestContext, *, first: int, room: int
    ) -> tuple[DescribeTopicPartitionsResponseTopic, int]:
        """One topic's partitions from `first` on, at most `room` of them, and how many it has in all."""
        if not self._admission.may(context.caller, Operation.DESCRIBE, access.topic(name)):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return DescribeTopicPartitionsResponseTopic(error_code=code, name=name), 0
        topic = self._broker.topic(name)
        if topic is None:
            operations = self._admission.operations(context.caller, access.topic(name))
            unknown = DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_authorized_operations=operations
            )
            return unknown, 0
        partitions = [
            DescribeTopicPartitionsResponsePartition(
                partition_index=each.index,
                error_code=each.error_code,
                leader_id=each.leader,
                leader_epoch=each.epoch,
                replica_nodes=each.replicas,
                isr_nodes=each.in_sync,
                eligible_leader_replicas=each.eligible,
                last_known_elr=(),
                offline_replicas=each.offline,
            )
            for each in self._cluster.placements(topic, first, room)
        ]
        entry = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.description.is_internal,
            partitions=partitions,
            topic_authorized_operations=self._admission.operations(context.caller, topic.resource),
        )
        return entry, topic.partition_count


def _partition(placed: Placement) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=placed.index,
        error_code=placed.error_code,
        leader_id=placed.leader,
        leader_epoch=placed.epoch,
        replica_nodes=placed.replicas,
        isr_nodes=placed.in_sync,
        offline_replicas=placed.offline,
    )


def _is_cursor_wrong(request: DescribeTopicPartitionsRequest) -> bool:
    """Of those that were asked for by name it points to none, or to none of its partitions."""
    cursor = request.cursor
    names = [topic.name for topic in request.topics]
    return cursor is not None and bool(names) and (cursor.partition_index < 0 or cursor.topic_name not in names)
