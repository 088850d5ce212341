"""What must hold in the simulated world, told apart from the machines: a book of what producers did and what the
coordinator's disk says, a reader as the clients are, and a model that looks at a partition's log alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.domain.transaction.commands import (
    Decision,
    EndTransaction,
    InitProducer,
    ProducerReady,
    TransactionCommand,
)
from penstock.domain.transaction.state import NO_PRODUCER_ID, TransactionState
from support.transaction.world_nodes import NO_SEQUENCE, Asker, Batch, SimPartition

if TYPE_CHECKING:
    from support.transaction.world import World


class InvariantBrokenError(Exception):
    def __init__(self, invariant: str, detail: str = "") -> None:
        super().__init__(f"{invariant}: {detail}" if detail else invariant)
        self.invariant = invariant


class Ledger:
    """Filled as the coordinator's records become durable, in their order, and as producers get their answers."""

    def __init__(self) -> None:
        self.values: dict[int, list[str]] = {}
        self.transaction_of: dict[str, int] = {}
        # Values of group positions: stored again when they are sent again, and no harm done.
        self.may_repeat: set[str] = set()
        self.committed: set[int] = set()
        self.seen: Counter[str] = Counter()
        # The producer that last took each transactional id as a new one.
        self._holders: dict[str, int] = {}

    def note_value(self, transaction: int, value: str, *, sequence: int) -> None:
        if value not in self.transaction_of:
            self.transaction_of[value] = transaction
            self.values.setdefault(transaction, []).append(value)
            if sequence == NO_SEQUENCE:
                self.may_repeat.add(value)

    def decided(self, command: TransactionCommand, decision: Decision, asker: Asker) -> None:
        if isinstance(command, InitProducer):
            self._decided_init(command, decision, asker)
        elif isinstance(command, EndTransaction) and command.is_commit and decision.records:
            metadata = decision.records[0].metadata
            assert metadata is not None
            holder = self._holders.get(command.transactional_id)
            if holder != asker.incarnation:
                raise InvariantBrokenError("a fenced producer commits nothing", f"{asker} after {holder}")
            self.committed.add(asker.transaction)

    def _decided_init(self, command: InitProducer, decision: Decision, asker: Asker) -> None:
        holder = self._holders.get(command.transactional_id)
        if command.producer_id == NO_PRODUCER_ID:
            if isinstance(decision.reply, ProducerReady):
                self._holders[command.transactional_id] = asker.incarnation
        elif holder != asker.incarnation and decision.records:
            metadata = decision.records[0].metadata
            assert metadata is not None
            if metadata.state is TransactionState.EMPTY:
                raise InvariantBrokenError("a fenced producer does not come back", f"{asker} after {holder}")
            raise InvariantBrokenError("a fenced producer aborts nothing of its successor", f"{asker} after {holder}")

    def told_ended(self, transaction: int, *, is_commit: bool) -> None:
        """A producer was told that its transaction has ended so."""
        if is_commit != (transaction in self.committed):
            raise InvariantBrokenError("a producer is told the truth about its transaction", f"{transaction}")

    def read(self, value: str) -> None:
        if self.transaction_of[value] not in self.committed:
            raise InvariantBrokenError("readers see committed records alone", value)
        self.seen[value] += 1
        if self.seen[value] > 1 and value not in self.may_repeat:
            raise InvariantBrokenError("readers see a record once", value)

    def check_all_seen(self) -> None:
        """In the end: every committed transaction, whole."""
        for transaction in sorted(self.committed):
            missing = [value for value in self.values.get(transaction, []) if not self.seen[value]]
            if missing:
                raise InvariantBrokenError("readers see committed transactions whole", f"{transaction}: {missing}")


class Reader:
    """A consumer of committed records: it fetches up to the last stable offset and filters as Kafka's clients do."""

    def __init__(self, world: World, partition: SimPartition) -> None:
        self.world = world
        self.partition = partition
        self.position = 0
        self._stable_offset = 0

    def watch(self) -> None:
        """After every event."""
        stable_offset = self.partition.transactions.last_stable_offset
        if stable_offset < self._stable_offset:
            raise InvariantBrokenError(
                "the last stable offset never goes back", f"{self._stable_offset} to {stable_offset}"
            )
        self._stable_offset = stable_offset

    def fetch(self, *, all_there_is: bool = False) -> None:
        partition = self.partition
        stable_offset = partition.transactions.last_stable_offset
        self._check_stable_offset(stable_offset)
        batches = [batch for batch in partition.log if self.position <= batch.base_offset < stable_offset]
        if not batches:
            return
        if not all_there_is:
            batches = batches[: self.world.rng.randint(1, len(batches))]
        end = batches[-1].next_offset
        aborted = partition.transactions.aborted.between(self.position, end)
        expected = aborted_in(partition.log, self.position, end)
        if [(entry.producer_id, entry.first_offset) for entry in aborted] != expected:
            raise InvariantBrokenError("a fetch lists the aborted transactions in it", f"{aborted}, not {expected}")
        self._take(batches, aborted)
        self.position = end

    def _take(self, batches: Sequence[Batch], aborted: Sequence[AbortedTransaction]) -> None:
        to_come = list(aborted)
        skipped: set[int] = set()
        for batch in batches:
            while to_come and to_come[0].first_offset <= batch.base_offset:
                skipped.add(to_come.pop(0).producer_id)
            if batch.is_control:
                if not batch.is_commit:
                    skipped.discard(batch.producer_id)
            elif batch.producer_id not in skipped:
                self.world.ledger.read(batch.value)

    def _check_stable_offset(self, stable_offset: int) -> None:
        expected = stable_offset_of(self.partition.log, self.partition.transactions.high_watermark)
        if stable_offset > expected:
            raise InvariantBrokenError(
                "the last stable offset passes no open transaction", f"{stable_offset}, at most {expected}"
            )
        if stable_offset < expected:
            raise InvariantBrokenError("the last stable offset gets as far as it can", f"{stable_offset}, {expected}")


def _transactions_of(log: Sequence[Batch]) -> list[tuple[int, int, Batch | None]]:
    """(producer id, first offset, marker if there is one), by looking at the log alone."""
    found: list[tuple[int, int, Batch | None]] = []
    open_at: dict[int, int] = {}
    for batch in log:
        if not batch.is_control:
            open_at.setdefault(batch.producer_id, batch.base_offset)
        elif batch.producer_id in open_at:
            found.append((batch.producer_id, open_at.pop(batch.producer_id), batch))
    return found + [(producer_id, first, None) for producer_id, first in open_at.items()]


def stable_offset_of(log: Sequence[Batch], high_watermark: int) -> int:
    unstable = [
        first
        for _producer_id, first, marker in _transactions_of(log)
        if marker is None or marker.base_offset >= high_watermark
    ]
    return min([*unstable, high_watermark])


def aborted_in(log: Sequence[Batch], start: int, end: int) -> list[tuple[int, int]]:
    return [
        (producer_id, first)
        for first, producer_id in sorted(
            (first, producer_id)
            for producer_id, first, marker in _transactions_of(log)
            if marker is not None and not marker.is_commit and marker.base_offset >= start and first < end
        )
    ]
