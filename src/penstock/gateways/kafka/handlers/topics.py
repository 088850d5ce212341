"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords: what changes a topic's shape."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.base.long_work import Steps
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.deletion import delete_before, deleted_everywhere
from penstock.broker.partition.read import ReadProblem
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.cluster.catalog.placing import InvalidAssignment, InvalidReplication
from penstock.cluster.catalog.topic_image import Topic
from penstock.cluster.catalog.topics import (
    AlreadyExists,
    Created,
    CreateResult,
    Grown,
    GrowRefusal,
    InvalidName,
    InvalidPartitions,
    NewTopic,
    TopicCatalog,
    UnknownTopic,
)
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.codec.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.codec.kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.domain import topic_rules
from penstock.domain.config.change import describe
from penstock.domain.config.topic import DEFINITIONS
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation
from penstock.domain.topic_rules import COORDINATOR_TOPICS
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES, LOSS_CODES, READ_CODES
from penstock.gateways.kafka.store import STORE_FAILED_CODE, StoreFailed, ask_store

# For replicas to delete what was deleted: whoever is silent for longer is out of the set long since.
DELETED_MS_MAX: Final = 300_000
BY_DEFAULT: Final = -1
# As Kafka's controller: what one request makes is looked at, stored and opened as a whole. More take more requests.
NEW_PARTITIONS_MAX: Final = 10_000


_GROW_CODES: Final[Mapping[type[StoreFailed | GrowRefusal], ErrorCode]] = {
    StoreFailed: STORE_FAILED_CODE,
    InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    InvalidReplication: ErrorCode.INVALID_REPLICATION_FACTOR,
    InvalidAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
}


