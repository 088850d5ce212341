"""What followers and other doors ask of the partitions that are led here: bytes to values, and values to bytes.

Who answers is a `ReplicaServer`, which knows no bytes. A fetch is answered in its turn: each lane of a follower is a
connection of its own and has one under way. All else is answered when it is ready, whatever was asked before it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol

import msgspec

from penstock.codec.kafka.internal.barrier import BarrierRequest, BarrierResponse
from penstock.codec.kafka.internal.describe_replica import DescribeReplicaRequest, DescribeReplicaResponse
from penstock.codec.kafka.internal.forward import ForwardRequest, ForwardResponse
from penstock.codec.kafka.messages.fetch import FetchRequest, FetchResponse
from penstock.domain.replication.exchange import (
    CHECKSUMS_MAX,
    Barrier,
    DescribeReplica,
    Forward,
    Forwarded,
    LogPassed,
    ReplicaDescription,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaProblem,
)
from penstock.domain.replication.identity import NodeIdentity
from penstock.gateways.cluster.hello import login_of
from penstock.gateways.kafka.context import Aside, ClientConnection, RequestContext
from penstock.net.replica import fetch as fetch_wire
from penstock.net.replica import questions as wire

# From here on a fetch has topic ids, and tags for who asks and for what is ours.
FETCH_VERSION_MIN: Final = 17
# What nobody should wait for any longer: SQS lets a client wait for 20 s.
WAIT_MS_MAX: Final = 60_000


class AskingNode(msgspec.Struct, frozen=True):
    identity: NodeIdentity
    connection: ClientConnection

    @property
    def is_gone(self) -> bool:
        """Nobody waits for an answer any more."""
        return self.connection.is_gone

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Calls once; at once if it is gone already."""
        self.connection.when_closed(callback)


class ReplicaServer(Protocol):
    """Those who answer other nodes. Each returns a problem rather than raise; what it raises costs the connection."""

    async def fetch(self, fetch: ReplicaFetch, asking: AskingNode) -> ReplicaFetched:
        """Parked for `wait_ms` at the most. Cancelled when the follower hangs up. The logs of one topic id come one
        after another. Records may be views of memory that stays as it is until they are sent."""
        ...

    async def barrier(self, barrier: Barrier) -> Sequence[LogPassed]:
        """One for each log, after `timeout_ms` at the latest."""
        ...

    async def describe(self, asked: DescribeReplica) -> ReplicaDescription: ...

    async def forward(self, forward: Forward, asking: AskingNode) -> Forwarded:
        """Not cancelled when the other node is gone: what was begun ends. Answered after `timeout_ms` at the latest."""
        ...


class ReplicaHandlers:
    def __init__(self, replicas: ReplicaServer) -> None:
        self._replicas = replicas

    def fetch(
        self, request: FetchRequest, context: RequestContext
    ) -> FetchResponse | Coroutine[object, object, FetchResponse]:
        asking = _asking(context)
        problem = _fetch_problem(request, context.api_version, asking.identity)
        if problem is not None:
            return fetch_wire.write_response(ReplicaFetched(problem=problem))
        return self._fetch(fetch_wire.read_request(request), asking)

    async def _fetch(self, fetch: ReplicaFetch, asking: AskingNode) -> FetchResponse:
        return fetch_wire.write_response(await self._replicas.fetch(fetch, asking))

    def barrier(self, request: BarrierRequest, context: RequestContext) -> Aside:  # noqa: ARG002
        return Aside(self._barrier(wire.read_barrier(request)))

    async def _barrier(self, barrier: Barrier) -> BarrierResponse:
        bounded = msgspec.structs.replace(barrier, timeout_ms=_bounded_ms(barrier.timeout_ms))
        return wire.write_passed(await self._replicas.barrier(bounded))

    def describe(
        self,
        request: DescribeReplicaRequest,
        context: RequestContext,  # noqa: ARG002
    ) -> DescribeReplicaResponse | Aside:
        asked = wire.read_describe(request)
        if asked.range_count > CHECKSUMS_MAX:
            detail = f"{asked.range_count} checksums, at most {CHECKSUMS_MAX} are made at once"
            return wire.write_description(ReplicaDescription(problem=ReplicaProblem.INVALID, detail=detail))
        return Aside(self._describe(asked))

    async def _describe(self, asked: DescribeReplica) -> DescribeReplicaResponse:
        return wire.write_description(await self._replicas.describe(asked))

    def forward(self, request: ForwardRequest, context: RequestContext) -> Aside:
        return Aside(self._forward(wire.read_forward(request), _asking(context)))

    async def _forward(self, forward: Forward, asking: AskingNode) -> ForwardResponse:
        bounded = msgspec.structs.replace(forward, timeout_ms=_bounded_ms(forward.timeout_ms))
        return wire.write_forwarded(await self._replicas.forward(bounded, asking))


def _asking(context: RequestContext) -> AskingNode:
    peer, connection = login_of(context).peer, context.connection
    assert peer is not None, "nothing is taken before Hello"
    assert connection is not None, "requests come by a connection"
    return AskingNode(peer, connection)


def _fetch_problem(request: FetchRequest, version: int, asking: NodeIdentity) -> ReplicaProblem | None:
    """A node fetches for itself, in the life that it has said it lives."""
    if version < FETCH_VERSION_MIN or request.replica_state.replica_id != asking.node_id:
        return ReplicaProblem.INVALID
    return None if request.replica_state.replica_epoch == asking.life else ReplicaProblem.STALE_LIFE


def _bounded_ms(wanted_ms: int) -> int:
    return max(0, min(wanted_ms, WAIT_MS_MAX))
