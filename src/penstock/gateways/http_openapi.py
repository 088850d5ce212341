"""The HTTP door described: OpenAPI 3.1, made from the very structs that bodies are read into.

One line for each operation here; a route that is not described, or described and not there, fails a test.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.domain.queue_definition import NAME_CHARACTERS_MAX, QueueOptions
from penstock.domain.redrive import REDRIVE_GROUP
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX as TOPIC_CHARACTERS_MAX
from penstock.gateways import http_dead_letters_bodies as letters
from penstock.gateways import http_messages as bodies
from penstock.gateways.http_door import JSON
from penstock.gateways.http_problem import PROBLEM_TYPE, Problem
from penstock.gateways.http_queue_settings import QueueSettings

_BASE: Final = "/v1/queues/{topic}/{group}"
_LETTERS: Final = "/v1/dead-letters/{topic}"
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


class PartitionStats(msgspec.Struct, frozen=True):
    partition: int
    is_paused: bool
    # Every message below it is finished.
    finished_below: int
    # Lane and offset: what is below has been looked at.
    cursors: list[tuple[int, int]]
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    span_count: int
    # Name, and how many messages it holds.
    consumers: list[tuple[str, int]]


class QueueStatsReply(msgspec.Struct, frozen=True):
    partitions: list[PartitionStats]
    backlog_count: int
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    is_paused: bool


class Health(msgspec.Struct, frozen=True):
    status: str


class Operation(msgspec.Struct, frozen=True):
    method: str
    path: str
    name: str
    summary: str
    # Several: any of them.
    request: tuple[type, ...] = ()
    replies: dict[int, type | None] = {}
    problems: tuple[int, ...] = ()
    # Parameters of the query, by name: their schemas. None of them is required.
    query: dict[str, dict[str, Any]] = {}


_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": bodies.COUNT_MAX, "default": 10}
_MOMENT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": bodies.MOMENT_MS_MAX}
_GROUP: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARACTERS_MAX,
    "default": REDRIVE_GROUP,
}
_FILTER: Final[dict[str, dict[str, Any]]] = {
    "reason": {"type": "string", "maxLength": letters.REASON_CHARACTERS_MAX},
    "key": {"type": "string"},
    "since_ms": _MOMENT,
    "until_ms": _MOMENT,
}

_BAD: Final = HTTPStatus.BAD_REQUEST
_NONE: Final = HTTPStatus.NOT_FOUND
_LARGE: Final = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
_BUSY: Final = HTTPStatus.SERVICE_UNAVAILABLE
_FORBIDDEN: Final = HTTPStatus.FORBIDDEN
_COMMON: Final = (_BAD, _FORBIDDEN, _NONE, _BUSY)

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
        {200: bodies.SettleReply},
        (*_COMMON, _LARGE),
    ),
    Operation(
        "post",
        f"{_BASE}/nack",
        "nack",
        "Not done: again later, or to the dead letters.",
        (bodies.NackRequest,),
        {200: bodies.SettleReply},
        (*_COMMON, _LARGE),
    ),
    Operation(
        "post",
        f"{_BASE}/extend",
        "extend",
        "More time, counted from now.",
        (bodies.ExtendRequest,),
        {200: bodies.SettleReply},
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
    Operation("get", f"{_BASE}/stats", "stats", "What is where.", (), {200: QueueStatsReply}, _COMMON),
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
        (letters.RedriveRequest,),
        {200: letters.DryRunReply, 202: letters.RedriveTaskReply},
        (*_COMMON, _LARGE, HTTPStatus.CONFLICT),
    ),
    Operation(
        "post",
        f"{_LETTERS}/purge",
        "purgeDeadLetters",
        "Drops what is pending. The topic keeps it until its retention ends.",
        (),
        {200: letters.PurgeReply},
        _COMMON,
        {"group": _GROUP},
    ),
    Operation(
        "get",
        f"{_LETTERS}/redrives",
        "listRedrives",
        "The redrives of a topic, the latest first.",
        (),
        {200: letters.RedriveTaskList},
        _COMMON,
        {"group": _GROUP},
    ),
    Operation(
        "get",
        f"{_LETTERS}/redrives/{{task}}",
        "describeRedrive",
        "How far a redrive is.",
        (),
        {200: letters.RedriveTaskReply},
        _COMMON,
    ),
    Operation(
        "delete",
        f"{_LETTERS}/redrives/{{task}}",
        "cancelRedrive",
        "Moves nothing more. One that is over stays as it is.",
        (),
        {200: letters.RedriveTaskReply},
        _COMMON,
    ),
    Operation("get", "/health", "health", "Whether all is well.", (), {200: Health, 503: Health}),
)


@cache
def describe() -> dict[str, Any]:
    kinds: list[type] = [Problem]
    for operation in OPERATIONS:
        kinds += [kind for kind in (*operation.request, *operation.replies.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    components["NewMessage"]["allOf"] = [_not_both("value"), _not_both("key")]
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
            **{f"{status:d}": _problem(status, by_kind) for status in operation.problems},
        },
    }
    if operation.request:
        schemas = [by_kind[id(kind)] for kind in operation.request]
        content = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
        described["requestBody"] = {"required": operation.name not in _OPTIONAL_BODIES, "content": content}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS_MAX}
    topic = {"type": "string", "minLength": 1, "maxLength": TOPIC_CHARACTERS_MAX, "pattern": bodies.TOPIC_TEXT}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in {"topic": topic, "group": text, "task": text}.items()
        if f"{{{name}}}" in operation.path
    ]
    return parameters + [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in operation.query.items()
    ]


def _reply(status: int, kind: type | None, by_kind: dict[int, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if kind is not None:
        described["content"] = {JSON: {"schema": by_kind[id(kind)]}}
    return described


def _problem(status: int, by_kind: dict[int, Any]) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {"schema": by_kind[id(Problem)]}}}