class TopicsHandler:
    def __init__(self, broker: Broker, catalog: TopicCatalog, admission: Admission) -> None:
        self._broker = broker
        self._catalog = catalog
        self._admission = admission

    # CreateTopics

    async def create_topics(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        steps = self._sort_out(request, context)
        results, wanted = await context.work.run(steps)
        outcomes: Sequence[CreateResult | StoreFailed] | StoreFailed = await ask_store(
            self._catalog.create_topics(wanted, validate_only=request.validate_only)
        )
        if isinstance(outcomes, StoreFailed):
            outcomes = [outcomes] * len(wanted)
        answers = iter(zip(wanted, outcomes, strict=True))
        topics = []
        pace = context.pace()
        for result in results:
            topics.append(self._created(*next(answers), context) if result is None else result)
            await pace.rest_if_due()
        return CreateTopicsResponse(topics=topics)

    def _sort_out(
        self, request: CreateTopicsRequest, context: RequestContext
    ) -> Steps[tuple[list[CreatableTopicResult | None], list[NewTopic]]]:
        """What is refused at once, and a topic to create for each that is not."""
        results: list[CreatableTopicResult | None] = []
        wanted: list[NewTopic] = []
        counts = Counter(topic.name for topic in request.topics)
        # A name that stands there twice is refused once, as Kafka does.
        for topic in {topic.name: topic for topic in request.topics}.values():
            refusal = self._refuse_create(topic, counts, context)
            results.append(refusal)
            if refusal is None:
                wanted.append(self._new_topic(topic))
            yield
        count = sum(new.partition_count for new in wanted)
        if count > NEW_PARTITIONS_MAX:
            reason = f"{count} partitions in one request, at most {NEW_PARTITIONS_MAX} are made at a time"
            refused = [
                CreatableTopicResult(name=new.name, error_code=ErrorCode.POLICY_VIOLATION, error_message=reason)
                for new in wanted
            ]
            left = iter(refused)
            return [next(left) if result is None else result for result in results], []
        return results, wanted

    def _refuse_create(
        self, topic: CreatableTopic, counts: Mapping[str, int], context: RequestContext
    ) -> CreatableTopicResult | None:
        def refused(code: ErrorCode, reason: str) -> CreatableTopicResult:
            return CreatableTopicResult(name=topic.name, error_code=code, error_message=reason)

        if not (
            self._admission.may(context.caller, Operation.CREATE, CLUSTER)
            or self._admission.may(context.caller, Operation.CREATE, access.topic(topic.name))
        ):
            return refused(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.caller} may not create topic {topic.name!r}"
            )
        if counts[topic.name] > 1:
            return refused(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named more than once")
        if topic.assignments:
            return self._refuse_assignments(topic)
        if topic.num_partitions != BY_DEFAULT:
            reason = topic_rules.check_partition_count(topic.num_partitions)
            if reason is not None:
                return refused(ErrorCode.INVALID_PARTITIONS, reason)
        return None

    def _refuse_assignments(self, topic: CreatableTopic) -> CreatableTopicResult | None:
        def refused(code: ErrorCode, reason: str) -> CreatableTopicResult:
            return CreatableTopicResult(name=topic.name, error_code=code, error_message=reason)

        if topic.num_partitions != BY_DEFAULT or topic.replication_factor != BY_DEFAULT:
            return refused(
                ErrorCode.INVALID_REQUEST,
                "give either an assignment or the numbers of partitions and replicas",
            )
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            return refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions {indexes} are not numbered from 0 without gaps",
            )
        return None

    def _new_topic(self, topic: CreatableTopic) -> NewTopic:
        count = len(topic.assignments) or topic.num_partitions
        if count == BY_DEFAULT:
            count = self._broker.config.default_partitions
        overrides = {config.name: config.value for config in topic.configs}
        by_index = sorted(topic.assignments, key=lambda each: each.partition_index)
        assignment = tuple(tuple(each.broker_ids) for each in by_index) or None
        return NewTopic(topic.name, count, overrides, topic.replication_factor, assignment)

    def _created(
        self, wanted: NewTopic, outcome: CreateResult | StoreFailed, context: RequestContext
    ) -> CreatableTopicResult:
        if isinstance(outcome, Created):
            return self._creation_result(outcome.topic, context)
        if isinstance(outcome, AlreadyExists):
            code, reason = ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {wanted.name!r} exists already"
        elif isinstance(outcome, InvalidName):
            code, reason = ErrorCode.INVALID_TOPIC_EXCEPTION, outcome.reason
        elif isinstance(outcome, StoreFailed):
            code, reason = STORE_FAILED_CODE, outcome.reason
        elif isinstance(outcome, InvalidPartitions):
            code, reason = ErrorCode.INVALID_PARTITIONS, outcome.reason
        elif isinstance(outcome, InvalidReplication):
            code, reason = ErrorCode.INVALID_REPLICATION_FACTOR, outcome.reason
        elif isinstance(outcome, InvalidAssignment):
            code, reason = ErrorCode.INVALID_REPLICA_ASSIGNMENT, outcome.reason
        else:
            code, reason = ErrorCode.INVALID_CONFIG, outcome.reason
        return CreatableTopicResult(name=wanted.name, error_code=code, error_message=reason)

    def _creation_result(self, topic: Topic, context: RequestContext) -> CreatableTopicResult:
        if not self._admission.may(context.caller, Operation.DESCRIBE_CONFIGS, access.topic(topic.name)):
            return CreatableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                configs=None,
            )
        entries = describe(DEFINITIONS, topic.overrides, self._broker.topic_defaults)
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            error_message=None,
            num_partitions=topic.partition_count,
            replication_factor=topic.replication,
            configs=[
                CreatableTopicConfigs(entry.name, entry.value, entry.is_read_only, entry.source, entry.is_sensitive)
                for entry in entries
            ],
        )

    # DeleteTopics

    async def delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        counts = Counter((state.name, state.topic_id) for state in wanted)
        # What is named twice is refused once, and nothing of it deleted.
        unique = {(state.name, state.topic_id): state for state in wanted}
        responses = []
        pace = context.pace()
        for key, state in unique.items():
            responses.append(_named_badly(state, counts[key]) or await self._delete(state, context))
            await pace.rest_if_due()
        return DeleteTopicsResponse(responses=responses)

    async def _delete(self, state: DeleteTopicState, context: RequestContext) -> DeletableTopicResult:
        by_id = state.topic_id != NO_UUID
        topic = self._catalog.by_id(state.topic_id) if by_id else self._catalog.by_name(state.name or "")
        name = state.name if topic is None else topic.name
        is_hidden = topic is not None and not self._admission.may(
            context.caller, Operation.DESCRIBE, access.topic(topic.name)
        )

        def answered(code: int, reason: str | None = None) -> DeletableTopicResult:
            return DeletableTopicResult(
                # Who names an id learns no name, and who names a name no id, unless he may describe the topic.
                name=state.name if is_hidden else name,
                topic_id=state.topic_id if topic is None or is_hidden else topic.topic_id,
                error_code=code,
                error_message=reason,
            )

        if name and not self._admission.may(context.caller, Operation.DELETE, access.topic(name)):
            return answered(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.caller} may not delete this topic")
        if topic is None:
            missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answered(missing, f"there is no topic {name or state.topic_id.hex()!r}")
        if topic.name in COORDINATOR_TOPICS:
            return answered(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name!r} is what coordinators remember by")
        outcome = await ask_store(self._catalog.delete_topic(topic.name))
        if isinstance(outcome, StoreFailed):
            return answered(STORE_FAILED_CODE, outcome.reason)
        if isinstance(outcome, UnknownTopic):
            return answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} has just been deleted")
        return answered(ErrorCode.NONE)

    # CreatePartitions

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        counts = Counter(topic.name for topic in request.topics)
        results = []
        pace = context.pace()
        for topic in {topic.name: topic for topic in request.topics}.values():
            await pace.rest_if_due()
            if counts[topic.name] > 1:
                reason = f"topic {topic.name!r} is named more than once"
                results.append(CreatePartitionsTopicResult(topic.name, ErrorCode.INVALID_REQUEST, reason))
            else:
                results.append(await self._grow(topic, context, validate_only=request.validate_only))
        return CreatePartitionsResponse(results=results)

    async def _grow(
        self, topic: CreatePartitionsTopic, context: RequestContext, *, validate_only: bool
    ) -> CreatePartitionsTopicResult:
        def refused(code: ErrorCode, reason: str) -> CreatePartitionsTopicResult:
            return CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=reason)

        if not self._admission.may(context.caller, Operation.ALTER, access.topic(topic.name)):
            return refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.caller} may not alter {topic.name!r}")
        if topic.name in COORDINATOR_TOPICS:
            # Which partition a group or a transaction belongs to depends on how many there are.
            reason = f"the number of partitions of {topic.name!r} is fixed when it is made"
            return refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        existing = self._catalog.by_name(topic.name)
        added = 0 if existing is None else topic.count - existing.partition_count
        if added > NEW_PARTITIONS_MAX and topic.count <= topic_rules.PARTITIONS_MAX:
            reason = f"{added} new partitions in one request, at most {NEW_PARTITIONS_MAX} are made at a time"
            return refused(ErrorCode.POLICY_VIOLATION, reason)
        assignment = tuple(tuple(each.broker_ids) for each in topic.assignments or ()) or None
        outcome = await ask_store(
            self._catalog.create_partitions(topic.name, topic.count, assignment=assignment, validate_only=validate_only)
        )
        if isinstance(outcome, Grown):
            return CreatePartitionsTopicResult(name=topic.name)
        if isinstance(outcome, UnknownTopic):
            return refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name!r}")
        return refused(_GROW_CODES[type(outcome)], outcome.reason)

    # DeleteRecords

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        timeout_ms = min(max(request.timeout_ms, 0), DELETED_MS_MAX)
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        topics = []
        pace = context.pace()
        waiting: dict[tuple[str, int], Commitment] = {}
        for topic in request.topics:
            counts = Counter(partition.partition_index for partition in topic.partitions)
            results = []
            for partition in {partition.partition_index: partition for partition in topic.partitions}.values():
                index = partition.partition_index
                if counts[index] > 1:
                    # Which of two offsets is meant is nobody's guess, and what is deleted does not come back.
                    results.append(DeleteRecordsPartitionResult(index, -1, ErrorCode.INVALID_REQUEST))
                else:
                    results.append(await self._delete_before(topic.name, index, partition.offset, context, waiting))
                await pace.rest_if_due()
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        if waiting:
            topics = [await _told_everywhere(topic, waiting, deadline) for topic in topics]
        return DeleteRecordsResponse(topics=topics)

    async def _delete_before(
        self,
        name: str,
        index: int,
        offset: int,
        context: RequestContext,
        waiting: dict[tuple[str, int], Commitment],
    ) -> DeleteRecordsPartitionResult:
        def answered(code: int, low_watermark: int = -1) -> DeleteRecordsPartitionResult:
            return DeleteRecordsPartitionResult(index, low_watermark, code)

        if not self._admission.may(context.caller, Operation.DELETE, access.topic(name)):
            return answered(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        shell = self._broker.find(name, index)
        if isinstance(shell, NotHere):
            return answered(ABSENCE_CODES[shell.why])
        outcome = await delete_before(shell, offset)
        if isinstance(outcome, ReadProblem):
            return answered(READ_CODES[outcome])
        told = deleted_everywhere(shell, outcome)
        if told is not None:
            waiting[name, index] = told
        return answered(ErrorCode.NONE, outcome)


async def _told_everywhere(
    topic: DeleteRecordsTopicResult, waiting: dict[tuple[str, int], Commitment], deadline: float
) -> DeleteRecordsTopicResult:
    """With an error for those whose replicas have not said in time that theirs are gone, too."""
    results = []
    for result in topic.partitions:
        commitment = waiting.get((topic.name, result.partition_index))
        code = ErrorCode.NONE if commitment is None else await _loss_code(commitment, deadline)
        failed = DeleteRecordsPartitionResult(result.partition_index, -1, code)
        results.append(result if code == ErrorCode.NONE else failed)
    return DeleteRecordsTopicResult(name=topic.name, partitions=results)


async def _loss_code(commitment: Commitment, deadline: float) -> ErrorCode:
    try:
        async with asyncio.timeout_at(deadline):
            await commitment.kept()
    except TimeoutError:
        commitment.settle(Loss.TIMEOUT)
    return ErrorCode.NONE if commitment.loss is None else LOSS_CODES[commitment.loss]


def _named_badly(state: DeleteTopicState, count: int) -> DeletableTopicResult | None:
    """A topic goes by its name or by its id. Both could mean two topics, and one of them would be lost by mistake."""
    is_by_name, is_by_id = bool(state.name), state.topic_id != NO_UUID
    if count == 1 and is_by_name != is_by_id:
        return None
    reason = "is named more than once" if count > 1 else "is named by its name or by its id, one of them"
    return DeletableTopicResult(
        name=state.name,
        topic_id=state.topic_id,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"topic {state.name or state.topic_id.hex()!r} {reason}",
    )
