"""The attributes of SQS queues: which there are, what they may be, and what they mean for a queue and its topic.

They are stored as they were given, so that whoever reads them back finds them as they are with AWS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from penstock.base.typed_values import read_json
from penstock.codec.sqs.errors import SqsError
from penstock.domain.queue.definition import QueueOptions, Start
from penstock.domain.queue.values import Ordering

FIFO_SUFFIX: Final = ".fifo"
# Of SQS, for its clients; other doors have no maximum.
DELAY_SECONDS_MAX: Final = 900
DEFAULTS: Final[Mapping[str, str]] = {
    "VisibilityTimeout": "30",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "DelaySeconds": "0",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "false",
}
# Name, lowest, highest.
_NUMBERS: Final = {
    "VisibilityTimeout": (0, 43_200),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "DelaySeconds": (0, DELAY_SECONDS_MAX),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_CHOICES: Final = {
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
    "SqsManagedSseEnabled": ("true", "false"),
    # Ours: where a queue on a topic that exists already begins.
    "PenstockStart": ("earliest", "latest"),
}
_FIFO_ONLY: Final = frozenset({"ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"})
_TEXTS: Final = frozenset({"Policy", "KmsMasterKeyId", "RedrivePolicy", "RedriveAllowPolicy"})
# Told by GetQueueAttributes, and set by nobody.
READ_ONLY: Final = (
    "QueueArn",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
)
SETTABLE: Final = frozenset({*_NUMBERS, *_CHOICES, *_TEXTS})
KNOWN: Final = frozenset({*SETTABLE, *READ_ONLY, "All"})
TAG_PREFIX: Final = "tag:"
RECEIVES_MAX: Final = 1_000
_DIGITS_MAX: Final = 18
SOURCES_MAX: Final = 10


class AttributeProblem(msgspec.Struct, frozen=True):
    error: SqsError
    reason: str


class RedrivePolicy(msgspec.Struct, frozen=True):
    dead_letter_queue: str
    receives_max: int


class RedriveAllowPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """Which queues may have this one for their dead letters."""

    redrive_permission: Literal["allowAll", "denyAll", "byQueue"] = "allowAll"
    source_queue_arns: list[str] = []

    def allows(self, queue: str) -> bool:
        if self.redrive_permission != "byQueue":
            return self.redrive_permission == "allowAll"
        return any(queue_of_arn(arn) == queue for arn in self.source_queue_arns)


def check(attributes: Mapping[str, str], *, is_fifo: bool) -> AttributeProblem | None:
    """The first thing that is wrong with them."""
    for name, value in attributes.items():
        if name not in SETTABLE:
            return AttributeProblem(SqsError.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:100]}.")
        if name in _FIFO_ONLY and not is_fifo:
            return AttributeProblem(
                SqsError.INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true."
            )
        reason = _wrong_value(name, value)
        if reason is not None:
            return AttributeProblem(SqsError.INVALID_ATTRIBUTE_VALUE, reason)
    allowed = redrive_allow_policy(attributes)
    if isinstance(allowed, AttributeProblem):
        return allowed
    if attributes.get("RedrivePolicy"):
        policy = redrive_policy(attributes)
        if isinstance(policy, AttributeProblem):
            return policy
        if policy is not None and policy.dead_letter_queue.endswith(FIFO_SUFFIX) != is_fifo:
            return AttributeProblem(
                SqsError.INVALID_PARAMETER_VALUE,
                "RedrivePolicy: the dead-letter queue of a FIFO queue is a FIFO queue, and only of those.",
            )
    return None


def _wrong_value(name: str, value: str) -> str | None:
    if name in _NUMBERS:
        lowest, highest = _NUMBERS[name]
        if not _is_number(value) or not lowest <= int(value) <= highest:
            return f"Invalid value for the parameter {name}: {value[:40]!r}, from {lowest} to {highest} is allowed."
    elif name in _CHOICES and value not in _CHOICES[name]:
        return f"Invalid value for the parameter {name}: {value[:40]!r}, one of {', '.join(_CHOICES[name])} is meant."
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def redrive_policy(attributes: Mapping[str, str]) -> RedrivePolicy | AttributeProblem | None:
    text = attributes.get("RedrivePolicy", "")
    if not text:
        return None
    wrong = AttributeProblem(
        SqsError.INVALID_PARAMETER_VALUE,
        'RedrivePolicy: a JSON object with "deadLetterTargetArn" and "maxReceiveCount" '
        f"from 1 to {RECEIVES_MAX} is meant.",
    )
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return wrong
    if not isinstance(fields, dict):
        return wrong
    arn, count = fields.get("deadLetterTargetArn"), str(fields.get("maxReceiveCount", ""))
    if not isinstance(arn, str) or queue_of_arn(arn) is None or not _is_number(count):
        return wrong
    if not 1 <= int(count) <= RECEIVES_MAX:
        return wrong
    return RedrivePolicy(queue_of_arn(arn) or "", int(count))


def redrive_allow_policy(attributes: Mapping[str, str]) -> RedriveAllowPolicy | AttributeProblem:
    text = attributes.get("RedriveAllowPolicy", "")
    wrong = AttributeProblem(
        SqsError.INVALID_PARAMETER_VALUE,
        'RedriveAllowPolicy: a JSON object is meant, with "redrivePermission" allowAll, denyAll or byQueue, and with '
        f'"sourceQueueArns" of 1 to {SOURCES_MAX} queues for byQueue and only for that.',
    )
    try:
        policy = read_json(text or "{}", RedriveAllowPolicy)
    except (msgspec.DecodeError, RecursionError):
        return wrong
    count = len(policy.source_queue_arns)
    is_fitting = 1 <= count <= SOURCES_MAX if policy.redrive_permission == "byQueue" else count == 0
    return policy if is_fitting else wrong


def queue_of_arn(arn: str) -> str | None:
    """The queue's name in arn:aws:sqs:REGION:ACCOUNT:NAME."""
    parts = arn.split(":")
    is_queue = len(parts) == 6 and parts[0] == "arn" and parts[2] == "sqs" and bool(parts[5])
    return parts[5] if is_queue else None


def options_of(attributes: Mapping[str, str], tags: Mapping[str, str], *, start: Start) -> QueueOptions:
    """Of attributes that were checked."""
    effective = {**DEFAULTS, **attributes}
    policy = redrive_policy(attributes)
    is_fifo = attributes.get("FifoQueue") == "true"
    return QueueOptions(
        ordering=Ordering.KEY if is_fifo else Ordering.NONE,
        # A timeout of 0 makes a message visible again at once; a lease has some length.
        lease_ms=max(int(effective["VisibilityTimeout"]) * 1000, 1),
        deliveries_max=policy.receives_max if isinstance(policy, RedrivePolicy) else 0,
        dead_letter_topic=policy.dead_letter_queue if isinstance(policy, RedrivePolicy) else "",
        start=start,
        attributes={**attributes, **{f"{TAG_PREFIX}{name}": value for name, value in tags.items()}},
    )


def attributes_of(options: QueueOptions) -> dict[str, str]:
    """As they were given."""
    return {name: value for name, value in options.attributes.items() if not name.startswith(TAG_PREFIX)}


def tags_of(options: QueueOptions) -> dict[str, str]:
    return {
        name.removeprefix(TAG_PREFIX): value
        for name, value in options.attributes.items()
        if name.startswith(TAG_PREFIX)
    }
