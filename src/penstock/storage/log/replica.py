"""What a replica does with the batches of its leader: they stand here as they stand there, or they are refused.

    batch as the leader sent it          offset, epoch and bytes are kept
    offsets without records              the leader has compacted them away. Logs have no gaps here, so a batch without
                                         records stands for them, as it does after a compaction of our own

Checksums are checked here and nowhere else: a follower that forgot it would keep what the network broke. Base offset
and leader epoch lie outside of the checksum, so they are compared with what the log and its leader say.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch
from penstock.codec.batch.rewrite import BATCH_OFFSETS_MAX, filler_batch, header_of
from penstock.storage.segment.index import ENTRY_MAX

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog


class ReplicaRefusal(enum.Enum):
    """An overlap with a log that is empty is no fault: the leader's start lies inside of the batch. Such a log begins
    anew at `NotReplicated.base_offset`, and its start follows later."""

    CORRUPT = "corrupt"  # not a whole batch, or not the one that was sent
    GAP = "gap"  # offsets are missing before it
    OVERLAP = "overlap"  # offsets of it are in the log already
    EPOCH_FELL = "epoch fell"  # it is of an older leader than what stands before it
    EPOCH_AHEAD = "epoch ahead"  # it is of a later leader than the one that sent it


class NotReplicated(msgspec.Struct, frozen=True):
    """Nothing of what was sent is in the log."""

    why: ReplicaRefusal
    # Where the batch would have stood, and what it begins with; -1: nobody can say.
    offset: int
    base_offset: int
    detail: str


class _Refused(Exception):  # noqa: N818  a value outside of this module
    def __init__(self, why: ReplicaRefusal, offset: int, base_offset: int, detail: str) -> None:
        super().__init__(detail)
        self.outcome = NotReplicated(why, offset, base_offset, detail)


def append_replicated(
    log: PartitionLog, data: memoryview, *, leader_epoch: int, may_skip: bool
) -> NotReplicated | None:
    try:
        batches = _Placing(log, leader_epoch=leader_epoch, may_skip=may_skip)
        batches.take_all(data)
    except _Refused as refused:
        return refused.outcome
    if batches.headers:
        log.append(batches.data(data), batches.headers)
    return None


class _Placing:
    """Goes through what the leader sent, batch by batch."""

    def __init__(self, log: PartitionLog, *, leader_epoch: int, may_skip: bool) -> None:
        self._first_offset = self._next_offset = log.log_end
        self._epoch = log.epochs.latest
        self._leader_epoch = leader_epoch
        self._may_skip = may_skip and log.config.compaction is not None
        self.headers: list[BatchHeader] = []
        self._parts: list[memoryview | bytearray] = []
        self._has_fillers = False

    def take_all(self, data: memoryview) -> None:
        position = 0
        while position < len(data):
            header = check_batch(data, position)
            if isinstance(header, BatchProblem):
                raise _Refused(ReplicaRefusal.CORRUPT, self._next_offset, -1, header.reason)
            self._check_epoch(header)
            end = position + header.size_bytes
            if header.base_offset == self._next_offset:
                self._put(header, data[position:end])
            elif header.base_offset > self._next_offset:
                self._skip_to(header)
                self._put(header, data[position:end])
            else:
                self._put_rest(header)
            position = end

    def data(self, sent: memoryview) -> memoryview:
        """Of all headers: mostly what was sent."""
        return memoryview(b"".join(self._parts)) if self._has_fillers else sent

    def _check_epoch(self, header: BatchHeader) -> None:
        epoch = header.leader_epoch
        if epoch < self._epoch:
            detail = f"batch {header.base_offset} is of leader epoch {epoch}, after one of epoch {self._epoch}"
            raise self._refused(ReplicaRefusal.EPOCH_FELL, header, detail)
        if epoch > self._leader_epoch:
            detail = f"batch {header.base_offset} is of leader epoch {epoch}, its sender of {self._leader_epoch}"
            raise self._refused(ReplicaRefusal.EPOCH_AHEAD, header, detail)
        self._epoch = epoch

    def _refused(self, why: ReplicaRefusal, header: BatchHeader, detail: str) -> _Refused:
        return _Refused(why, self._next_offset, header.base_offset, detail)

    def _put(self, header: BatchHeader, batch: memoryview | bytearray) -> None:
        self.headers.append(header)
        self._parts.append(batch)
        self._next_offset = header.next_offset

    def _skip_to(self, header: BatchHeader) -> None:
        """Offsets in front of the batch that the leader has none of."""
        # Wider than a segment can be: such a log begins anew at its leader's start.
        is_too_wide = header.next_offset - self._first_offset > ENTRY_MAX
        if not self._may_skip or is_too_wide:
            detail = f"batch {header.base_offset} does not begin at offset {self._next_offset}, where the log ends"
            raise self._refused(ReplicaRefusal.GAP, header, detail)
        self._fill_up_to(header.base_offset, header.leader_epoch)

    def _put_rest(self, header: BatchHeader) -> None:
        """A batch without records that the leader made of several, the first of which are here: the rest of it."""
        is_filler = header.record_count == 0 and header.producer_id < 0
        if not is_filler or header.next_offset <= self._next_offset:
            detail = f"batch {header.base_offset} begins before offset {self._next_offset}, where the log ends"
            raise self._refused(ReplicaRefusal.OVERLAP, header, detail)
        self._fill_up_to(header.next_offset, header.leader_epoch)

    def _fill_up_to(self, offset: int, leader_epoch: int) -> None:
        self._has_fillers = True
        while self._next_offset < offset:
            next_offset = min(offset, self._next_offset + BATCH_OFFSETS_MAX)
            filler = filler_batch(base_offset=self._next_offset, next_offset=next_offset, leader_epoch=leader_epoch)
            self._put(header_of(filler), filler)
