"""Reading a partition's log for clients: whole batches, and never some that hold nothing for who reads.

Compaction and delayed records leave batches without records, and batches whose last records are gone. A client that
was given nothing else would ask for it again, at once and for ever: kafkajs goes on from the last *record* that it got.
So a first batch that has nothing at or after the offset is left out: the reader gets what follows, or has to wait.
"""

from __future__ import annotations

from penstock.broker.partition.read import (
    EMPTY_READ,
    PartitionRead,
    ReadProblem,
    first_offset_of,
    next_offset_of,
    problem_of,
)
from penstock.codec.batch.rewrite import has_nothing_from, skip_first_and_empty
from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.storage.errors import Damage
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.read_plan import ReadPlan


class PartitionReads:
    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def read(self, offset: int, bytes_max: int, must_fit: bool) -> PartitionRead:
        read = self._read_at(offset, bytes_max, must_fit, self._log.readable_end)
        if has_nothing_from(read.records, offset):
            return self._past_empty(read, offset, bytes_max, must_fit, None)
        return read

    def _read_at(self, offset: int, bytes_max: int, must_fit: bool, up_to: int) -> PartitionRead:
        log = self._log
        # Whoever waits at the end of a log that takes nothing more waits for nothing: he is told.
        if offset == log.readable_end and log.is_healthy:
            return EMPTY_READ
        plan = log.plan_read(offset, bytes_max=bytes_max, up_to=up_to)
        if plan is None:
            return EMPTY_READ
        if not isinstance(plan, ReadPlan):
            return PartitionRead(problem=problem_of(plan))
        plan.must_fit = must_fit
        loaded = plan.load_cached()
        if loaded is None:
            return PartitionRead(cold=plan, offset=offset, segment=log.segment_of(offset))
        if must_fit and len(loaded) > bytes_max:
            return EMPTY_READ
        return PartitionRead(records=loaded)

    def read_from_disk(self, offset: int, bytes_max: int, is_committed_only: bool) -> PartitionRead:
        log = self._log
        up_to = log.last_stable_offset if is_committed_only else log.readable_end
        plan = log.plan_read(offset, bytes_max=bytes_max, up_to=up_to)
        if plan is None:
            return EMPTY_READ
        if not isinstance(plan, ReadPlan):
            return PartitionRead(problem=problem_of(plan))
        segment = log.segment_of(offset)
        return PartitionRead(cold=plan, offset=offset, segment=segment, is_committed_only=is_committed_only)

    def _past_empty(
        self, read: PartitionRead, offset: int, bytes_max: int, must_fit: bool, up_to: int | None
    ) -> PartitionRead:
        while has_nothing_from(read.records, offset):
            rest, offset = skip_first_and_empty(read.records)
            if len(rest):
                return PartitionRead(records=rest)
            read = self._read_at(offset, bytes_max, must_fit, self._log.readable_end if up_to is None else up_to)
        return read

    # Committed records

    def read_committed(self, offset: int, bytes_max: int, must_fit: bool) -> PartitionRead:
        up_to = self._log.last_stable_offset
        read = self._read_at(offset, bytes_max, must_fit, up_to)
        return self._committed(self._past_empty(read, offset, bytes_max, must_fit, up_to))

    def _committed(self, read: PartitionRead) -> PartitionRead:
        if read.cold is not None:
            return PartitionRead(cold=read.cold, offset=read.offset, segment=read.segment, is_committed_only=True)
        if not read.size_bytes:
            return read
        return PartitionRead(records=read.records, aborted=self._aborted_in(read.records))

    def _aborted_in(self, records: bytes | bytearray | memoryview) -> tuple[AbortedTransaction, ...]:
        """Those with anything in the batches, and no other: who is told of one waits for its marker."""
        aborted = self._log.transactions.aborted
        first_offset = first_offset_of(records)
        if aborted.last_offset < first_offset:
            return ()
        return tuple(aborted.between(first_offset, next_offset_of(records)))

    def take_loaded(self, read: PartitionRead, loaded: memoryview | Damage, bytes_max: int) -> PartitionRead:
        assert read.cold is not None
        if self._log.flaws.is_withheld:
            # By what this read has found, perhaps: whoever asks again is told by a replica that is whole.
            return PartitionRead(problem=ReadProblem.OFFLINE)
        if isinstance(loaded, Damage):
            return PartitionRead(problem=ReadProblem.DAMAGED if loaded.is_proven else ReadProblem.OFFLINE)
        must_fit = read.cold.must_fit
        if not read.is_committed_only:
            return self._past_empty(PartitionRead(records=loaded), read.offset, bytes_max, must_fit, None)
        log = self._log
        # While it was loaded, retention or compaction may have taken those records away, and with them the knowledge
        # of who had aborted: nobody could tell the reader what to leave out.
        if read.offset < log.log_start or log.segment_of(read.offset) is not read.segment:
            return self.read_committed(read.offset, bytes_max, must_fit)
        up_to = log.last_stable_offset
        fresh = self._past_empty(PartitionRead(records=loaded), read.offset, bytes_max, must_fit, up_to)
        return self._committed(fresh)
