"""Batches of queues' movers for partitions that another node leads: dead letters, and what is redriven."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.queue.landing import Landing, read_landing
from penstock.domain.replication.exchange import Forward, ForwardKind, LogName
from penstock.net.errors import PeerLostError
from penstock.net.peers import Peers
from penstock.net.replica.calls import ReplicaCalls

# Answered when the batch is committed: some turns of the disks, and a follower that is waited for until it is taken out
# of the set. Who is silent for longer is asked again, which is harmless.
LANDING_MS_MAX: Final = 30_000


class MoveCalls:
    def __init__(self, peers: Peers) -> None:
        self._calls = ReplicaCalls(peers)

    async def land(self, node_id: int, log: LogName, leader_epoch: int, batch: bytes) -> Landing | str:
        """Why it was not taken under this leadership, or nobody knows whether it was, is a string. PeerError: no
        answer."""
        forward = Forward(
            kind=ForwardKind.LANDING, log=log, leader_epoch=leader_epoch, timeout_ms=LANDING_MS_MAX, body=batch
        )
        answer = await self._calls.forward(node_id, forward)
        if answer.problem is not None:
            return answer.problem.value
        try:
            return read_landing(answer.body)
        except msgspec.DecodeError as error:
            raise PeerLostError(f"node {node_id} answers what nobody asked: {error}") from error
