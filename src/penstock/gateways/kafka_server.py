"""The Kafka door: listens, frames, dispatches, answers in order.

`start → serve → drain → close`. A request is decoded and handed to the handler of its API (kafka_apis); what comes
back is one of five things, and this file is the only place that tells them apart:

    a message         the reply, known at once
    a PendingReply    a Produce that waits for the disk; more requests of the connection are taken meanwhile
    a coroutine       anything else that has to wait; the connection's other requests wait behind it, until it has
                      returned its reply, or a PendingReply
    NO_REPLY          acks=0
    HANG_UP           acks=0 and refused
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, cast

import msgspec

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.codec.wire import (
    APIS,
    Malformed,
    RequestHeader,
    Response,
    decode,
    decode_request_header,
    encode_response_parts,
)
from penstock.codec.wire.messages.produce import ProduceRequest, ProduceResponse
from penstock.domain.sasl import OAUTHBEARER
from penstock.gateways.connection_room import connections_room
from penstock.gateways.kafka_connection import (
    LENGTH_BYTES,
    RECEIVE_BYTES,
    Destination,
    KafkaConnection,
    ReplyParts,
    ReplySlot,
    Route,
)
from penstock.gateways.kafka_context import (
    HANG_UP,
    NO_REPLY,
    Handler,
    HandlerResult,
    NoReply,
    PendingReply,
    RequestContext,
)
from penstock.gateways.kafka_login import SASL_HANDSHAKE_KEY, Login
from penstock.gateways.kafka_sasl import KNOWN_MECHANISMS, SaslHandler
from penstock.gateways.kafka_versions import ApiVersionsHandler
from penstock.gateways.request_memory import RequestMemory
from penstock.storage.group_commit import Turn

log = get_logger("kafka")

# Requests that wait for messages, and end with their client. A ShareFetch has taken nothing while it waits; what it
# was told to settle before is settled.
PARKED_KEYS: Final = (1, 78)
API_VERSIONS_KEY: Final = 18
SWEEP_MS: Final = 5_000
# How often it is counted what clients have not taken: ten thousand of them are looked at in milliseconds.
UNREAD_SECONDS: Final = 0.1
# One reply gets so much of the room that is left, so that the next ones find some too.
REPLY_SHARE: Final = 8
# What a stranger may send in one piece: what fits a connection's own buffer, so that strangers cannot take the memory
# for large requests away from everybody else. Kafka takes 512 KiB, which no token needs.
LOGIN_FRAME_BYTES_MAX: Final = RECEIVE_BYTES - LENGTH_BYTES
_LENGTH = struct.Struct(">i")


class KafkaServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:9092"
    # What clients are told to connect to; empty: the address that is listened on.
    advertised: str = ""
    # As Kafka's socket.request.max.bytes.
    frame_bytes_max: int = 100 * 1024 * 1024
    # As Kafka's connections.max.idle.ms.
    idle_ms_max: int = 600_000
    connections_max: int = 10_000
    # Bytes of requests too large for a connection's own buffer, held by all connections together.
    request_bytes_max: int = 512 * 1024 * 1024
    # Replies that may wait in one connection's transport before its requests are left unread.
    write_buffer_bytes_max: int = 1024 * 1024
    # Replies that clients have not taken yet, of all connections together: the more there is, the less a Fetch brings.
    reply_bytes_max: int = 512 * 1024 * 1024
    # How long a stopping node waits for what is in flight.
    drain_ms_max: int = 5_000
    # How clients may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Empty: nobody has to.
    sasl_mechanisms: tuple[str, ...] = ()
    # Passwords of users that are there from the first start on, by name. All others are kept in the metadata.
    users: dict[str, str] = {}
    # As Kafka's connections.max.reauth.ms: after this a client has to log in again. 0: never.
    reauthentication_ms_max: int = 0
    # As Kafka's connection.failed.authentication.delay.ms.
    failed_login_delay_ms: int = 100
    # For a login to be done; connections that are not through by then are closed.
    login_ms_max: int = 30_000
    # OAUTHBEARER believes tokens that nobody has signed. For development, never where strangers can connect.
    unsecured_tokens: bool = False

    def check(self) -> str | None:
        """Why nobody could log in by these settings, or everybody; None if all is well."""
        unknown = [name for name in self.sasl_mechanisms if name not in KNOWN_MECHANISMS]
        if unknown:
            return f"sasl_mechanisms: {unknown[0]!r} is not one of {', '.join(KNOWN_MECHANISMS)}"
        if OAUTHBEARER in self.sasl_mechanisms and not self.unsecured_tokens:
            return (
                "sasl_mechanisms: OAUTHBEARER takes tokens without looking at signatures, which are not checked yet; "
                "unsecured_tokens = true says that this is meant"
            )
        if self.users and not self.sasl_mechanisms:
            return "users have passwords, but sasl_mechanisms is empty: nobody would be asked for one"
        if not all(name and password for name, password in self.users.items()):
            return "users: a name or a password is empty"
        return None


LearnRoute = Callable[[ProduceRequest, RequestHeader, memoryview], Route | None]


class KafkaServer:
    def __init__(
        self,
        config: KafkaServerConfig,
        handlers: dict[int, Handler],
        tasks: TaskSupervisor,
        learn_route: LearnRoute,
        sasl: SaslHandler,
    ) -> None:
        self.config = config
        self.sasl = sasl
        self._handlers = handlers
        self._unsupported_api_versions = ApiVersionsHandler(handlers).unsupported
        self._tasks = tasks
        self._learn_route = learn_route
        self._server: asyncio.Server | None = None
        self._connections: set[KafkaConnection] = set()
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

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=1024)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        self._tasks.every(SWEEP_MS, "kafka connection sweep", self._sweep)

    def _connect(self) -> KafkaConnection:
        frame_bytes_max = self.config.frame_bytes_max
        login = self.sasl.new_login()
        if login is not None:
            frame_bytes_max = min(frame_bytes_max, LOGIN_FRAME_BYTES_MAX)
        connection = KafkaConnection(self, frame_bytes_max=frame_bytes_max)
        connection.login = login
        return connection

    def on_connected(self, connection: KafkaConnection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._connections_max:
            connection.abort(f"{self._connections_max} connections are open, no more are taken")

    def on_disconnected(self, connection: KafkaConnection) -> None:
        self._connections.discard(connection)
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
                log.info("idle connection closed", peer=connection.peer, idle_ms=self.config.idle_ms_max)
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
        log.error("request failed", peer=connection.peer, error=repr(error), exc_info=error)
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
        context = RequestContext(
            connection.principal, header.client_id, header.api_version, connection.peer, connection
        )
        if not api.version_min <= header.api_version <= api.version_max:
            self._refuse_version(connection, header)
            return
        if header.api_key == SASL_HANDSHAKE_KEY:
            # What a login has learnt is not taken while the next one is under way, and never if that fails.
            connection.route = connection.last_destination = None
        self.request_counts[header.api_key] += 1
        request = decode(api.request, header.api_version, frame, header.body_position)
        if isinstance(request, Malformed):
            connection.abort(f"{api.name} v{header.api_version}: {request.reason}")
            return
        result = handler(request, context)
        self._deliver(connection, header, result)
        if isinstance(request, ProduceRequest):
            destination = _only_destination(request) if _is_taken(result) else None
            # Learnt when seen a second time: a producer that goes round its partitions would learn at every request,
            # for more than a request costs, and never use what it learnt.
            is_repeated = destination is not None and destination == connection.last_destination
            connection.route = self._learn_route(request, header, frame) if is_repeated else None
            connection.last_destination = destination

    def _deliver(self, connection: KafkaConnection, header: RequestHeader, result: HandlerResult) -> None:
        if isinstance(result, Response):
            connection.reply(self._encode(result, header))
            if connection.login is not None and connection.login.is_failed:
                connection.drain()
        elif isinstance(result, PendingReply):
            self._fill_later(connection, connection.reserve(), header, result)
        elif result is HANG_UP:
            connection.abort("a request that asked for no reply was refused")
        elif result is not NO_REPLY:
            connection.become_busy()
            work = cast("Coroutine[object, object, Response | PendingReply | NoReply]", result)
            task = self._tasks.start("kafka request", self._finish(connection, connection.reserve(), header, work))
            if header.api_key in PARKED_KEYS:
                connection.parked = task

    def _fill_later(
        self, connection: KafkaConnection, slot: ReplySlot, header: RequestHeader, pending: PendingReply
    ) -> None:
        pending.turn.add_done_callback(partial(self._fill, connection, slot, header, pending.finish))

    def _fill(
        self,
        connection: KafkaConnection,
        slot: ReplySlot,
        header: RequestHeader,
        finish: Callable[[], Response],
        _turn: Turn,
    ) -> None:
        try:
            slot.fill(self._encode(finish(), header))
        except Exception as error:  # noqa: BLE001  edge of a connection: the turn has other connections to tell
            self.on_fault(connection, error)

    async def _finish(
        self,
        connection: KafkaConnection,
        slot: ReplySlot,
        header: RequestHeader,
        work: Coroutine[object, object, Response | PendingReply | NoReply],
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
                slot.fill(self._encode(result, header))
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
            answer = await self.sasl.take_raw(connection, login, token, connection.peer)
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

    def _encode(self, message: Response, header: RequestHeader) -> ReplyParts:
        return encode_response_parts(message, header.api_version, header.correlation_id)

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


def _only_destination(request: ProduceRequest) -> Destination | None:
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return None
    (data,) = request.topic_data
    return data.name, data.topic_id, data.partition_data[0].index


def _is_taken(result: HandlerResult) -> bool:
    """What a request was refused for may not show in its head, so a refused one teaches no route."""
    return isinstance(result, PendingReply) or (
        isinstance(result, ProduceResponse)
        and not any(answer.error_code for topic in result.responses for answer in topic.partition_responses)
    )
