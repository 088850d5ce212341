"""The Kafka door: listens, frames, dispatches, answers in order.

`start → serve → drain → close`. A request is decoded and handed to the handler of its API (`apis`); what comes
back is one of seven things, and this file is the only place that tells them apart:

    a message         the reply, known at once
    steps             the reply, after work that is long at times
    a PendingReply    a Produce that waits for the disk; more requests of the connection are taken meanwhile
    a coroutine       anything else that has to wait; the connection's other requests wait behind it, until it has
                      returned its reply, or a PendingReply
    an Aside          the same for other nodes, who need no order: nothing waits behind it
    NO_REPLY          acks=0
    HANG_UP           acks=0 and refused

No request has the loop for long: what is large is decoded in slices, worked on in slices and its reply encoded in
slices (base/long_work). What is done within the first slice, which is nearly everything, needs no task for it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from types import GeneratorType
from typing import Final, cast

from penstock.base.log_events import get_logger
from penstock.base.long_work import UNFINISHED, LongWork, Steps
from penstock.broker.partition.commitment import when_all_known
from penstock.broker.site import Site
from penstock.codec.kafka import (
    APIS,
    ErrorCode,
    Malformed,
    OverBound,
    Request,
    RequestHeader,
    Response,
    decode,
    decode_in_steps,
    decode_request_header,
    encode_response_in_steps,
    encode_response_parts,
    refusal_of,
)
from penstock.codec.kafka.messages.produce import ProduceRequest
from penstock.gateways.admission import Admission
from penstock.gateways.caller import KAFKA
from penstock.gateways.connection_room import connections_room
from penstock.gateways.kafka.connection import (
    LENGTH_BYTES,
    RECEIVE_BYTES,
    KafkaConnection,
    Route,
)
from penstock.gateways.kafka.context import (
    HANG_UP,
    NO_REPLY,
    Answered,
    Aside,
    Handler,
    HandlerResult,
    NoReply,
    PendingReply,
    RequestContext,
)
from penstock.gateways.kafka.destination import is_taken, only_destination
from penstock.gateways.kafka.login import SASL_HANDSHAKE_KEY, Login
from penstock.gateways.kafka.reply_slot import ReplyParts, ReplySlot
from penstock.gateways.kafka.sasl import SaslHandler
from penstock.gateways.kafka.server_config import ServerLimits
from penstock.gateways.kafka.versions import ApiVersionsHandler
from penstock.gateways.request_memory import RequestMemory

# Requests that wait for messages, and end with their client. A ShareFetch has taken nothing while it waits; what it
# was told to settle before is settled.
PARKED_KEYS: Final = (1, 78)
# Those, and what waits for other members of a group.
WAITING_KEYS: Final = (*PARKED_KEYS, 11, 14)
API_VERSIONS_KEY: Final = 18
# A frame of so many bytes is decoded at once: it has less than 3,000 elements, which take a millisecond.
WHOLE_BYTES_MAX: Final = 8 * 1024
# Requests that are worked through in slices at a time: each may hold 30 MB of objects. More wait for their turn.
LONG_REQUESTS_MAX: Final = 4
# Those that bring messages or ask for some have places of their own: four that make ten thousand topics hold theirs for
# many seconds, and nobody's messages wait for that.
MESSAGE_KEYS: Final = (0, 1, 78, 79)
SWEEP_MS: Final = 5_000
# How often it is counted what clients have not taken: ten thousand of them are looked at in milliseconds.
UNREAD_SECONDS: Final = 0.1
# One reply gets so much of the room that is left, so that the next ones find some too.
REPLY_SHARE: Final = 8
# What a stranger may send in one piece: what fits a connection's own buffer, so that strangers cannot take the memory
# for large requests away from everybody else. Kafka takes 512 KiB, which no token needs.
LOGIN_FRAME_BYTES_MAX: Final = RECEIVE_BYTES - LENGTH_BYTES
# Of one connection that are under way beside each other; with more, the next one holds up those behind it.
ASIDES_MAX: Final = 256
_LENGTH = struct.Struct(">i")


LearnRoute = Callable[[ProduceRequest, RequestHeader, memoryview], Route | None]


class KafkaServer:
    def __init__(
        self,
        config: ServerLimits,
        handlers: dict[int, Handler],
        site: Site,
        learn_route: LearnRoute,
        sasl: SaslHandler,
        admission: Admission,
        door: str = KAFKA,
    ) -> None:
        self.config = config
        self.door = door
        self.log = get_logger(door)
        self.sasl = sasl
        self.charge = admission.charge
        self._handlers = handlers
        self._unsupported_api_versions = ApiVersionsHandler(handlers).unsupported
        self._tasks = site.tasks
        self._learn_route = learn_route
        self._server: asyncio.Server | None = None
        self._connections: dict[KafkaConnection, None] = {}
        self._connections_max = connections_room(config.connections_max)
        self._all_gone: asyncio.Future[None] | None = None
        self.memory = RequestMemory(config.request_bytes_max)
        # As last counted, when, and what had been sent by then.
        self._unread_bytes = 0
        self._unread_at = 0.0
        self._unread_bytes_out = 0
        # Plain integers, read by the metrics page when it is asked for: a Counter's lock would cost every request.
        self.request_counts: dict[int, int] = dict.fromkeys(handlers, 0)
        self.bytes_in = 0
        self.bytes_out = 0
        self.refused_connections = 0
        self.host = ""
        self.port = 0
        self._loop = asyncio.get_running_loop()
        self.work = LongWork(site.clock.monotonic_seconds)
        self._long_messages = asyncio.Semaphore(LONG_REQUESTS_MAX)
        self._long_others = asyncio.Semaphore(LONG_REQUESTS_MAX)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def limit_connections(self, wanted: int) -> None:
        """Who is connected stays; no more are taken while there are so many."""
        self._connections_max = connections_room(wanted)

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=1024)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        self._tasks.every(SWEEP_MS, f"{self.door} connection sweep", self._sweep)

    def _connect(self) -> KafkaConnection:
        frame_bytes_max = self.config.frame_bytes_max
        login = self.sasl.new_login()
        if login is not None:
            frame_bytes_max = min(frame_bytes_max, LOGIN_FRAME_BYTES_MAX)
        connection = KafkaConnection(self, frame_bytes_max=frame_bytes_max)
        connection.login = login
        return connection

    def on_connected(self, connection: KafkaConnection) -> None:
        self._connections[connection] = None
        if len(self._connections) > self._connections_max:
            connection.abort(f"{self._connections_max} connections are open, no more are taken")

    def on_disconnected(self, connection: KafkaConnection) -> None:
        self._connections.pop(connection, None)
        if self._all_gone is not None and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)

    async def _sweep(self) -> None:
        quiet_sweeps_max = max(1, self.config.idle_ms_max // SWEEP_MS)
        for connection in list(self._connections):
            connection.quiet_sweeps += 1
            connection.release_memory()
            is_dawdling = connection.is_dawdling()
            if connection.is_ended:
                # One whole sweep for the client to take what it is owed.
                if connection.quiet_sweeps > 1:
                    connection.cut_off()
            elif is_dawdling and self.memory.is_wanted:
                connection.abort("a large request of which nothing more comes, while others wait for its memory")
            elif self.sasl.is_overdue(connection.login, self.config.login_ms_max):
                connection.abort(f"not logged in after {self.config.login_ms_max} ms")
            elif connection.quiet_sweeps > quiet_sweeps_max and connection.is_idle:
                self.log.info("idle connection closed", peer=connection.caller.address, idle_ms=self.config.idle_ms_max)
                connection.close()

    def on_memory_wanted(self) -> None:
        """Those that hold some and need none give it back now, not at the next sweep. Asked of all of them by the first
        who waits: from then on they give it back by themselves."""
        if self.memory.waiting_count == 1:
            for connection in list(self._connections):
                connection.release_memory()

    def reply_room(self) -> int:
        """How many bytes a further reply should have at the most. Clients that read slowly are many at times, and what
        they have not taken is in our memory: together they get so much of it, and less each when it gets scarce."""
        now = self._loop.time()
        if now - self._unread_at >= UNREAD_SECONDS:
            self._unread_at, self._unread_bytes_out = now, self.bytes_out
            self._unread_bytes = sum(connection.unread_bytes for connection in self._connections)
        # What was sent since then counts as if nobody had taken it.
        unread_bytes = self._unread_bytes + self.bytes_out - self._unread_bytes_out
        return max(0, self.config.reply_bytes_max - unread_bytes) // REPLY_SHARE

    # One request

    def on_fault(self, connection: KafkaConnection, error: Exception) -> None:
        """Ours, not the client's: it costs this connection and no other."""
        self.log.error("request failed", peer=connection.caller.address, error=repr(error), exc_info=error)
        connection.abort("a fault of ours while handling a request")

    def handle(self, connection: KafkaConnection, frame: memoryview) -> None:
        login = connection.login
        if login is not None and login.is_raw:
            connection.become_busy()
            work = self._finish_raw(connection, connection.reserve(), login, bytes(frame))
            self._tasks.start("kafka login", work)
            return
        header = decode_request_header(frame)
        if isinstance(header, Malformed):
            connection.abort(header.reason)
            return
        refusal = None if login is None else login.refusal(header.api_key)
        if refusal is not None:
            connection.abort(refusal)
            return
        handler = self._handlers.get(header.api_key)
        if handler is None:
            connection.abort(f"API key {header.api_key} is not served here")
            return
        api = APIS[header.api_key]
        if not api.version_min <= header.api_version <= api.version_max:
            self._refuse_version(connection, header)
            return
        context = RequestContext(connection.caller, header.client_id, header.api_version, connection, self.work)
        if header.api_key == SASL_HANDSHAKE_KEY:
            # What a login has learnt is not taken while the next one is under way, and never if that fails.
            connection.route = connection.last_destination = None
        self.request_counts[header.api_key] += 1
        if len(frame) <= WHOLE_BYTES_MAX:
            request = decode(api.request, header.api_version, frame, header.body_position)
        else:
            steps = decode_in_steps(api.request, header.api_version, frame, header.body_position)
            begun = self.work.begin(steps)
            if begun is UNFINISHED:
                connection.keep_frame()
                self._finish_later(connection, header, self._work_through(connection, header, steps, handler, context))
                return
            request = begun
        if isinstance(request, Malformed):
            self._refuse(connection, header, request)
            return
        result = handler(request, context)
        self._deliver(connection, header, result)
        if isinstance(request, ProduceRequest):
            self._learn(connection, header, frame, request, result)

    def _learn(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        frame: memoryview,
        request: ProduceRequest,
        result: HandlerResult,
    ) -> None:
        destination = only_destination(request) if is_taken(result) else None
        # Learnt when seen a second time: a producer that goes round its partitions would learn at every request,
        # for more than a request costs, and never use what it learnt.
        is_repeated = destination is not None and destination == connection.last_destination
        connection.route = self._learn_route(request, header, frame) if is_repeated else None
        connection.last_destination = destination

    async def _work_through(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        steps: Steps[Request | Malformed],
        handler: Handler,
        context: RequestContext,
    ) -> Answered:
        """A large request from the rest of its decoding on, a few of them at a time."""
        # It would be forgotten by a request that is handled at once; what it has learnt of this one is nothing.
        connection.route = connection.last_destination = None
        async with self.places_of(header.api_key):
            request = await self.work.finish(steps)
            if isinstance(request, Malformed):
                refusal = self._refusal(connection, header, request)
                return NO_REPLY if refusal is None else refusal
            if not isinstance(request, ProduceRequest):
                connection.free_frame()
            result = handler(request, context)
            if header.api_key not in WAITING_KEYS:
                return await self._answered(result)
        return await self._answered(result)

    def places_of(self, api_key: int) -> asyncio.Semaphore:
        """Where a large request waits for its turn."""
        return self._long_messages if api_key in MESSAGE_KEYS else self._long_others

    async def _answered(self, result: HandlerResult) -> Answered:
        if isinstance(result, Answered):
            return result
        if isinstance(result, GeneratorType):
            return cast(Response, await self.work.run(result))
        if isinstance(result, Aside):
            return await result.work
        return await cast("Coroutine[object, object, Answered]", result)

    def _refuse(self, connection: KafkaConnection, header: RequestHeader, malformed: Malformed) -> None:
        refusal = self._refusal(connection, header, malformed)
        if refusal is not None:
            self._reply(connection, header, refusal)

    def _refusal(self, connection: KafkaConnection, header: RequestHeader, malformed: Malformed) -> Response | None:
        """A request that names too much is told so, where its API has a place to say it. All else is no conversation
        any more: the connection ends."""
        refusal = None
        if isinstance(malformed, OverBound):
            refusal = refusal_of(header.api_key, header.api_version, ErrorCode.INVALID_REQUEST, malformed.reason)
        if refusal is None:
            connection.abort(malformed.reason)
        else:
            self.log.warning("request refused", peer=connection.caller.address, reason=malformed.reason)
        return refusal

    def _deliver(self, connection: KafkaConnection, header: RequestHeader, result: HandlerResult) -> None:
        if isinstance(result, GeneratorType):
            begun = self.work.begin(result)
            if begun is UNFINISHED:
                self._finish_later(connection, header, self.work.finish(result))
                return
            result = cast(Response, begun)
        if isinstance(result, Response):
            self._reply(connection, header, result)
        elif isinstance(result, PendingReply):
            self._fill_later(connection, connection.reserve(), header, result)
        elif result is HANG_UP:
            connection.abort("a request that asked for no reply was refused")
        elif isinstance(result, Aside):
            self._start_aside(connection, header, result.work)
        elif result is not NO_REPLY:
            self._finish_later(connection, header, cast("Coroutine[object, object, Answered]", result))

    def _reply(self, connection: KafkaConnection, header: RequestHeader, message: Response) -> None:
        steps = self._encode(message, header)
        parts = self.work.begin(steps)
        if parts is UNFINISHED:
            connection.become_busy()
            self._tasks.start("kafka reply", self._finish_reply(connection, connection.reserve(), steps))
            return
        connection.reply(parts)
        if connection.login is not None and connection.login.is_failed:
            connection.drain()

    def _finish_later(
        self, connection: KafkaConnection, header: RequestHeader, work: Coroutine[object, object, Answered]
    ) -> None:
        connection.become_busy()
        task = self._tasks.start("kafka request", self._finish(connection, connection.reserve(), header, work))
        if header.api_key in PARKED_KEYS:
            connection.parked = task

    def _start_aside(
        self, connection: KafkaConnection, header: RequestHeader, work: Coroutine[object, object, Response]
    ) -> None:
        if connection.aside_count >= ASIDES_MAX:
            self._finish_later(connection, header, work)
            return
        connection.aside_count += 1
        self._tasks.start(f"{self.door} request aside", self._finish_aside(connection, header, work))

    async def _finish_aside(
        self, connection: KafkaConnection, header: RequestHeader, work: Coroutine[object, object, Response]
    ) -> None:
        try:
            connection.reply_aside(await self.work.run(self._encode(await work, header)))
        except Exception as error:  # noqa: BLE001  edge of a connection
            self.on_fault(connection, error)
        finally:
            connection.aside_count -= 1
            connection.send_ready_soon()

    def _fill_later(
        self, connection: KafkaConnection, slot: ReplySlot, header: RequestHeader, pending: PendingReply
    ) -> None:
        when_all_known(pending.commitments, partial(self._fill, connection, slot, header, pending.finish))

    def _fill(
        self, connection: KafkaConnection, slot: ReplySlot, header: RequestHeader, finish: Callable[[], Response]
    ) -> None:
        try:
            steps = self._encode(finish(), header)
            parts = self.work.begin(steps)
            if parts is UNFINISHED:
                # Those behind it are not held up: this has its place among the replies.
                self._tasks.start("kafka reply", self._fill_in_steps(connection, slot, steps))
            else:
                slot.fill(parts)
        except Exception as error:  # noqa: BLE001  edge of a connection: there are others to be told
            self.on_fault(connection, error)

    async def _fill_in_steps(self, connection: KafkaConnection, slot: ReplySlot, steps: Steps[ReplyParts]) -> None:
        try:
            slot.fill(await self.work.finish(steps))
        except Exception as error:  # noqa: BLE001  edge of a connection
            self.on_fault(connection, error)

    async def _finish_reply(self, connection: KafkaConnection, slot: ReplySlot, steps: Steps[ReplyParts]) -> None:
        try:
            await self._fill_in_steps(connection, slot, steps)
        finally:
            connection.become_free()

    async def _finish(
        self,
        connection: KafkaConnection,
        slot: ReplySlot,
        header: RequestHeader,
        work: Coroutine[object, object, Answered],
    ) -> None:
        try:
            result = await work
            if isinstance(result, PendingReply):
                self._fill_later(connection, slot, header, result)
            elif isinstance(result, NoReply):
                slot.fill([])
                if result is HANG_UP:
                    connection.abort("a request that asked for no reply was refused")
            else:
                slot.fill(await self.work.run(self._encode(result, header)))
            if connection.login is not None and connection.login.is_failed:
                connection.drain()
        except asyncio.CancelledError:
            connection.close()
            raise
        except Exception as error:  # noqa: BLE001  edge of a connection
            self.on_fault(connection, error)
        finally:
            connection.become_free()

    async def _finish_raw(self, connection: KafkaConnection, slot: ReplySlot, login: Login, token: bytes) -> None:
        """A bare token, as clients send it after the first version of the handshake."""
        try:
            answer = await self.sasl.take_raw(connection, login, token, connection.caller.address)
            if answer is None:
                connection.close()
            else:
                slot.fill([_LENGTH.pack(len(answer)), answer])
        except asyncio.CancelledError:
            connection.close()
            raise
        except Exception as error:  # noqa: BLE001  edge of a connection
            self.on_fault(connection, error)
        finally:
            connection.become_free()

    def _encode(self, message: Response, header: RequestHeader) -> Steps[ReplyParts]:
        return encode_response_in_steps(message, header.api_version, header.correlation_id)

    def _refuse_version(self, connection: KafkaConnection, header: RequestHeader) -> None:
        """A too new ApiVersions is answered in its oldest form, so that the client can ask again; others close."""
        if header.api_key == API_VERSIONS_KEY:
            refusal = self._unsupported_api_versions()
            connection.reply(encode_response_parts(refusal, 0, header.correlation_id))
            return
        api = APIS[header.api_key]
        connection.abort(f"{api.name} v{header.api_version}: served are v{api.version_min} to v{api.version_max}")

    # Ending

    async def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def drain(self) -> None:
        """Answers what is in flight and closes every connection, within `drain_ms_max`."""
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._all_gone = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_gone], timeout=self.config.drain_ms_max / 1000)
        for connection in list(self._connections):
            connection.cut_off()
