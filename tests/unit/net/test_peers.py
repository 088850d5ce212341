"""Nodes that talk to nodes, over loopback: who is there, who is not, what became of what was asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.base.clock import SystemClock
from penstock.codec.kafka.internal.forward import ForwardRequest, ForwardResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from penstock.domain.replication.identity import NodeIdentity
from penstock.net.address import Address
from penstock.net.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    PeerLostError,
    PeerMismatchError,
    PeerRefusedError,
    PeerUnreachableError,
)
from penstock.net.peer import PeerOptions, failure_of
from penstock.net.peers import Lane, Peers, backoff_ms
from penstock.net.replica.calls import ReplicaCalls
from support.cluster import exchanges as said
from support.cluster.replicas import (
    HELD_KIND,
    HERE,
    SECRET,
    THERE,
    ScriptedReplicas,
    internal_address,
    internal_door,
    node_with_internal_door,
    until,
)
from support.door.conversation import TalkingNode

NODE = HERE.node_id
PATIENT_MS = 10_000


def peers_of(
    address_of: Callable[[int], Address | None],
    *,
    identity: Callable[[], NodeIdentity] = lambda: THERE,
    secret: bytes = SECRET,
    jitter: Callable[[], float] = lambda: 0.0,
    **options: int,
) -> Peers:
    return Peers(
        identity, lambda: secret, address_of, clock=SystemClock(), jitter=jitter, options=PeerOptions(**options)
    )


@pytest.fixture
async def replicas() -> ScriptedReplicas:
    return ScriptedReplicas()


@pytest.fixture
async def node(replicas: ScriptedReplicas) -> AsyncIterator[TalkingNode]:
    async with node_with_internal_door(replicas) as running:
        yield running


@pytest.fixture
async def peers(node: TalkingNode) -> AsyncIterator[Peers]:
    peers = peers_of({NODE: internal_address(node)}.get)
    yield peers
    peers.close()


async def work(peers: Peers, kind: int = 1, body: bytes = b"ab", timeout_ms: int = PATIENT_MS) -> bytes:
    request = ForwardRequest(kind=kind, body=body)
    return (await peers.call(NODE, Lane.REST, request, ForwardResponse, timeout_ms=timeout_ms)).body


def connection_count(node: TalkingNode) -> int:
    server = internal_door(node).server
    assert server is not None
    return server.connection_count


async def test_everything_that_nodes_say_comes_back(peers: Peers, replicas: ScriptedReplicas) -> None:
    calls = ReplicaCalls(peers)
    assert await calls.fetch(NODE, Lane.SYNCED, said.FETCH) == said.FETCHED
    assert await calls.barrier(NODE, said.BARRIER) == said.PASSED
    assert await calls.describe(NODE, said.DESCRIBE, timeout_ms=PATIENT_MS) == said.DESCRIPTION
    assert (await calls.forward(NODE, said.FORWARD)).body == said.FORWARD.body[::-1]
    assert (replicas.barriers, replicas.forwards) == ([said.BARRIER], [said.FORWARD])


async def test_lane_has_one_connection_however_many_ask_first(node: TalkingNode, peers: Peers) -> None:
    bodies = await asyncio.gather(*(work(peers, body=b"%d" % number) for number in range(10, 60)))
    assert bodies == [(b"%d" % number)[::-1] for number in range(10, 60)]
    assert connection_count(node) == 1
    await ReplicaCalls(peers).fetch(NODE, Lane.FAST, said.FETCH)
    assert connection_count(node) == 2


async def test_replies_reach_their_requests_in_any_order(peers: Peers, replicas: ScriptedReplicas) -> None:
    replicas.held.clear()
    held = [asyncio.ensure_future(work(peers, HELD_KIND, b"held %d" % number)) for number in range(3)]
    await until(lambda: len(replicas.forwards) == 3)
    assert await work(peers, body=b"quick") == b"kciuq"
    assert not any(each.done() for each in held)
    replicas.held.set()
    assert await asyncio.gather(*held) == [b"0 dleh", b"1 dleh", b"2 dleh"]


async def test_requests_leave_in_the_order_of_their_calls(peers: Peers, replicas: ScriptedReplicas) -> None:
    await asyncio.gather(*(work(peers, body=b"%d" % number) for number in range(200)))
    assert [forward.body for forward in replicas.forwards] == [b"%d" % number for number in range(200)]


async def test_more_than_may_be_under_way_wait_for_room(node: TalkingNode, replicas: ScriptedReplicas) -> None:
    peers = peers_of({NODE: internal_address(node)}.get, requests_in_flight_max=2)
    replicas.held.clear()
    held = [asyncio.ensure_future(work(peers, HELD_KIND)) for _ in range(2)]
    await until(lambda: len(replicas.forwards) == 2)
    with pytest.raises(PeerUnreachableError, match="node 2 could not be asked in time"):
        await work(peers, timeout_ms=30)
    replicas.held.set()
    await asyncio.gather(*held)
    assert await work(peers) == b"ba"
    peers.close()


# Nobody there


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_refused_connection_is_told_apart(host: str) -> None:
    address = Address(host, free_port())
    peers = peers_of({NODE: address}.get)
    with capture_logs() as events, pytest.raises(PeerRefusedError, match=f"node 2 at {address} refuses connections"):
        await work(peers)
    (event,) = events
    assert (event["event"], event["node"], event["area"]) == ("node out of reach", NODE, "cluster")
    peers.close()


def test_node_that_refuses_at_one_address_only_is_not_taken_for_dead() -> None:
    refused, silent = BrokerRefusedError("refused"), BrokerUnreachableError("no answer")
    assert type(failure_of("node 2", [refused, refused])) is PeerRefusedError
    assert type(failure_of("node 2", [refused, silent])) is PeerUnreachableError
    assert type(failure_of("node 2", [silent, refused])) is PeerUnreachableError


async def test_name_without_an_address_and_a_node_without_a_name_are_not_refusals() -> None:
    peers = peers_of({NODE: Address("no.such.name.invalid", 1)}.get)
    with pytest.raises(PeerUnreachableError) as caught:
        await work(peers)
    assert not isinstance(caught.value, PeerRefusedError)
    with pytest.raises(PeerUnreachableError, match="nobody knows its address"):
        await peers.call(9, Lane.REST, ForwardRequest(), ForwardResponse, timeout_ms=PATIENT_MS)
    peers.close()


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[Address]:
    """Takes connections and says nothing."""
    ended = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        ended.set()
        server.close()


async def test_who_takes_connections_and_is_silent_is_unreachable_not_refusing() -> None:
    async with silent_server() as address:
        peers = peers_of({NODE: address}.get, handshake_ms_max=30)
        with pytest.raises(PeerUnreachableError) as caught:
            await work(peers)
        assert not isinstance(caught.value, PeerRefusedError)
        with pytest.raises(PeerUnreachableError):
            await work(peers, timeout_ms=5)
        peers.close()


# Somebody else there


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cluster_id": "meadow"}, "node 3 is of cluster 'meadow', node 2 of cluster 'orchard'"),
        ({"feature_level": 2}, "node 3 acts by feature level 2, node 2 by level 1"),
        ({"feature_level": 0}, "node 3 acts by feature level 0, node 2 by level 1"),
    ],
)
async def test_node_that_is_none_of_us_is_told_in_both_logs(
    node: TalkingNode, change: dict[str, Any], told: str
) -> None:
    peers = peers_of({NODE: internal_address(node)}.get, identity=lambda: msgspec.structs.replace(THERE, **change))
    with capture_logs() as events, pytest.raises(PeerMismatchError, match=told):
        await work(peers)
    warnings = {event["event"]: event["reason"] for event in events if event["log_level"] == "warning"}
    assert warnings == {"node refused": told, "node refused us": told}
    peers.close()


async def test_wrong_secret_is_told_in_both_logs(node: TalkingNode) -> None:
    peers = peers_of({NODE: internal_address(node)}.get, secret=b"another")
    with capture_logs() as events, pytest.raises(PeerMismatchError, match="does not know this node's secret"):
        await work(peers)
    assert [event["event"] for event in events] == ["login refused", "node refused us"]
    peers.close()


async def test_another_node_than_was_meant_is_not_talked_to(node: TalkingNode) -> None:
    peers = peers_of(lambda _: internal_address(node))
    with pytest.raises(PeerMismatchError, match="where node 8 should be is node 2"):
        await peers.call(8, Lane.REST, ForwardRequest(), ForwardResponse, timeout_ms=PATIENT_MS)
    peers.close()


async def test_what_the_other_node_does_not_serve_is_told(peers: Peers) -> None:
    with pytest.raises(PeerMismatchError, match="does not offer Metadata"):
        await peers.call(NODE, Lane.REST, MetadataRequest(), MetadataResponse, timeout_ms=PATIENT_MS)


# What became of it


async def test_node_that_does_not_answer_in_time_has_maybe_done_it(peers: Peers, replicas: ScriptedReplicas) -> None:
    replicas.held.clear()
    patient = asyncio.ensure_future(work(peers, HELD_KIND))
    await until(lambda: len(replicas.forwards) == 1)
    async with asyncio.timeout(1):
        with pytest.raises(PeerLostError, match=r"did not answer Forward within 0\.0\d+ s"):
            await work(peers, HELD_KIND, timeout_ms=30)
    # Who lives answers each in time: the connection is given up with all that were asked by it.
    with pytest.raises(PeerLostError):
        await patient
    assert await work(peers) == b"ba"


async def test_who_waited_for_room_is_not_lost_with_another(node: TalkingNode, replicas: ScriptedReplicas) -> None:
    peers = peers_of({NODE: internal_address(node)}.get, requests_in_flight_max=1)
    replicas.held.clear()
    overdue = asyncio.ensure_future(work(peers, HELD_KIND, timeout_ms=300))
    await until(lambda: len(replicas.forwards) == 1)
    assert await work(peers) == b"ba"
    with pytest.raises(PeerLostError):
        await overdue
    peers.close()


async def test_connection_that_broke_is_made_anew_at_once(node: TalkingNode, peers: Peers) -> None:
    await work(peers)
    server = internal_door(node).server
    assert server is not None
    for connection in list(server._connections):
        connection.cut_off()
    await until(lambda: connection_count(node) == 0)
    assert await work(peers) == b"ba"


async def test_request_under_way_is_lost_with_its_connection(
    node: TalkingNode, peers: Peers, replicas: ScriptedReplicas
) -> None:
    replicas.held.clear()
    held = asyncio.ensure_future(work(peers, HELD_KIND))
    await until(lambda: len(replicas.forwards) == 1)
    server = internal_door(node).server
    assert server is not None
    for connection in list(server._connections):
        connection.cut_off()
    with pytest.raises(PeerLostError, match=r"node 2: the connection to .* was lost"):
        await held


async def test_node_that_comes_back_is_found_again(replicas: ScriptedReplicas) -> None:
    places: dict[int, Address] = {NODE: Address("127.0.0.1", free_port())}
    peers = peers_of(places.get, backoff_ms_min=1, backoff_ms_max=2)
    for _ in range(3):
        with pytest.raises(PeerRefusedError):
            await work(peers)
    async with node_with_internal_door(replicas, listen=str(places[NODE])):
        assert await work(peers) == b"ba"
    with pytest.raises((PeerLostError, PeerRefusedError)):
        await work(peers)
    async with node_with_internal_door(replicas) as elsewhere:
        places[NODE] = internal_address(elsewhere)
        assert await work(peers) == b"ba"
    peers.close()


def test_attempts_become_rarer_and_are_spread() -> None:
    options = PeerOptions(backoff_ms_min=8, backoff_ms_max=40)
    waits_ms = [backoff_ms(options, failure_count=count, chance=0.5) for count in (0, 1, 2, 3, 4, 1_000_000)]
    assert waits_ms == [6, 12, 24, 30, 30, 30]
    assert [backoff_ms(options, failure_count=0, chance=chance) for chance in (0.0, 1.0)] == [4, 8]


async def test_who_waited_for_a_failed_attempt_is_told() -> None:
    address = Address("127.0.0.1", free_port())
    peers = peers_of({NODE: address}.get, backoff_ms_min=PATIENT_MS, backoff_ms_max=PATIENT_MS)
    # By that attempt, not when their own time is up.
    async with asyncio.timeout(PATIENT_MS / 2000):
        outcomes = await asyncio.gather(*(work(peers) for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PeerRefusedError] * 5
    peers.close()


async def test_nobody_tries_again_before_its_time(replicas: ScriptedReplicas) -> None:
    address = Address("127.0.0.1", free_port())
    peers = peers_of({NODE: address}.get, backoff_ms_min=PATIENT_MS, backoff_ms_max=PATIENT_MS)
    with pytest.raises(PeerRefusedError):
        await work(peers)
    async with node_with_internal_door(replicas, listen=str(address)):
        with pytest.raises(PeerRefusedError):
            await work(peers, timeout_ms=500)
    peers.close()


async def test_new_life_says_hello_again(node: TalkingNode, replicas: ScriptedReplicas) -> None:
    life = THERE.life
    identity = lambda: msgspec.structs.replace(THERE, life=life)  # noqa: E731
    peers = peers_of({NODE: internal_address(node)}.get, identity=identity)
    calls = ReplicaCalls(peers)
    await calls.fetch(NODE, Lane.FAST, msgspec.structs.replace(said.FETCH, life=life))
    life = 90
    await calls.fetch(NODE, Lane.FAST, msgspec.structs.replace(said.FETCH, life=life))
    assert [asking.life for _, asking in replicas.fetches] == [THERE.life, 90]
    peers.close()


async def test_closed_book_is_closed_for_good(node: TalkingNode, peers: Peers, replicas: ScriptedReplicas) -> None:
    replicas.held.clear()
    held = asyncio.ensure_future(work(peers, HELD_KIND))
    await until(lambda: len(replicas.forwards) == 1)
    peers.close()
    with pytest.raises(PeerLostError):
        await held
    with pytest.raises(PeerUnreachableError, match="this node is stopping"):
        await work(peers)
    await until(lambda: connection_count(node) == 0)


async def test_forgotten_node_has_no_connection(node: TalkingNode, peers: Peers) -> None:
    await work(peers)
    peers.forget(NODE)
    await until(lambda: connection_count(node) == 0)
    assert await work(peers) == b"ba"


@pytest.mark.parametrize("end", [lambda peers: peers.forget(NODE), lambda peers: peers.close()])
async def test_connection_that_is_made_too_late_is_not_left_behind(
    node: TalkingNode, end: Callable[[Peers], None]
) -> None:
    def secret() -> bytes:
        """Asked for when the connection is about to be made."""
        end(peers)
        return SECRET

    options, address_of = PeerOptions(), {NODE: internal_address(node)}.get
    peers = Peers(lambda: THERE, secret, address_of, clock=SystemClock(), jitter=lambda: 0.0, options=options)
    with pytest.raises(PeerUnreachableError, match="is not asked any more"):
        await work(peers)
    await until(lambda: connection_count(node) == 0)
