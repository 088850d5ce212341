"""The SQS door: AWS's JSON protocol, and the older query protocol, on the HTTP port.

    POST /                       x-amz-target: AmazonSQS.SendMessage, or a form with Action=SendMessage
    POST /ACCOUNT/QUEUE          the same; what the query protocol says there about the queue is its URL

Signatures are not checked until there are credentials to check them with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.base.chance import Chance
from penstock.base.log_events import get_logger
from penstock.broker.machine.portions import JournalDamagedError
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.codec.sqs import messages
from penstock.codec.sqs.errors import SqsError
from penstock.codec.sqs.messages import ACTIONS, Unreadable
from penstock.codec.sqs.query import MalformedQueryError, fields_of
from penstock.codec.sqs.xml_reply import encode_error, encode_reply
from penstock.gateways.caller import Caller
from penstock.gateways.http.door import HttpDoor, caller_of
from penstock.gateways.http.problem import ProblemError
from penstock.gateways.sqs.access import RIGHTS, SqsAccess, require_client
from penstock.gateways.sqs.context import SqsContext, SqsRefusal, region_of
from penstock.gateways.sqs.messages import SqsMessages
from penstock.gateways.sqs.queues import SqsQueues
from penstock.gateways.sqs.tasks import SqsTasks

log = get_logger("sqs")

TARGET_PREFIX: Final = "AmazonSQS."
JSON_TYPE: Final = "application/x-amz-json-1.0"
XML_TYPE: Final = "text/xml"
# A form of a batch of ten messages with ten attributes each has some 400 fields.
FIELDS_MAX: Final = 2_000
# AWS takes 1 MiB of messages at a time; escaped as JSON or in a form each letter of them may take six.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024


class _AccountConvertor(Convertor[str]):
    """Digits; not a number, which might have more of them than Python reads."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("account", _AccountConvertor())

Action = Callable[[Any, SqsContext], Awaitable[messages.Message]]


class SqsDoor:
    def __init__(
        self,
        door: HttpDoor,
        access: SqsAccess,
        queues: SqsQueues,
        sqs_messages: SqsMessages,
        tasks: SqsTasks,
        chance: Chance,
    ) -> None:
        self._door = door
        self._access = access
        self._chance = chance
        self._actions: dict[str, Action] = {
            "AddPermission": queues.add_permission,
            "CancelMessageMoveTask": tasks.cancel_message_move_task,
            "ChangeMessageVisibility": sqs_messages.change_message_visibility,
            "ChangeMessageVisibilityBatch": sqs_messages.change_message_visibility_batch,
            "CreateQueue": queues.create_queue,
            "DeleteMessage": sqs_messages.delete_message,
            "DeleteMessageBatch": sqs_messages.delete_message_batch,
            "DeleteQueue": queues.delete_queue,
            "GetQueueAttributes": queues.get_queue_attributes,
            "GetQueueUrl": queues.get_queue_url,
            "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
            "ListMessageMoveTasks": tasks.list_message_move_tasks,
            "ListQueueTags": queues.list_queue_tags,
            "ListQueues": queues.list_queues,
            "PurgeQueue": queues.purge_queue,
            "ReceiveMessage": sqs_messages.receive_message,
            "RemovePermission": queues.remove_permission,
            "SendMessage": sqs_messages.send_message,
            "SendMessageBatch": sqs_messages.send_message_batch,
            "SetQueueAttributes": queues.set_queue_attributes,
            "StartMessageMoveTask": tasks.start_message_move_task,
            "TagQueue": queues.tag_queue,
            "UntagQueue": queues.untag_queue,
        }
        assert self._actions.keys() == RIGHTS.keys(), "every action has its rights"

    def routes(self) -> list[Route]:
        return [
            Route("/", self._answer, methods=["POST", "GET"]),
            Route("/{account:account}/{queue}", self._answer, methods=["POST", "GET"]),
        ]

    async def _answer(self, request: Request) -> Response:
        request_id = str(self._chance.uuid())
        target = request.headers.get("x-amz-target", "")
        is_json = target.startswith(TARGET_PREFIX)
        action = target.removeprefix(TARGET_PREFIX)
        try:
            async with self._door.body(request, bytes_max=BODY_BYTES_MAX) as body:
                if is_json:
                    await self._door.check_values(body)
                else:
                    form = _form_of(request, body)
                    action = form.get("Action", "")
                kind = ACTIONS.get(action)
                if kind is None or action not in self._actions:
                    reason = f"The action {action[:100]} is not valid for this endpoint."
                    raise SqsRefusal(SqsError.INVALID_ACTION, reason)
                if not is_json:
                    require_client(action, request.headers.get("authorization", ""))
                asked = messages.decode_json(kind, body) if is_json else _read_form(kind, form, action, request)
            if isinstance(asked, Unreadable):
                error = SqsError.MISSING_PARAMETER if asked.is_missing else SqsError.INVALID_PARAMETER_VALUE
                raise SqsRefusal(error, asked.reason)
            caller = caller_of(request)
            self._access.check(caller, action, asked)
            reply = await self._actions[action](asked, _context_of(request, caller, self._door))
        except SqsRefusal as refusal:
            return _refused(refusal.error, str(refusal), request_id, is_json=is_json)
        except (ProblemError, StoreUnavailableError, JournalDamagedError, MalformedQueryError) as error:
            return _refused(_error_of(error), str(error), request_id, is_json=is_json)
        except Exception as error:  # edge of a request
            log.error("request failed", action=action, error=repr(error), exc_info=error)
            return _refused(SqsError.INTERNAL_FAILURE, "the node's log says more", request_id, is_json=is_json)
        headers = {"x-amzn-RequestId": request_id}
        if is_json:
            return Response(messages.encode_json(reply), media_type=JSON_TYPE, headers=headers)
        return Response(encode_reply(action, reply, request_id), media_type=XML_TYPE, headers=headers)


