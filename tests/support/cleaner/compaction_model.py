"""What was appended to a compacted log, as a plain list, and what may be gone of it."""

from __future__ import annotations

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchHeader
from penstock.codec.batch.records import Record
from penstock.domain.transaction.partition import PartitionTransactions, ProducerTransaction
from penstock.storage.cleaner.work import LogCleaning


class ModelBatch:
    __slots__ = ("data", "header", "is_commit", "records")

    def __init__(
        self, header: BatchHeader, data: bytes, records: list[tuple[int, Record]], *, is_commit: bool | None = None
    ) -> None:
        self.header = header
        self.data = data
        # (offset, record), of users
        self.records = records
        # None: not a marker.
        self.is_commit = is_commit

    @property
    def is_marker(self) -> bool:
        return self.is_commit is not None


class ModelTransaction:
    def __init__(self, producer: int, first_offset: int) -> None:
        self.producer = producer
        self.first_offset = first_offset
        self.batch_offsets: list[int] = []
        self.marker_offset: int | None = None
        self.is_commit: bool | None = None


class ModelLog:
    def __init__(self) -> None:
        self.batches: list[ModelBatch] = []
        self.acked_end = 0
        self.start_min = 0
        self.start_max = 0
        # Nothing at or past it was ever given to a cleaning.
        self.cleaned_max = 0
        # What was readable then, a marker past it for example, has had its effect.
        self.cleaned_readable = 0
        # When a cleaning first had the offset before it, and when the last one began.
        self.first_cleaned_ms: dict[int, int] = {}
        self.last_cleaning_ms = 0
        # Abort markers of which nothing is left, by a swap that is durable.
        self.dropped_aborts: set[int] = set()
        # Producers that were silent since may have been forgotten.
        self.forgotten_end = 0
        # The last batch of a producer below may have gone because a later one was there, which was cut off then.
        self.sequences_from = 0

    def begin_cleaning(self, cleaning: LogCleaning, now_ms: int) -> None:
        end_offset = cleaning.part.end_offset
        self.cleaned_max = max(self.cleaned_max, end_offset)
        self.cleaned_readable = max(self.cleaned_readable, cleaning.log.readable_end)
        self.last_cleaning_ms = now_ms
        for batch in self.batches:
            for offset, _ in batch.records:
                if offset < end_offset:
                    self.first_cleaned_ms.setdefault(offset, now_ms)

    def cut_end(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.header.next_offset <= end]
        self.acked_end = min(self.acked_end, end)
        self.cleaned_max = min(self.cleaned_max, end)
        self.dropped_aborts = {offset for offset in self.dropped_aborts if offset < end}
        self.first_cleaned_ms = {offset: ms for offset, ms in self.first_cleaned_ms.items() if offset < end}

    def next_sequence(self, producer: int) -> tuple[int, int]:
        """And the epoch that it is of."""
        if producer < 0:
            return -1, -1
        epoch = sequence = 0
        for batch in self.batches:
            header = batch.header
            if header.producer_id == producer:
                if header.producer_epoch != epoch:
                    epoch, sequence = header.producer_epoch, 0
                if not batch.is_marker:
                    sequence = header.base_sequence + header.last_offset_delta + 1
        return epoch, sequence

    def transactions(self) -> list[ModelTransaction]:
        found: list[ModelTransaction] = []
        ongoing: dict[int, ModelTransaction] = {}
        for batch in self.batches:
            header = batch.header
            if batch.is_marker:
                transaction = ongoing.pop(header.producer_id, None)
                if transaction is not None:
                    transaction.marker_offset = header.base_offset
                    transaction.is_commit = batch.is_commit
            elif header.is_transactional:
                if header.producer_id not in ongoing:
                    ongoing[header.producer_id] = ModelTransaction(header.producer_id, header.base_offset)
                    found.append(ongoing[header.producer_id])
                ongoing[header.producer_id].batch_offsets.append(header.base_offset)
        return found

    def open_transactions(self) -> set[int]:
        return {each.producer for each in self.transactions() if each.marker_offset is None}

    def stable_end(self, readable_end: int) -> int:
        undecided = [
            each.first_offset
            for each in self.transactions()
            if each.marker_offset is None or each.marker_offset >= readable_end
        ]
        return min([readable_end, *undecided])

    def producers(self) -> dict[int, ProducerTransaction]:
        """What all that was ever appended says of transactional producers."""
        replayed = PartitionTransactions()
        for batch in self.batches:
            if batch.is_commit is None:
                replayed.apply(batch.header)
            else:
                marker = read_marker(batch.data)
                assert isinstance(marker, EndMarker)
                replayed.apply_marker(
                    batch.header, is_commit=marker.is_commit, coordinator_epoch=marker.coordinator_epoch
                )
        return replayed.producers

    def aborted_offsets(self) -> set[int]:
        """Base offsets of batches of transactions that were aborted."""
        return {offset for each in self.transactions() if each.is_commit is False for offset in each.batch_offsets}

    def may_be_gone(self, offset: int, retention_ms: int) -> bool:
        """Of a deletion that is the last one of its key."""
        first_ms = self.first_cleaned_ms.get(offset)
        return first_ms is not None and self.last_cleaning_ms >= first_ms + retention_ms
