"""The transactions of one partition of `__transaction_state`: decided here, remembered by records.

`decide` says what should happen and `apply` makes it so, live and at recovery alike; neither waits for anything.
What the caller owes:

- Apply the records of a decision before the next `decide`, and append them in that order. Only when they, and all
  before them, are durable: give the reply and do the effects. A decision without records waits as well, for it may
  have seen records that are not durable yet.
- An append that failed: drop the machine, and build it anew from the log.
- After a start, or when the coordinator moves here: apply the log, then do `pending_markers`.
- Answer `ProducerIdNeeded` by asking again with a new producer id.
- One alarm for `next_deadline_ms`, then `TimePassed`; it may ring for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, assert_never

from penstock.domain.transaction.commands import (
    AddPartitions,
    Decision,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    Noted,
    TimePassed,
    TransactionCommand,
    TransactionListing,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.domain.transaction.deadlines import TransactionDeadlines
from penstock.domain.transaction.rules import (
    TransactionSettings,
    decide_add,
    decide_end,
    decide_init,
    decide_verify,
    markers_of,
)
from penstock.domain.transaction.state import (
    TopicPartition,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    complete,
    fence,
)

# A thousand records are one append of some 100 KB; what is left is due at once.
DUE_MAX: Final = 1000

_NOTED: Final = Noted()


class TransactionCoordinator:
    __slots__ = ("_deadlines", "_settings", "_transactions", "_unmarked", "coordinator_epoch")

    def __init__(self, settings: TransactionSettings | None = None, *, coordinator_epoch: int) -> None:
        self.coordinator_epoch = coordinator_epoch
        self._settings = settings or TransactionSettings()
        self._transactions: dict[str, TransactionMetadata] = {}
        # Of prepared transactions: the partitions that have not said that they hold the marker. Not state: after a
        # restart all are asked again, and those that hold it say so.
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._deadlines = TransactionDeadlines()

    def decide(self, command: TransactionCommand, now_ms: int) -> Decision:
        match command:
            case InitProducer():
                return decide_init(
                    self._transactions.get(command.transactional_id),
                    command,
                    now_ms,
                    settings=self._settings,
                    coordinator_epoch=self.coordinator_epoch,
                )
            case AddPartitions():
                return decide_add(self._transactions.get(command.transactional_id), command, now_ms)
            case VerifyPartitions():
                return decide_verify(self._transactions.get(command.transactional_id), command)
            case EndTransaction():
                metadata = self._transactions.get(command.transactional_id)
                return decide_end(metadata, command, now_ms, coordinator_epoch=self.coordinator_epoch)
            case MarkersWritten():
                return self._decide_written(command, now_ms)
            case TimePassed():
                return self._decide_time(now_ms)
            case _:
                assert_never(command)

    def _decide_written(self, command: MarkersWritten, now_ms: int) -> Decision:
        metadata = self._transactions.get(command.transactional_id)
        if metadata is None or not metadata.is_prepared or metadata.update_ms != command.ended_ms:
            return Decision((), _NOTED)
        unmarked = self._unmarked[command.transactional_id]
        unmarked.difference_update(command.partitions)
        if unmarked:
            return Decision((), _NOTED)
        record = TransactionRecord(command.transactional_id, complete(metadata, now_ms=now_ms))
        return Decision((record,), _NOTED)

    def _decide_time(self, now_ms: int) -> Decision:
        """Aborts what took too long, forgets what nobody used."""
        records: list[TransactionRecord] = []
        effects: list[WriteMarkers] = []
        for transactional_id in self._deadlines.due(now_ms, count_max=DUE_MAX):
            metadata = self._transactions[transactional_id]
            if metadata.state is not TransactionState.ONGOING:
                records.append(TransactionRecord(transactional_id, None))
                continue
            fenced = fence(metadata, version=self._settings.version, by_successor=False, now_ms=now_ms)
            if fenced.partitions:
                effects.append(markers_of(transactional_id, fenced, self.coordinator_epoch))
            else:
                fenced = complete(fenced, now_ms=now_ms)
            records.append(TransactionRecord(transactional_id, fenced))
        return Decision(tuple(records), _NOTED, tuple(effects))

    def apply(self, record: TransactionRecord) -> None:
        """Never refuses."""
        transactional_id, metadata = record.transactional_id, record.metadata
        self._unmarked.pop(transactional_id, None)
        if metadata is None:
            self._transactions.pop(transactional_id, None)
            self._deadlines.forget(transactional_id)
            return
        self._transactions[transactional_id] = metadata
        self._deadlines.set(transactional_id, self._deadline_of(metadata))
        if metadata.is_prepared:
            self._unmarked[transactional_id] = set(metadata.partitions)

    def _deadline_of(self, metadata: TransactionMetadata) -> int | None:
        if metadata.is_prepared:
            return None
        if metadata.state is TransactionState.ONGOING:
            return metadata.start_ms + metadata.timeout_ms
        return metadata.update_ms + self._settings.id_expiration_ms

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def pending_markers(self) -> tuple[WriteMarkers, ...]:
        """What is still to be done for every transaction whose end is decided."""
        return tuple(
            markers_of(transactional_id, self._transactions[transactional_id], self.coordinator_epoch)
            for transactional_id in sorted(self._unmarked)
        )

    # --- views ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._transactions)

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def list_transactions(
        self,
        now_ms: int,
        *,
        states: Collection[TransactionState] | None = None,
        producer_ids: Collection[int] | None = None,
        longer_than_ms: int = -1,
        id_matches: Callable[[str], bool] | None = None,
    ) -> list[TransactionListing]:
        """Those that pass every filter; None lets all pass, an empty one nothing.

        As with Kafka, one that was never begun counts as begun before all times where a duration is asked for.
        """
        return [
            TransactionListing(transactional_id, metadata.producer_id, metadata.state)
            for transactional_id, metadata in sorted(self._transactions.items())
            if (states is None or metadata.state in states)
            and (producer_ids is None or metadata.producer_id in producer_ids)
            and (longer_than_ms < 0 or now_ms - metadata.start_ms > longer_than_ms)
            and (id_matches is None or id_matches(transactional_id))
        ]

    def open_since_ms(self) -> list[int]:
        """When each of the transactions that are under way began."""
        ongoing = TransactionState.ONGOING
        return [metadata.start_ms for metadata in self._transactions.values() if metadata.state is ongoing]

    def as_dict(self) -> dict[str, TransactionMetadata]:
        """Everything that the records have said, in the order of the ids."""
        return dict(sorted(self._transactions.items()))
