"""The HTTP door described: OpenAPI 3.1, made from the very structs that bodies are read into.

One line for each operation here; a route that is not described, or described and not there, fails a test.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.codec.http import cluster, fields, schedules
from penstock.codec.http import dead_letters as letters
from penstock.codec.http.node import NodeFacts
from penstock.codec.http.queues import QueueStats, SettleReply
from penstock.domain.queue.definition import NAME_CHARACTERS_MAX, QueueOptions
from penstock.domain.queue.redrive import REDRIVE_GROUP
from penstock.domain.queue.settlements import SettlementPage
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX as TOPIC_CHARACTERS_MAX
from penstock.domain.trace.events import Journey, JourneyList
from penstock.domain.trace.why import WhyAnswer
from penstock.gateways.http.door import JSON
from penstock.gateways.http.problem import PROBLEM_TYPE, Problem
from penstock.gateways.rest import messages as bodies
from penstock.gateways.rest.dead_letters_bodies import REASON_CHARACTERS_MAX, RedriveRequest
from penstock.gateways.rest.queue_settings import QueueSettings

_BASE: Final = "/v1/queues/{topic}/{group}"
_LETTERS: Final = "/v1/dead-letters/{topic}"
_PLACE: Final = "{topic}/{partition}/{offset}"
_NUMBER: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": fields.NUMBER_MAX}
_DELAYED: Final = "/v1/schedules/{message_id}"
_CRON: Final = "/v1/crons/{topic}/{name}"
_REFERENCE: Final = "#/components/schemas/{name}"


class QueueDescription(msgspec.Struct, frozen=True):
    topic: str
    group: str
    created_ms: int
    changed_ms: int
    dead_letter_topic: str | None
    options: QueueOptions


class QueueList(msgspec.Struct, frozen=True):
    queues: list[QueueDescription]


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    # Partitions of which something cannot be served.
    damaged_partitions: int = 0
    # What is damaged, and what an operator can do.
    damaged_journals: tuple[str, ...] = ()


class Operation(msgspec.Struct, frozen=True):
    method: str
    path: str
    name: str
    summary: str
    # Several: any of them.
    request: tuple[type, ...] = ()
    replies: dict[int, type | None] = {}
    problems: tuple[int, ...] = ()
    # Parameters of the query, by name: their schemas.
    query: dict[str, dict[str, Any]] = {}
    required: tuple[str, ...] = ()


_POSITION: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": fields.COUNT_MAX, "default": 10}
_TOPIC: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": TOPIC_CHARACTERS_MAX,
    "pattern": fields.TOPIC_TEXT,
}
_PAGE: Final[dict[str, dict[str, Any]]] = {
    "topic": _TOPIC,
    "count": {"type": "integer", "minimum": 1, "maximum": schedules.PAGE_MAX, "default": 100},
    "cursor": {"type": "string", "pattern": schedules.CURSOR_TEXT},
}
_MOMENT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": fields.MOMENT_MS_MAX}
_GROUP: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARACTERS_MAX,
    "default": REDRIVE_GROUP,
}
_FILTER: Final[dict[str, dict[str, Any]]] = {
    "reason": {"type": "string", "maxLength": REASON_CHARACTERS_MAX},
    "key": {"type": "string"},
    "since_ms": _MOMENT,
    "until_ms": _MOMENT,
}

_BAD: Final = HTTPStatus.BAD_REQUEST
_NONE: Final = HTTPStatus.NOT_FOUND
_LARGE: Final = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
_BUSY: Final = HTTPStatus.SERVICE_UNAVAILABLE
_FORBIDDEN: Final = HTTPStatus.FORBIDDEN
_DAMAGED: Final = HTTPStatus.INTERNAL_SERVER_ERROR
_COMMON: Final = (_BAD, _FORBIDDEN, _NONE, _DAMAGED, _BUSY)

# No body at all stands for one without fields.
_OPTIONAL_BODIES: Final = frozenset({"defineQueue", "receive", "redrive"})

OPERATIONS: Final = (
    Operation(
        "post",
        "/v1/topics/{topic}/messages",
        "publish",
        "Stores one message or many; answered when they are on disk. A body of another type is the value itself.",
        (bodies.PublishRequest, bodies.NewMessage),
        {201: bodies.PublishReply, 207: bodies.PublishReply},
        (*_COMMON, _LARGE, HTTPStatus.UNPROCESSABLE_ENTITY),
    ),
    Operation("get", "/v1/queues", "listQueues", "All queues.", (), {200: QueueList}),
    Operation("get", _BASE, "describeQueue", "How a queue is set.", (), {200: QueueDescription}, _COMMON),
    Operation(
        "put",
        _BASE,
        "defineQueue",
        "Makes a queue, or sets all its options anew.",
        (QueueSettings,),
        {200: QueueDescription, 201: QueueDescription},
        (*_COMMON, _LARGE),
    ),
    Operation("delete", _BASE, "deleteQueue", "Forgets a queue. Messages stay in the topic.", (), {204: None}, _COMMON),
    Operation(
        "post",
        f"{_BASE}/receive",
        "receive",
        "Leases messages. Whoever does not ack within the lease loses them to somebody else.",
        (bodies.ReceiveRequest,),
        {200: bodies.ReceiveReply},
        (*_COMMON, _LARGE),
    ),
    Operation(
        "post",
        f"{_BASE}/ack",
        "ack",
        "Done: never delivered again.",
        (bodies.AckRequest,),
        {200: SettleReply},
        (*_COMMON, _LARGE),
    ),
    Operation(
        "post",
        f"{_BASE}/nack",
        "nack",
        "Not done: again later, or to the dead letters.",
        (bodies.NackRequest,),
        {200: SettleReply},
        (*_COMMON, _LARGE),
    ),
    Operation(
        "post",
        f"{_BASE}/extend",
        "extend",
        "More time, counted from now.",
        (bodies.ExtendRequest,),
        {200: SettleReply},
        (*_COMMON, _LARGE),
    ),
    Operation(
        "get",
        f"{_BASE}/peek",
        "peek",
        "Looks, and takes nothing.",
        (),
        {200: bodies.PeekReply},
        _COMMON,
        {"count": _COUNT},
    ),
    Operation(
        "get",
        f"{_BASE}/settlements",
        "settlements",
        "When messages were finished, a page of the journal.",
        (),
        {200: SettlementPage},
        _COMMON,
        {"partition": _POSITION, "after": {"type": "integer", "minimum": 0, "maximum": fields.NUMBER_MAX}},
    ),
    Operation("get", f"{_BASE}/stats", "stats", "What is where.", (), {200: QueueStats}, _COMMON),
    Operation("post", f"{_BASE}/pause", "pause", "Delivers nothing until resumed.", (), {204: None}, _COMMON),
    Operation("post", f"{_BASE}/resume", "resume", "Delivers again.", (), {204: None}, _COMMON),
    Operation("post", f"{_BASE}/purge", "purge", "Skips everything that is there now.", (), {204: None}, _COMMON),
    Operation(
        "get", "/v1/dead-letters", "listDeadLetters", "Topics with dead letters.", (), {200: letters.DeadLetterList}
    ),
    Operation(
        "get",
        _LETTERS,
        "showDeadLetters",
        "The first dead letters that are pending and fit.",
        (),
        {200: letters.DeadLetterMessages},
        _COMMON,
        {"count": _COUNT, "group": _GROUP, **_FILTER},
    ),
    Operation(
        "post",
        f"{_LETTERS}/redrive",
        "redrive",
        "Brings dead letters back, exactly once; with dry_run it only counts them.",
        (RedriveRequest,),
        {200: letters.DryRun, 202: letters.Redrive},
        (*_COMMON, _LARGE, HTTPStatus.CONFLICT),
    ),
    Operation(
        "post",
        f"{_LETTERS}/purge",
        "purgeDeadLetters",
        "Drops what is pending. The topic keeps it until its retention ends.",
        (),
        {200: letters.Purged},
        _COMMON,
        {"group": _GROUP},
    ),
    Operation(
        "get",
        f"{_LETTERS}/redrives",
        "listRedrives",
        "The redrives of a topic, the latest first.",
        (),
        {200: letters.RedriveList},
        _COMMON,
        {"group": _GROUP},
    ),
    Operation(
        "get",
        f"{_LETTERS}/redrives/{{task}}",
        "describeRedrive",
        "How far a redrive is.",
        (),
        {200: letters.Redrive},
        _COMMON,
    ),
    Operation(
        "delete",
        f"{_LETTERS}/redrives/{{task}}",
        "cancelRedrive",
        "Moves nothing more. One that is over stays as it is.",
        (),
        {200: letters.Redrive},
        _COMMON,
    ),
    Operation(
        "get",
        "/v1/schedules",
        "listDelayed",
        "The delayed messages of a topic, in the order in which they are due.",
        (),
        {200: schedules.PendingPage},
        _COMMON,
        _PAGE,
        ("topic",),
    ),
    Operation(
        "get",
        "/v1/schedule-counts",
        "countDelayed",
        "How many messages are delayed in which topic.",
        (),
        {200: schedules.PendingCounts},
    ),
    Operation("get", _DELAYED, "showDelayed", "A delayed message.", (), {200: schedules.PendingMessage}, _COMMON),
    Operation(
        "patch",
        _DELAYED,
        "rescheduleDelayed",
        "Gives a delayed message another time.",
        (schedules.RescheduleRequest,),
        {200: schedules.PendingMessage},
        (*_COMMON, _LARGE, HTTPStatus.CONFLICT),
    ),
    Operation(
        "delete",
        _DELAYED,
        "cancelDelayed",
        "Cancels a delayed message: nobody will ever get it.",
        (),
        {204: None},
        (*_COMMON, HTTPStatus.CONFLICT),
    ),
    Operation(
        "get",
        "/v1/crons",
        "listCrons",
        "All cron schedules, without their messages.",
        (),
        {200: schedules.CronList},
        _COMMON,
        {"topic": _TOPIC},
    ),
    Operation("get", _CRON, "showCron", "A cron schedule and its next times.", (), {200: schedules.Cron}, _COMMON),
    Operation(
        "put",
        _CRON,
        "defineCron",
        "Makes a cron schedule, or sets it anew: then times that are past are past.",
        (schedules.CronRequest,),
        {200: schedules.Cron, 201: schedules.Cron},
        (*_COMMON, _LARGE, HTTPStatus.UNPROCESSABLE_ENTITY),
    ),
    Operation(
        "delete",
        _CRON,
        "deleteCron",
        "Ends a cron schedule. What it has published stays.",
        (),
        {204: None},
        _COMMON,
    ),
    Operation(
        "get",
        "/v1/trace",
        "traceKey",
        "The journeys of messages of a key between two times, the first few; the last hour if none is said.",
        (),
        {200: JourneyList},
        _COMMON,
        {"topic": _TOPIC, "key": {"type": "string"}, "since_ms": _MOMENT, "until_ms": _MOMENT},
        required=("topic", "key"),
    ),
    Operation("get", "/v1/trace/{message_id}", "trace", "A message's journey.", (), {200: Journey}, _COMMON),
    Operation("get", f"/v1/trace/{_PLACE}", "traceOffset", "The same by its place.", (), {200: Journey}, _COMMON),
    Operation("get", "/v1/why/{message_id}", "why", "Why it is not delivered yet.", (), {200: WhyAnswer}, _COMMON),
    Operation("get", f"/v1/why/{_PLACE}", "whyOffset", "The same by its place.", (), {200: WhyAnswer}, _COMMON),
    Operation("get", "/v1/node", "describeNode", "The node itself.", (), {200: NodeFacts}, (_FORBIDDEN,)),
    Operation(
        "get",
        "/v1/cluster/verify",
        "listVerifiable",
        "Topics whose replicas can be compared.",
        (),
        {200: cluster.VerifiableTopics},
        (_FORBIDDEN,),
    ),
    Operation(
        "get",
        "/v1/cluster/verify/{topic}/{partition}",
        "verifyReplicas",
        "Compares the replicas of a partition below what is committed, a stretch at a time.",
        (),
        {200: cluster.PartitionComparison},
        _COMMON,
        {"log": {"type": "string", "enum": ["data", "queue_journal", "schedule"]}, "from": _NUMBER},
    ),
    Operation("get", "/health", "health", "Whether all is well.", (), {200: Health, 503: Health}),
)


@cache
def describe() -> dict[str, Any]:
    kinds: list[type] = [Problem]
    for operation in OPERATIONS:
        kinds += [kind for kind in (*operation.request, *operation.replies.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    for kind in ("NewMessage", "CronRequest"):
        components[kind]["allOf"] = [_not_both("value"), _not_both("key")]
    components["RescheduleRequest"]["minProperties"] = 1
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": components},
    }


def _not_both(name: str) -> dict[str, Any]:
    """As text, or as base64."""
    there = {"not": {"type": "null"}}
    both = [name, f"{name}_base64"]
    return {"not": {"required": both, "properties": dict.fromkeys(both, there)}}


def _operation(operation: Operation, by_kind: dict[int, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {
            **{str(status): _reply(status, kind, by_kind) for status, kind in operation.replies.items()},
            **{f"{status:d}": _problem(status, by_kind) for status in _problems_of(operation)},
        },
    }
    if operation.request:
        schemas = [by_kind[id(kind)] for kind in operation.request]
        content = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
        described["requestBody"] = {"required": operation.name not in _OPTIONAL_BODIES, "content": content}
    return described


def _problems_of(operation: Operation) -> list[int]:
    """With those that are said to web pages (`http/guard`)."""
    guarded = {_FORBIDDEN} if operation.method == "get" else {_FORBIDDEN, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}
    return sorted(guarded.union(operation.problems))


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS_MAX}
    schemas = {
        "topic": _TOPIC,
        "group": text,
        "task": text,
        "message_id": {"type": "string", "pattern": schedules.ID_TEXT},
        "name": {"type": "string", "pattern": schedules.NAME_TEXT},
        "partition": _NUMBER,
        "offset": _NUMBER,
    }
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in schemas.items()
        if f"{{{name}}}" in operation.path
    ]
    return parameters + [
        {"name": name, "in": "query", "required": name in operation.required, "schema": schema}
        for name, schema in operation.query.items()
    ]


def _reply(status: int, kind: type | None, by_kind: dict[int, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if kind is not None:
        described["content"] = {JSON: {"schema": by_kind[id(kind)]}}
    return described


def _problem(status: int, by_kind: dict[int, Any]) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {"schema": by_kind[id(Problem)]}}}
