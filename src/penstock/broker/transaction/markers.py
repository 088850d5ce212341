"""Markers: the end of a transaction, told to one of its partitions.

A partition of `__consumer_offsets` is told through its groups' coordinator, which makes the pending positions count or
forgets them; any other gets a control batch, and before it its schedule, where delayed records of the transaction wait
for its end. All are durable when `write` returns WRITTEN, and all may be told again. Here are partitions that this node
leads; for others see `elsewhere`.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.partition.marker import refuse_marker, write_marker
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.marker import MarkerOutcome

__all__ = ["PASSING", "MarkerOutcome", "MarkerWriter"]


# Those after which the marker is written again.
PASSING: Final = frozenset({MarkerOutcome.UNAVAILABLE, MarkerOutcome.NOT_LEADER})

_REFUSED: Final = {
    Refusal.PRODUCER_FENCED: MarkerOutcome.PRODUCER_FENCED,
    Refusal.COORDINATOR_FENCED: MarkerOutcome.COORDINATOR_FENCED,
    Refusal.NOT_LEADER: MarkerOutcome.NOT_LEADER,
}


class MarkerWriter:
    def __init__(self, broker: Broker, groups: GroupCoordinator, delays: DelayedBatches) -> None:
        self._broker = broker
        self._groups = groups
        self._delays = delays

    async def write(self, topic: str, partition: int, end: TransactionEnd) -> MarkerOutcome:
        shell = self._broker.find(topic, partition)
        if isinstance(shell, NotHere):
            return MarkerOutcome.GONE if shell.is_unknown else MarkerOutcome.NOT_LEADER
        if topic == CONSUMER_OFFSETS:
            is_told = await self._groups.end_transaction(partition, end)
            return MarkerOutcome.WRITTEN if is_told else MarkerOutcome.UNAVAILABLE
        refused = refuse_marker(shell, end)
        if isinstance(refused, AppendRefused):
            return _REFUSED.get(refused.refusal, MarkerOutcome.UNAVAILABLE)
        # Also where the marker is there already: after a crash the schedule may hold records of a transaction of which
        # the log has nothing.
        async with self._delays.ending(shell, end) as is_ended:
            if not is_ended:
                return MarkerOutcome.UNAVAILABLE
            # Where nothing is delayed nobody has waited up to here: markers of one moment share a turn of the disk.
            outcome = write_marker(shell, end)
        if isinstance(outcome, AppendRefused):
            return _REFUSED.get(outcome.refusal, MarkerOutcome.UNAVAILABLE)
        if outcome.commitment is not None and not await outcome.commitment.kept():
            return MarkerOutcome.UNAVAILABLE
        return MarkerOutcome.WRITTEN
