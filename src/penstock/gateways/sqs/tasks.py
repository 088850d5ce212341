"""SQS message move tasks: dead letters of an SQS queue go back to where they came from, or to another queue."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec

from penstock.base.typed_values import read_json
from penstock.broker.queue.node import NodeQueues, QueueUnavailable
from penstock.broker.queue.redrive import NoSuchLetters, Redrives, TaskOver, TaskRunning
from penstock.codec.sqs import messages
from penstock.codec.sqs.errors import SqsError
from penstock.domain.queue.definition import QueueName
from penstock.domain.queue.redrive import RedriveState, RedriveTask
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.caller import Caller
from penstock.gateways.sqs.access import GROUP, SqsAccess
from penstock.gateways.sqs.attributes import FIFO_SUFFIX, queue_of_arn
from penstock.gateways.sqs.context import SqsContext, SqsRefusal, invalid, queue_unavailable

RATE_MAX: Final = 500
RESULTS_MAX: Final = 10
# What AWS says when a message does not tell the queue it came from.
UNKNOWN_SOURCE: Final = "CouldNotDetermineMessageSource"


class TaskHandle(msgspec.Struct, frozen=True, rename="camel"):
    """What clients hold, base64 of its JSON, as theirs look with AWS."""

    task_id: str
    source_arn: str


class SqsTasks:
    def __init__(self, queues: NodeQueues, redrives: Redrives, rights: SqsAccess) -> None:
        self._queues = queues
        self._redrives = redrives
        self._rights = rights

    async def start_message_move_task(
        self, request: messages.StartMessageMoveTask, context: SqsContext
    ) -> messages.Message:
        source = self._queue_of(context.caller, request.source_arn, "SourceArn")
        target = (
            self._queue_of(context.caller, request.destination_arn, "DestinationArn")
            if request.destination_arn
            else None
        )
        await self._require_targets(context.caller, source.topic, None if target is None else target.topic)
        if not self._is_dead_letter_queue(source):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        if target is not None and target.topic.endswith(FIFO_SUFFIX) != source.topic.endswith(FIFO_SUFFIX):
            raise invalid("Source queue and destination queue must be of the same type: both FIFO, or neither.")
        rate = request.max_number_of_messages_per_second
        if rate is not None and not 1 <= rate <= RATE_MAX:
            raise invalid(
                f"Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid. "
                f"Reason: You must enter a value that's between 1 and {RATE_MAX}."
            )
        outcome = await self._redrives.begin(
            source, author=context.caller.principal, target=target.topic if target else None, rate=rate or 0
        )
        if isinstance(outcome, TaskRunning):
            raise SqsRefusal(
                SqsError.UNSUPPORTED_OPERATION,
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                "time.",
            )
        if isinstance(outcome, QueueUnavailable):
            raise queue_unavailable(outcome)
        if not isinstance(outcome, RedriveTask):
            raise invalid(outcome.reason)
        return messages.StartMessageMoveTaskReply(task_handle=_write_handle(outcome.id, request.source_arn))

    async def cancel_message_move_task(
        self, request: messages.CancelMessageMoveTask, context: SqsContext
    ) -> messages.Message:
        handle = _read_handle(request.task_handle)
        # By the task itself: what the handle says of its source anybody can write.
        task = self._redrives.get(handle.task_id)
        if task is not None:
            self._rights.require_to_take(context.caller, task.source.topic)
        outcome = await self._redrives.cancel(handle.task_id)
        if isinstance(outcome, NoSuchLetters):
            raise SqsRefusal(SqsError.RESOURCE_NOT_FOUND, "Task does not exist.")
        if isinstance(outcome, TaskOver):
            raise SqsRefusal(SqsError.UNSUPPORTED_OPERATION, "Only active tasks can be cancelled.")
        return messages.CancelMessageMoveTaskReply(approximate_number_of_messages_moved=outcome.moved_count)

    async def list_message_move_tasks(
        self, request: messages.ListMessageMoveTasks, context: SqsContext
    ) -> messages.Message:
        source = self._queue_of(context.caller, request.source_arn, "SourceArn")
        if not 1 <= request.max_results <= RESULTS_MAX:
            raise invalid(
                f"Value {request.max_results} for parameter MaxResults is invalid. "
                f"Reason: Value for parameter MaxResults must be between 1 and {RESULTS_MAX}."
            )
        found = self._redrives.tasks_of(source)[: request.max_results]
        return messages.ListMessageMoveTasksReply(
            results=[_described(task, request.source_arn, context) for task in found]
        )

    def _queue_of(self, caller: Caller, arn: str, parameter: str) -> QueueName:
        name = queue_of_arn(arn)
        if name is None:
            raise invalid(f"Value {arn[:200]} for parameter {parameter} is invalid. Reason: This is not a queue's ARN.")
        self._rights.require_to_take(caller, name)
        queue = QueueName(name, GROUP)
        if self._queues.get(queue) is None:
            raise SqsRefusal(
                SqsError.RESOURCE_NOT_FOUND,
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            )
        return queue

    async def _require_targets(self, caller: Caller, source: str, target: str | None) -> None:
        """Without a target messages go back to where they came from: each is asked for when it goes, and here only
        so that whoever may do nothing is told at once."""
        targets = [target] if target is not None else []
        if target is None and (found := await self._redrives.scan.describe(source)) is not None:
            targets = sorted({each.topic for each in found.sources})
        if targets and not any(self._rights.may_write(caller, name) for name in targets):
            self._rights.require(caller, Operation.WRITE, access.topic(targets[0]))

    def _is_dead_letter_queue(self, name: QueueName) -> bool:
        """Of any queue, whichever door made it."""
        return any(each.options.dead_letters_of(each.name.topic) == name.topic for each in self._queues.all())


def _described(task: RedriveTask, source_arn: str, context: SqsContext) -> messages.MoveTask:
    is_running = task.state is RedriveState.RUNNING
    return messages.MoveTask(
        task_handle=_write_handle(task.id, source_arn) if is_running else None,
        status=task.state.value.upper(),
        source_arn=source_arn,
        destination_arn=None if task.target is None else context.queue_arn(task.target),
        max_number_of_messages_per_second=task.rate or None,
        approximate_number_of_messages_moved=task.moved_count,
        # As with AWS: what there was at the start.
        approximate_number_of_messages_to_move=task.pending_count,
        failure_reason=_failure_of(task),
        started_timestamp=task.started_ms,
    )


def _failure_of(task: RedriveTask) -> str | None:
    if task.state is not RedriveState.FAILED:
        return None
    return UNKNOWN_SOURCE if task.lost_count and task.target is None else task.reason


def _write_handle(task_id: str, source_arn: str) -> str:
    return base64.b64encode(msgspec.json.encode(TaskHandle(task_id, source_arn))).decode()


def _read_handle(text: str) -> TaskHandle:
    try:
        return read_json(base64.b64decode(text, validate=True), TaskHandle)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise invalid("Value for parameter TaskHandle is invalid.") from None
