"""What a node asks another about the logs of a partition: values in, values out, by whichever line is right."""

from __future__ import annotations

from typing import Final

from penstock.codec.kafka.internal.barrier import BarrierResponse
from penstock.codec.kafka.internal.describe_replica import DescribeReplicaResponse
from penstock.codec.kafka.internal.forward import ForwardResponse
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.domain.replication.exchange import (
    Barrier,
    DescribeReplica,
    Forward,
    Forwarded,
    LogPassed,
    ReplicaDescription,
    ReplicaFetch,
    ReplicaFetched,
)
from penstock.net.peers import Lane, Peers
from penstock.net.replica import fetch as fetch_wire
from penstock.net.replica import questions as wire

# What the other side was told to wait for at the most, and this for the way there and back: who is silent for longer is
# not waiting but stuck, and its connection is given up.
GRACE_MS: Final = 2_000


class ReplicaCalls:
    """Each raises PeerError where there is no answer; a problem is an answer."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, node_id: int, lane: Lane, fetch: ReplicaFetch) -> ReplicaFetched:
        """Its records are views of memory that belongs to the answer."""
        request, timeout_ms = fetch_wire.write_request(fetch), fetch.wait_ms + GRACE_MS
        return fetch_wire.read_response(
            await self._peers.call(node_id, lane, request, FetchResponse, timeout_ms=timeout_ms)
        )

    async def barrier(self, node_id: int, barrier: Barrier) -> list[LogPassed]:
        request, timeout_ms = wire.write_barrier(barrier), barrier.timeout_ms + GRACE_MS
        return wire.read_passed(
            await self._peers.call(node_id, Lane.REST, request, BarrierResponse, timeout_ms=timeout_ms)
        )

    async def describe(self, node_id: int, asked: DescribeReplica, *, timeout_ms: int) -> ReplicaDescription:
        request = wire.write_describe(asked)
        return wire.read_description(
            await self._peers.call(node_id, Lane.SLOW, request, DescribeReplicaResponse, timeout_ms=timeout_ms)
        )

    async def forward(self, node_id: int, forward: Forward, lane: Lane = Lane.REST) -> Forwarded:
        request, timeout_ms = wire.write_forward(forward), forward.timeout_ms + GRACE_MS
        return wire.read_forwarded(
            await self._peers.call(node_id, lane, request, ForwardResponse, timeout_ms=timeout_ms)
        )
