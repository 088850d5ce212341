"""SQS queues: made, described, changed, listed, tagged, purged, deleted. Queue `name` is topic `name`, group `sqs`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.broker.queue.delivery import NoSuchQueue, QueueDelivery, QueueTotals
from penstock.broker.queue.node import NodeQueues, QueueUnavailable
from penstock.cluster.catalog.topics import AlreadyExists, Created, TopicCatalog
from penstock.codec.sqs import messages
from penstock.codec.sqs.errors import SqsError
from penstock.domain import topic_rules
from penstock.domain.config.change import ConfigChange, ConfigOperation
from penstock.domain.queue.definition import (
    QueueDefinition,
    QueueName,
    QueueOptions,
    Start,
    check_dead_letter_topic,
)
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.caller import Caller
from penstock.gateways.sqs import attributes as sqs_attributes
from penstock.gateways.sqs.access import GROUP, SqsAccess
from penstock.gateways.sqs.attributes import DEFAULTS, FIFO_SUFFIX, TAG_PREFIX, AttributeProblem, RedrivePolicy
from penstock.gateways.sqs.context import (
    SqsContext,
    SqsRefusal,
    invalid,
    no_such_queue,
    queue_of_url,
    queue_unavailable,
)

TAGS_MAX: Final = 50
PAGE_MAX: Final = 1_000
# Attributes that are taken away by an empty value.
EMPTIED: Final = frozenset({"RedrivePolicy", "RedriveAllowPolicy", "Policy"})
# A message of a megabyte and what belongs to it.
_MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


class SqsQueues:
    def __init__(self, queues: NodeQueues, delivery: QueueDelivery, topics: TopicCatalog, rights: SqsAccess) -> None:
        self._queues = queues
        self._delivery = delivery
        self._topics = topics
        self._rights = rights

    def find(self, queue_url: str) -> QueueDefinition:
        queue = queue_of_url(queue_url)
        definition = self._queues.get(QueueName(queue, GROUP))
        if definition is None:
            raise no_such_queue(queue)
        return definition

    async def create_queue(self, request: messages.CreateQueue, context: SqsContext) -> messages.Message:
        name, attributes = request.queue_name, dict(request.attributes)
        is_fifo = attributes.get("FifoQueue") == "true"
        if is_fifo != name.endswith(FIFO_SUFFIX) or not _NAME.fullmatch(name.removesuffix(FIFO_SUFFIX)):
            raise invalid(
                f"Queue name {name[:100]!r}: up to 80 letters, digits, hyphens and underscores, and {FIFO_SUFFIX} "
                "at the end of FIFO queues and only of those."
            )
        self._rights.require_to_create(context.caller, name, has_topic=self._queues.broker.topic(name) is not None)
        if topic_rules.is_internal(name):
            raise invalid(f"Queue name {name[:100]!r}: names of the broker's own topics are not for queues.")
        _raise(sqs_attributes.check(attributes, is_fifo=is_fifo))
        self._check_allowed(context.caller, name, attributes)
        _check_tags(request.tags)
        existing = self._queues.get(QueueName(name, GROUP))
        if existing is not None:
            self._compare(existing, attributes)
            return messages.QueueUrlReply(queue_url=context.queue_url(name))
        start = await self._make_topic(name, attributes, is_fifo=is_fifo)
        options = sqs_attributes.options_of(attributes, request.tags, start=start)
        await self._queues.define(QueueName(name, GROUP), options)
        return messages.QueueUrlReply(queue_url=context.queue_url(name))

    def _check_allowed(self, caller: Caller, name: str, attributes: Mapping[str, str]) -> None:
        """A queue may refuse to take the dead letters of others. One that is not there yet has refused nothing."""
        policy = sqs_attributes.redrive_policy(attributes)
        if not isinstance(policy, RedrivePolicy):
            return
        dead_letters = policy.dead_letter_queue
        problem = check_dead_letter_topic(dead_letters, name)
        if problem is not None:
            raise invalid(f"RedrivePolicy: {problem}.")
        # The broker writes there on behalf of whoever says so.
        self._rights.require(caller, Operation.WRITE, access.topic(dead_letters))
        target = self._queues.get(QueueName(dead_letters, GROUP))
        allowed = sqs_attributes.redrive_allow_policy({} if target is None else target.options.attributes)
        if not isinstance(allowed, AttributeProblem) and not allowed.allows(name):
            raise invalid(
                f"RedrivePolicy: the RedriveAllowPolicy of {dead_letters} does not allow it to be the "
                f"dead-letter queue of {name}."
            )

    def _compare(self, existing: QueueDefinition, attributes: dict[str, str]) -> None:
        known = {**DEFAULTS, **sqs_attributes.attributes_of(existing.options)}
        for name, value in attributes.items():
            if known.get(name) != value:
                raise SqsRefusal(
                    SqsError.QUEUE_NAME_EXISTS,
                    f"A queue already exists with the same name and a different value for attribute {name}",
                )

    async def _make_topic(self, name: str, attributes: dict[str, str], *, is_fifo: bool) -> Start:
        """0 on a new topic; on one that is there already the end, unless the beginning was asked for."""
        retention_ms = int(attributes.get("MessageRetentionPeriod", DEFAULTS["MessageRetentionPeriod"])) * 1000
        is_spread = not is_fifo or attributes.get("DeduplicationScope") == "messageGroup"
        partition_count = self._queues.broker.config.default_partitions if is_spread else 1
        overrides = {
            "retention.ms": str(retention_ms),
            "max.message.bytes": str(_MESSAGE_BYTES_MAX),
            # Whatever the node's default is: its Kafka producers may delay messages as its SQS clients do.
            "penstock.delivery.headers": "true",
        }
        outcome = await self._topics.create_topic(name, partition_count, overrides)
        if isinstance(outcome, Created):
            return Start.EARLIEST
        if not isinstance(outcome, AlreadyExists):
            raise invalid(f"Queue name {name[:100]!r}: {outcome.reason}")
        return Start(attributes.get("PenstockStart", Start.LATEST))

    async def delete_queue(self, request: messages.DeleteQueue, _context: SqsContext) -> messages.Message:
        """Its topic stays if others read it: another queue, or whoever made the topic without one."""
        definition = self.find(request.queue_url)
        await self._queues.delete(definition.name)
        return messages.Nothing()

    async def get_queue_url(self, request: messages.GetQueueUrl, context: SqsContext) -> messages.Message:
        definition = self.find(request.queue_name)
        return messages.QueueUrlReply(queue_url=context.queue_url(definition.name.topic))

    async def list_queues(self, request: messages.ListQueues, context: SqsContext) -> messages.Message:
        names = [name for name in self._names(context.caller) if name.startswith(request.queue_name_prefix)]
        page, token = _page(names, request.next_token, request.max_results)
        return messages.ListQueuesReply(queue_urls=[context.queue_url(name) for name in page], next_token=token)

    def _names(self, caller: Caller) -> list[str]:
        names = [each.name.topic for each in self._queues.all() if each.name.group == GROUP]
        return [name for name in names if self._rights.may_see(caller, name)]

    async def list_dead_letter_source_queues(
        self, request: messages.ListDeadLetterSourceQueues, context: SqsContext
    ) -> messages.Message:
        target = self.find(request.queue_url).name.topic
        sources = [
            each.name.topic
            for each in self._queues.all()
            if each.name.group == GROUP
            and each.options.dead_letter_topic == target
            and self._rights.may_see(context.caller, each.name.topic)
        ]
        page, token = _page(sources, request.next_token, request.max_results)
        urls = [context.queue_url(name) for name in page]
        return messages.ListDeadLetterSourceQueuesReply(queue_urls=urls, next_token=token)

    # Attributes

    async def get_queue_attributes(self, request: messages.GetQueueAttributes, context: SqsContext) -> messages.Message:
        definition = self.find(request.queue_url)
        for name in request.attribute_names:
            if name not in sqs_attributes.KNOWN:
                raise SqsRefusal(SqsError.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:100]}.")
        totals = await self._delivery.totals(definition.name, by=context.caller)
        if isinstance(totals, NoSuchQueue):
            raise no_such_queue(definition.name.topic)
        if isinstance(totals, QueueUnavailable):
            raise queue_unavailable(totals)
        if totals.incomplete:
            # An attribute has no room to say so.
            raise queue_unavailable(QueueUnavailable(f"no answer from {', '.join(totals.incomplete)}"))
        known = _described(definition, totals, context)
        wanted = known if "All" in request.attribute_names else set(request.attribute_names)
        return messages.GetQueueAttributesReply(
            attributes={name: value for name, value in known.items() if name in wanted}
        )

    async def set_queue_attributes(self, request: messages.SetQueueAttributes, context: SqsContext) -> messages.Message:
        definition = self.find(request.queue_url)
        is_fifo = definition.name.topic.endswith(FIFO_SUFFIX)
        for fixed in ("FifoQueue", "PenstockStart"):
            known = sqs_attributes.attributes_of(definition.options).get(fixed)
            if fixed in request.attributes and request.attributes[fixed] != known:
                raise SqsRefusal(SqsError.INVALID_ATTRIBUTE_VALUE, f"{fixed} cannot be changed.")
        _raise(sqs_attributes.check(request.attributes, is_fifo=is_fifo))
        self._check_allowed(context.caller, definition.name.topic, request.attributes)
        if "MessageRetentionPeriod" in request.attributes:
            self._rights.require(context.caller, Operation.ALTER_CONFIGS, access.topic(definition.name.topic))

        def change(options: QueueOptions) -> QueueOptions:
            merged = {**sqs_attributes.attributes_of(options), **request.attributes}
            # An empty policy takes it away.
            kept = {name: value for name, value in merged.items() if value or name not in EMPTIED}
            return sqs_attributes.options_of(kept, sqs_attributes.tags_of(options), start=options.start)

        await self._queues.change(definition.name, change)
        if "MessageRetentionPeriod" in request.attributes:
            retention_ms = int(request.attributes["MessageRetentionPeriod"]) * 1000
            retention = ConfigChange("retention.ms", ConfigOperation.SET, str(retention_ms))
            await self._topics.change_config(definition.name.topic, [retention])
        return messages.Nothing()

    async def purge_queue(self, request: messages.PurgeQueue, context: SqsContext) -> messages.Message:
        outcome = await self._delivery.purge(self.find(request.queue_url).name, by=context.caller)
        if isinstance(outcome, QueueUnavailable):
            raise queue_unavailable(outcome)
        return messages.Nothing()

    async def add_permission(self, request: messages.AddPermission, _context: SqsContext) -> messages.Message:
        self.find(request.queue_url)
        raise SqsRefusal(
            SqsError.UNSUPPORTED_OPERATION, "AddPermission: rights are given by ACLs here, not by queue policies."
        )

    async def remove_permission(self, request: messages.RemovePermission, _context: SqsContext) -> messages.Message:
        self.find(request.queue_url)
        raise SqsRefusal(
            SqsError.UNSUPPORTED_OPERATION, "RemovePermission: rights are given by ACLs here, not by queue policies."
        )

    # Tags

    async def tag_queue(self, request: messages.TagQueue, _context: SqsContext) -> messages.Message:
        definition = self.find(request.queue_url)
        _check_tags({**sqs_attributes.tags_of(definition.options), **request.tags})
        added = {f"{TAG_PREFIX}{name}": value for name, value in request.tags.items()}
        await self._queues.change(definition.name, lambda options: _with(options, {**options.attributes, **added}))
        return messages.Nothing()

    async def untag_queue(self, request: messages.UntagQueue, _context: SqsContext) -> messages.Message:
        definition = self.find(request.queue_url)
        gone = {f"{TAG_PREFIX}{name}" for name in request.tag_keys}

        def change(options: QueueOptions) -> QueueOptions:
            return _with(options, {name: value for name, value in options.attributes.items() if name not in gone})

        await self._queues.change(definition.name, change)
        return messages.Nothing()

    async def list_queue_tags(self, request: messages.ListQueueTags, _context: SqsContext) -> messages.Message:
        return messages.ListQueueTagsReply(tags=sqs_attributes.tags_of(self.find(request.queue_url).options))


def _described(definition: QueueDefinition, totals: QueueTotals, context: SqsContext) -> dict[str, str]:
    return {
        **DEFAULTS,
        **sqs_attributes.attributes_of(definition.options),
        "QueueArn": context.queue_arn(definition.name.topic),
        "ApproximateNumberOfMessages": str(totals.backlog_count + totals.waiting_count + totals.blocked_count),
        "ApproximateNumberOfMessagesNotVisible": str(totals.leased_count),
        "ApproximateNumberOfMessagesDelayed": str(totals.delayed_count),
        "CreatedTimestamp": str(definition.created_ms // 1000),
        "LastModifiedTimestamp": str(definition.changed_ms // 1000),
    }


def _with(options: QueueOptions, attributes: dict[str, str]) -> QueueOptions:
    return msgspec.structs.replace(options, attributes=attributes)


def _page(names: list[str], token: str | None, max_results: int | None) -> tuple[list[str], str | None]:
    """Sorted by name; the token is the last name of the page before."""
    if max_results is not None and not 1 <= max_results <= PAGE_MAX:
        raise invalid(f"MaxResults is {max_results}, from 1 to {PAGE_MAX} is allowed.")
    left = sorted(name for name in names if token is None or name > token)
    count = max_results or PAGE_MAX
    return left[:count], left[count - 1] if len(left) > count and max_results is not None else None


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise invalid(f"{len(tags)} tags, a queue has {TAGS_MAX} at most.")


def _raise(problem: AttributeProblem | None) -> None:
    if problem is not None:
        raise SqsRefusal(problem.error, problem.reason)
