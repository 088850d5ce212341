"""A batch of a mover at its target, wherever that is led: here, or on another node.

    led here ──────────► append ─► committed ─► Landed
    led by node N ─────► asked to do the same, under the leadership that this node knows of ─► Landed
                                         └─ no answer, another leader by now, not in time: Away, and it is sent again

Rules:
- It is answered when the batch is committed, also where the topic promises less: the source is forgotten for it.
- A batch that is there is there, whatever the topic's rules have become since.
- What is refused is refused by the leader of the epoch that was asked for. A node that led before, and has not heard
  that it no longer does, may lack what was written since: its word about a sequence would be a lie. And a request that
  was under way all the time is not taken in a later epoch.
- That another node knows no such topic says nothing: it may hear of it later than this one.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal
from penstock.broker.partition.recompression import recompress_own_aside
from penstock.broker.partition.role import NO_LEADER
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.not_here import NotHere
from penstock.codec.batch.header import NO_TIMESTAMP, BatchProblem, read_header
from penstock.domain.log.producer_sequence import Duplicate
from penstock.domain.queue.landing import SENT_BYTES_MAX, Landing, write_landing
from penstock.domain.replication.exchange import LogName
from penstock.net.errors import PeerError

_LOSSES: Final = {
    Loss.DISK: Refusal.OFFLINE,
    Loss.LEADERSHIP: Refusal.NOT_LEADER,
    Loss.TIMEOUT: Refusal.TIMED_OUT,
    Loss.REPLICAS: Refusal.NOT_ENOUGH_REPLICAS,
}
_REFUSALS: Final = {refusal.value: refusal for refusal in Refusal}
_TOO_FAR: Final = f"more than {SENT_BYTES_MAX:,} bytes, which are not sent to another node at once"


class Landed(msgspec.Struct, frozen=True):
    """Committed."""

    base_offset: int


class Away(msgspec.Struct, frozen=True):
    """Nobody knows whether it is there: it is sent again, as it is."""

    why: str


class MoveLine(Protocol):
    """By which other nodes are asked: `net.replica.moves.MoveCalls`."""

    async def land(self, node_id: int, log: LogName, leader_epoch: int, batch: bytes) -> Landing | str: ...


async def land(partition: PartitionShell, leadership: Leadership, batch: bytearray) -> Landed | AppendRefused:
    """In a partition that is led here."""
    batch = await recompress_own_aside(partition.recompression, batch)
    outcome = partition.append_decided(memoryview(batch), leadership)
    if isinstance(outcome, AppendRefused):
        outcome = _repeated(partition, leadership, batch) or outcome
    if not isinstance(outcome, Appended):
        assert isinstance(outcome, AppendRefused), "movers have no transactions"
        return outcome
    commitment = outcome.commitment or partition.commit_if_unsynced()
    if commitment is None or await commitment.kept():
        return Landed(outcome.base_offset)
    return _lost(commitment)


def _repeated(partition: PartitionShell, leadership: Leadership, batch: bytearray) -> Appended | None:
    """A topic asks its rules first, and they may have become stricter since it took this very batch."""
    header = read_header(batch)
    if isinstance(header, BatchProblem):
        return None
    verdict = partition.log.producers.check(header)
    is_led = partition.refuse_leadership(leadership) is None
    if not isinstance(verdict, Duplicate) or partition.log.failure is not None or not is_led:
        return None
    commitment = partition.commitment_of(verdict.base_offset)
    return Appended(verdict.base_offset, NO_TIMESTAMP, partition.log_start, commitment)


def _lost(commitment: Commitment) -> AppendRefused:
    loss = commitment.loss
    assert loss is not None
    return AppendRefused(_LOSSES[loss], loss.value)


async def land_elsewhere(
    line: MoveLine | None, target: NotHere, log: LogName, batch: bytearray
) -> Landed | AppendRefused | Away:
    if line is None or target.leader == NO_LEADER:
        return Away(target.detail)
    if len(batch) > SENT_BYTES_MAX:
        return AppendRefused(Refusal.TOO_LARGE, _TOO_FAR)
    try:
        landing = await line.land(target.leader, log, target.epoch, bytes(batch))
    except PeerError as error:
        return Away(f"{target.detail}, which gave no answer: {error}")
    if isinstance(landing, str):
        return Away(f"{target.detail}, which says: {landing}")
    if not landing.refusal:
        return Landed(landing.base_offset)
    refusal = _REFUSALS.get(landing.refusal)
    # One that this version does not know may mean anything.
    return Away(f"{target.detail}: {landing.reason}") if refusal is None else AppendRefused(refusal, landing.reason)


async def land_for_another(partition: PartitionShell, leadership: Leadership, body: bytes) -> bytes:
    """For another node's mover. It may end at any `await`: what is written stays written."""
    outcome = await land(partition, leadership, bytearray(body))
    if isinstance(outcome, Landed):
        return write_landing(Landing(outcome.base_offset))
    return write_landing(Landing(refusal=outcome.refusal.value, reason=outcome.reason))
