"""Who may do what at the SQS door: one table of the rights that each action needs.

Queue `name` is topic `name` and group `sqs`, so the rights are those of the other doors: whoever sends writes to the
topic, whoever receives reads it with the group. Asked before anything is looked for: who may not use a queue does not
learn whether there is one. An action that is not in the table is not served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.codec.sqs import messages
from penstock.codec.sqs.errors import SqsError
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation, Resource
from penstock.gateways.caller import Caller
from penstock.gateways.http.door import HttpDoor
from penstock.gateways.sqs.context import SqsRefusal, queue_of_url

GROUP: Final = "sqs"

# What is done to the queue's topic, and what to its group.
Rights = tuple[Operation | None, Operation | None]

_SEE: Final[Rights] = (Operation.DESCRIBE, None)
_SEND: Final[Rights] = (Operation.WRITE, None)
_TAKE: Final[Rights] = (Operation.READ, Operation.READ)
_CHANGE: Final[Rights] = (Operation.READ, Operation.ALTER_CONFIGS)
_END: Final[Rights] = (Operation.READ, Operation.DELETE)
# Asked by the action itself, which alone knows the queues that it is about.
_ITSELF: Final[Rights] = (None, None)

RIGHTS: Final[dict[str, Rights]] = {
    "AddPermission": _CHANGE,
    "CancelMessageMoveTask": _ITSELF,
    "ChangeMessageVisibility": _TAKE,
    "ChangeMessageVisibilityBatch": _TAKE,
    "CreateQueue": _ITSELF,
    "DeleteMessage": _TAKE,
    "DeleteMessageBatch": _TAKE,
    "DeleteQueue": _END,
    "GetQueueAttributes": _SEE,
    "GetQueueUrl": _SEE,
    "ListDeadLetterSourceQueues": _SEE,
    "ListMessageMoveTasks": _ITSELF,
    "ListQueueTags": _SEE,
    "ListQueues": _ITSELF,
    "PurgeQueue": _END,
    "ReceiveMessage": _TAKE,
    "RemovePermission": _CHANGE,
    "SendMessage": _SEND,
    "SendMessageBatch": _SEND,
    "SetQueueAttributes": _CHANGE,
    "StartMessageMoveTask": _ITSELF,
    "TagQueue": _CHANGE,
    "UntagQueue": _CHANGE,
}
# What changes nothing: a form and a link may ask it without an Authorization header.
_LOOKING: Final = frozenset(
    {"ListMessageMoveTasks", "ListQueues", *(action for action, rights in RIGHTS.items() if rights == _SEE)}
)
# AWS's signatures. Not Basic, which a page can have a browser send by a name and a password in a link.
_SCHEME: Final = "aws"


def require_client(action: str, authorization: str) -> None:
    """Whoever asks by a form or a link is an AWS client and no web page: those sign, and pages cannot."""
    if action not in _LOOKING and not authorization.lower().startswith(_SCHEME):
        raise SqsRefusal(
            SqsError.MISSING_AUTHENTICATION_TOKEN,
            f"{action} changes something: by form or GET it is taken from AWS clients only, which send an "
            "Authorization header. Any signature will do.",
        )


class SqsAccess:
    def __init__(self, door: HttpDoor) -> None:
        self._is_allowed: Callable[[Caller, Operation, Resource], bool] = door.is_allowed

    def check(self, caller: Caller, action: str, asked: messages.Message) -> None:
        of_topic, of_group = RIGHTS[action]
        if (of_topic, of_group) == _ITSELF:
            return
        queue = queue_of_url(asked.queue_url if isinstance(asked, messages.ToQueue) else _name_of(asked))
        if of_topic is not None:
            self.require(caller, of_topic, access.topic(queue))
        if of_group is not None:
            self.require(caller, of_group, access.group(GROUP))

    def require(self, caller: Caller, operation: Operation, resource: Resource) -> None:
        if not self._is_allowed(caller, operation, resource):
            raise _denied(caller, operation, resource)

    def require_to_take(self, caller: Caller, queue: str) -> None:
        self.require(caller, Operation.READ, access.topic(queue))
        self.require(caller, Operation.READ, access.group(GROUP))

    def require_to_create(self, caller: Caller, queue: str, *, has_topic: bool) -> None:
        resource = access.topic(queue)
        if not has_topic and not self._is_allowed(caller, Operation.CREATE, CLUSTER):
            self.require(caller, Operation.CREATE, resource)
        self.require(caller, Operation.READ, resource)
        self.require(caller, Operation.ALTER_CONFIGS, access.group(GROUP))

    def may_write(self, caller: Caller, queue: str) -> bool:
        return self._is_allowed(caller, Operation.WRITE, access.topic(queue))

    def may_see(self, caller: Caller, queue: str) -> bool:
        return self._is_allowed(caller, Operation.DESCRIBE, access.topic(queue))


def _name_of(asked: messages.Message) -> str:
    assert isinstance(asked, messages.GetQueueUrl), asked
    return asked.queue_name


def _denied(caller: Caller, operation: Operation, resource: Resource) -> SqsRefusal:
    kind, what = resource.type.name.lower(), operation.name.lower()
    return SqsRefusal(
        SqsError.ACCESS_DENIED, f"{caller} is not authorized to {what} the {kind} {resource.name[:100]!r}"
    )
