"""The HTTP door put together: queues, topics, SQS on the root, and the document that describes it."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from penstock.broker.parts import Parts
from penstock.broker.queue.fifo import FifoSender
from penstock.broker.schedule.elsewhere import PendingMessages
from penstock.broker.topic.broker import Broker
from penstock.gateways.admission import Admission
from penstock.gateways.http.asgi import Application
from penstock.gateways.http.direct import DirectRoutes
from penstock.gateways.http.door import Endpoint, HttpDoor, json_response
from penstock.gateways.http.guard import HttpGuard
from penstock.gateways.http.problem import Problem, problem_response
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.rest.cluster import ClusterRoutes
from penstock.gateways.rest.crons import CronRoutes
from penstock.gateways.rest.dead_letters import DeadLetterRoutes
from penstock.gateways.rest.node import NodeRoutes
from penstock.gateways.rest.openapi import describe
from penstock.gateways.rest.queues import QueueRoutes
from penstock.gateways.rest.schedules import ScheduleRoutes
from penstock.gateways.rest.settlements import SettlementRoutes
from penstock.gateways.rest.topics import TopicRoutes
from penstock.gateways.rest.trace import TraceRoutes
from penstock.gateways.sqs.access import SqsAccess
from penstock.gateways.sqs.door import SqsDoor
from penstock.gateways.sqs.messages import SqsMessages
from penstock.gateways.sqs.queues import SqsQueues
from penstock.gateways.sqs.tasks import SqsTasks


def make_http_app(
    parts: Parts, admission: Admission, config: HttpServerConfig, names: Iterable[str] = ()
) -> Application:
    """`names`: what else the node is known as, beside those of the door's own settings."""
    door = HttpDoor(parts.broker, admission, config, parts.site.clock)
    # Those that look alike are tried one after the other: those first that are asked for most.
    routes: list[BaseRoute] = [
        *_sqs_routes(door, parts),
        *QueueRoutes(door, parts.queues, parts.delivery).routes(),
        *SettlementRoutes(door, parts.queues, parts.site.readers).routes(),
        *TopicRoutes(door, parts.publisher).routes(),
        *DeadLetterRoutes(door, parts.redrives).routes(),
        *ScheduleRoutes(door, parts.schedules, _pending(parts)).routes(),
        *CronRoutes(door, parts.schedules).routes(),
        *TraceRoutes(door, parts.trace).routes(),
        *NodeRoutes(door).routes(),
        *ClusterRoutes(door, parts.verifier).routes(),
        Route("/openapi.json", _openapi, methods=["GET"]),
        Route("/health", _make_health(parts.broker), methods=["GET"]),
    ]
    application = Starlette(routes=routes, exception_handlers={HTTPException: _on_http_error})
    application.state.door = door
    direct = DirectRoutes(application, routes)
    return HttpGuard(direct, (*config.host_names, *names), parts.site.clock, admission)


def _sqs_routes(door: HttpDoor, parts: Parts) -> list[Route]:
    sqs_access = SqsAccess(door)
    sqs_queues = SqsQueues(parts.queues, parts.delivery, parts.topics, sqs_access)
    fifo = FifoSender(parts.queues, parts.schedules, parts.publisher, parts.site.clock)
    sqs_messages = SqsMessages(parts.broker, sqs_queues, parts.delivery, parts.publisher, fifo, parts.site.clock)
    sqs_tasks = SqsTasks(parts.queues, parts.redrives, sqs_access)
    return SqsDoor(door, sqs_access, sqs_queues, sqs_messages, sqs_tasks, parts.site.chance).routes()


def _pending(parts: Parts) -> PendingMessages:
    queues = parts.queues
    return PendingMessages(parts.schedules, lambda: queues.relay)


async def _openapi(_request: Request) -> Response:
    return json_response(describe())


def _make_health(broker: Broker) -> Endpoint:
    async def health(_request: Request) -> Response:
        damaged, journals = len(broker.damaged_partitions), broker.told_damages()
        if broker.is_healthy and (damaged or journals):
            # No reason to send nobody here any more: everything else is served.
            told = {"damaged_journals": journals} if journals else {}
            return json_response({"status": "damaged", "damaged_partitions": damaged, **told})
        if broker.is_healthy:
            return json_response({"status": "ok"})
        unwell = {"status": "some partitions are offline or the disk is full"}
        return json_response(unwell, HTTPStatus.SERVICE_UNAVAILABLE)

    return health


async def _on_http_error(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    response = problem_response(Problem(HTTPStatus(error.status_code).phrase, error.status_code, detail))
    response.headers.update(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_methods_of(request))
    return response


def _methods_of(request: Request) -> list[str]:
    """Of all routes with this path: each of them knows only its own."""
    fitting = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in fitting if isinstance(route, Route) for method in route.methods or ()})
