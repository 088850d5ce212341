"""What clients ask for that have no door in a simulation: queues and schedules are asked below it, over the network.

The request and its reply travel like any other. A reply may be lost: then nobody knows whether it was done.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from penstock.broker.parts import Parts
from penstock.net.errors import ClientError, ConnectionLostError, RequestTimeoutError
from support.sim.network import Network
from support.sim.node import SimNode

Result = TypeVar("Result")

REPLY_SECONDS_MAX: Final = 3.0
LOST_REPLY_CHANCE: Final = 0.04
CLIENT: Final = "world"


async def ask(network: Network, node: SimNode, work: Callable[[Parts], Coroutine[Any, Any, Result]]) -> Result:
    reply: asyncio.Future[Result] = network.loop.create_future()

    def arrive() -> None:
        try:
            task = node.begin(work)
        except ClientError as error:
            network.send(node.host, CLIENT, 0, partial(_fail, reply, error), contextvars.Context())
        else:
            task.add_done_callback(send_back)

    def send_back(task: asyncio.Task[Result]) -> None:
        network.send(node.host, CLIENT, 0, partial(_tell, reply, task), contextvars.Context())

    is_lost = network.loop.random.random() < LOST_REPLY_CHANCE
    network.send(CLIENT, node.host, 0, arrive, contextvars.Context())
    try:
        async with asyncio.timeout(REPLY_SECONDS_MAX):
            found = await reply
    except TimeoutError as error:
        raise RequestTimeoutError(f"{node.host} did not answer in time") from error
    if is_lost:
        raise ConnectionLostError(f"the reply of {node.host} was lost")
    return found


def _tell(reply: asyncio.Future[Result], task: asyncio.Task[Result]) -> None:
    error = None if task.cancelled() else task.exception()
    if reply.done():
        return
    if task.cancelled() or (isinstance(error, Exception) and not isinstance(error, AssertionError)):
        reply.set_exception(ConnectionLostError(f"refused: {error!r}"))
    elif error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(task.result())


def _fail(reply: asyncio.Future[Result], error: ClientError) -> None:
    if not reply.done():
        reply.set_exception(error)
