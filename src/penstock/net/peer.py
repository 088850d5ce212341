"""A connection to another node of the cluster: connect, log in with the cluster's secret, say Hello.

    address ─► every IP of it ─► login ─► Hello ─► a connection that any node may be asked by

Whoever answers must know the secret (SCRAM proves it to both sides), be of this cluster, act by the same feature level
and be the node that was meant. What goes wrong is one of three things: nobody there, nobody listening, somebody else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.codec.kafka.internal.hello import HelloRequest, HelloResponse
from penstock.domain.replication.identity import NODE_USER, NodeIdentity, login_password, mismatch
from penstock.net.address import Address
from penstock.net.connection import Connection, ConnectionOptions
from penstock.net.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    ClientError,
    LoginFailedError,
    PeerMismatchError,
    PeerRefusedError,
    PeerUnreachableError,
    ProtocolMismatchError,
)
from penstock.net.login import Credentials

# Of one name. More than two, IPv4 and IPv6, is a mistake in somebody's DNS.
ADDRESSES_MAX: Final = 4


class PeerOptions(msgspec.Struct, frozen=True):
    # Nodes are near each other: who has not answered by now is not there.
    connect_ms_max: int = 1_000
    # For each step of the login and for Hello.
    handshake_ms_max: int = 2_000
    # More wait for room.
    requests_in_flight_max: int = 128
    # A reply of a fetch has 8 MiB, and one batch that may be larger; work that is forwarded may bring more.
    frame_bytes_max: int = 128 * 1024 * 1024
    # Between two attempts to connect, doubled with each that fails.
    backoff_ms_min: int = 50
    backoff_ms_max: int = 1_000


async def open_peer(
    node_id: int, address: Address, identity: NodeIdentity, secret: bytes, options: PeerOptions
) -> Connection:
    """Greeted, and ready for requests. Raises PeerUnreachableError, PeerRefusedError or PeerMismatchError."""
    who = f"node {node_id} at {address}"
    connection = await _connect(who, address, _connection_options(identity, secret, options))
    try:
        request = HelloRequest(identity.cluster_id, identity.node_id, identity.life, identity.feature_level)
        answer = await connection.call(request, HelloResponse, timeout_ms=options.handshake_ms_max)
        reason = _judge(node_id, identity, answer)
    except ProtocolMismatchError as error:
        connection.close()
        raise PeerMismatchError(f"{who}: {error}") from error
    except ClientError as error:
        connection.close()
        raise PeerUnreachableError(f"{who}: {error}") from error
    except BaseException:
        connection.close()
        raise
    if reason is not None:
        connection.close()
        raise PeerMismatchError(reason)
    return connection


def _judge(node_id: int, ours: NodeIdentity, answer: HelloResponse) -> str | None:
    """Why this is nobody to talk to."""
    if answer.error_code:
        return answer.error_message or f"node {node_id} refuses this node with error code {answer.error_code}"
    theirs = NodeIdentity(answer.cluster_id, answer.node_id, answer.broker_epoch, answer.feature_level)
    if theirs.node_id != node_id:
        return f"where node {node_id} should be is node {theirs.node_id}"
    return mismatch(ours, theirs)


def _connection_options(identity: NodeIdentity, secret: bytes, options: PeerOptions) -> ConnectionOptions:
    return ConnectionOptions(
        client_id=f"node-{identity.node_id}",
        connect_timeout_ms=options.connect_ms_max,
        handshake_timeout_ms=options.handshake_ms_max,
        frame_bytes_max=options.frame_bytes_max,
        requests_in_flight_max=options.requests_in_flight_max,
        is_ordered=False,
        version_caps={},
        credentials=Credentials(NODE_USER, login_password(secret)),
    )


async def _connect(who: str, address: Address, options: ConnectionOptions) -> Connection:
    failures: list[BrokerUnreachableError] = []
    for place in await _resolve(who, address):
        try:
            return await Connection.open(place, options)
        except BrokerUnreachableError as error:
            # Also one that hung up in the middle: most likely it is going down.
            failures.append(error)
        except LoginFailedError as error:
            raise PeerMismatchError(f"{who} does not know this node's secret: it is of another cluster") from error
        except ProtocolMismatchError as error:
            raise PeerMismatchError(f"{who}: {error}") from error
        except ClientError as error:
            raise PeerUnreachableError(f"{who}: {error}") from error
    raise failure_of(who, failures) from failures[0]


def failure_of(who: str, failures: Sequence[BrokerUnreachableError]) -> PeerUnreachableError:
    """Refused is only who refuses at every one of its addresses: that is taken for a node's death."""
    if all(isinstance(failure, BrokerRefusedError) for failure in failures):
        return PeerRefusedError(f"{who} refuses connections")
    return PeerUnreachableError(f"{who}: {failures[0]}")


async def _resolve(who: str, address: Address) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PeerUnreachableError(f"{who}: its name has no address ({error.strerror or error})") from error
    places = dict.fromkeys(Address(str(place[0]), address.port) for *_, place in found)
    return list(places)[:ADDRESSES_MAX]