def _form_of(request: Request, body: bytes) -> dict[str, str]:
    text = body.decode(errors="replace") if request.method == "POST" else request.url.query
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        raise SqsRefusal(SqsError.MALFORMED_REQUEST, f"more than {FIELDS_MAX} parameters") from None


def _read_form(
    kind: type[messages.Message], form: dict[str, str], action: str, request: Request
) -> messages.Message | Unreadable:
    fields = fields_of(form, action)
    if "queue" in request.path_params and issubclass(kind, messages.ToQueue):
        fields.setdefault("QueueUrl", request.url.path)
    return messages.convert(kind, fields)


def _context_of(request: Request, caller: Caller, door: HttpDoor) -> SqsContext:
    base_url = f"{request.url.scheme}://{request.url.netloc}"
    region = region_of(request.headers.get("authorization", ""))
    return SqsContext(caller, base_url, region, attend=partial(door.attend, request))


def _error_of(error: Exception) -> SqsError:
    if isinstance(error, ProblemError):
        return SqsError.INVALID_PARAMETER_VALUE
    if isinstance(error, JournalDamagedError):
        return SqsError.DAMAGED
    return SqsError.MALFORMED_REQUEST if isinstance(error, MalformedQueryError) else SqsError.SERVICE_UNAVAILABLE


def _refused(error: SqsError, message: str, request_id: str, *, is_json: bool) -> Response:
    headers = {"x-amzn-RequestId": request_id}
    if not is_json:
        body = encode_error(error.query_code, message, request_id, is_sender_fault=error.is_sender_fault)
        return Response(body, error.status, media_type=XML_TYPE, headers=headers)
    headers["x-amzn-query-error"] = f"{error.query_code};{'Sender' if error.is_sender_fault else 'Receiver'}"
    fields = {"__type": f"com.amazonaws.sqs#{error.shape}", "message": message}
    return Response(msgspec.json.encode(fields), error.status, media_type=JSON_TYPE, headers=headers)
