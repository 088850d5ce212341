"""The log of a schedule, written: rows and markers of one loop turn together, in the order of the decisions.

Rows go into small batches, because they are read one by one when their time comes, scattered over all of the log: what
is read beside a row is read for nothing. Batches of a transaction bear its producer's id, so that the cleaner knows
which rows were aborted; nobody checks sequences here, for only some of a producer's records come here.

A write that failed loses the journal: whoever owns it drops what was decided and reads the log again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.header import NO_PRODUCER_ID
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.batch.rewrite import header_of
from penstock.domain.schedule.rows import Row
from penstock.domain.transaction.end import TransactionEnd
from penstock.storage.errors import StorageError

log = get_logger("schedules")

OnDurable = Callable[[bool], None]

# Of messages: to find one, all that are in front of it in its batch are passed over. The head of a batch takes 61.
BATCH_BYTES_MAX: Final = 1024
# Of tombstones, and whatever else is never looked for.
OTHER_BYTES_MAX: Final = 64 * 1024
# Of one write. A segment is begun between two of them.
WRITE_BYTES_MAX: Final = 1024 * 1024
# Of rows beside their value, and of rows without one.
_ROW_BYTES: Final = 50
_TOMBSTONE_BYTES: Final = 120
_NO_PRODUCER: Final = (NO_PRODUCER_ID, -1)


class _Group:
    """Rows that may share batches."""

    __slots__ = ("is_commit", "producer", "records")

    def __init__(self, producer: tuple[int, int], *, is_commit: bool | None = None) -> None:
        self.producer = producer
        self.records: list[Record] = []
        # None: no marker, but rows.
        self.is_commit = is_commit

    @property
    def count(self) -> int:
        return len(self.records) if self.is_commit is None else 1


class ScheduleJournal:
    def __init__(self, companion: PartitionShell, clock: Clock, leadership: Leadership) -> None:
        """`leadership`: under which everything in it is decided."""
        self._companion = companion
        self._leadership = leadership
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._groups: list[_Group] = []
        self._waiting: list[OnDurable] = []
        self._commitment: Commitment | None = None
        # The offset that the next row will get.
        self.next_position = companion.log.log_end
        # Since it was made.
        self.written_bytes = 0
        self.is_lost = False

    def append(self, rows: Sequence[Row], *, producer: tuple[int, int] = _NO_PRODUCER) -> None:
        """`producer`: id and epoch of the transaction that the rows are part of."""
        now_ms = self._clock.now_ms()
        self._group(producer).records += [
            Record(value=row.value, key=row.key, timestamp_ms=now_ms, headers=row.headers) for row in rows
        ]
        self.next_position += len(rows)

    def append_marker(self, end: TransactionEnd) -> None:
        self._begin(_Group((end.producer_id, end.producer_epoch), is_commit=end.is_commit))
        self.next_position += 1

    def _group(self, producer: tuple[int, int]) -> _Group:
        if self._groups and self._groups[-1].producer == producer and self._groups[-1].is_commit is None:
            return self._groups[-1]
        return self._begin(_Group(producer))

    def _begin(self, group: _Group) -> _Group:
        if not self._groups:
            # What else this round of the loop decides goes into the same write.
            self._loop.call_soon(self.flush)
        self._groups.append(group)
        return group

    def when_durable(self, callback: OnDurable) -> None:
        """Calls with True once everything appended so far is durable, with False if it never will be."""
        # Also of what has been durable for long: somebody else may lead now, and have decided otherwise since.
        self.is_lost = self.is_lost or self._companion.refuse_leadership(self._leadership) is not None
        if self.is_lost:
            callback(False)
        elif self._groups:
            self._waiting.append(callback)
        elif self._commitment is not None and not self._commitment.is_known:
            self._commitment.when_known(lambda commitment: callback(commitment.loss is None))
        else:
            callback(True)

    async def until_durable(self) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self.when_durable(partial(_resolve, future))
        return await future

    def epoch_before(self, position: int) -> int:
        return self._companion.log.epochs.epoch_at(position - 1)

    def flush(self) -> None:
        """Everything is in the log now, if it takes it. Durable is another matter."""
        if not self._groups:
            return
        groups, self._groups = self._groups, []
        waiting, self._waiting = self._waiting, []
        refused = self._companion.refuse_leadership(self._leadership)
        if refused is not None:
            log.error("rows not stored", topic=self._companion.topic, why=refused.reason)
            self.is_lost = True
        if not self.is_lost:
            self._write(groups)
        for callback in waiting:
            self.when_durable(callback)

    def _write(self, groups: list[_Group]) -> None:
        companion = self._companion
        batches: list[bytearray] = []
        offset, size_bytes = companion.log.log_end, 0
        try:
            for group in groups:
                for batch, count in self._batches(group, offset):
                    batches.append(batch)
                    offset += count
                    size_bytes += len(batch)
                    if size_bytes >= WRITE_BYTES_MAX:
                        self._append(batches)
                        batches, size_bytes = [], 0
            self._append(batches)
        except StorageError as error:
            log.error("rows not stored", topic=companion.topic, partition=companion.index, error=str(error))
            self.is_lost = True
        assert self.is_lost or companion.log.log_end == self.next_position, (companion.log.log_end, self.next_position)
        # Lost or not: what is in the log has to become readable, or nobody could read the log again.
        commitment = companion.commit()
        if commitment is not self._commitment:
            self._commitment = commitment
            commitment.when_known(self._on_known)

    def _batches(self, group: _Group, offset: int) -> list[tuple[bytearray, int]]:
        producer_id, producer_epoch = group.producer
        leader_epoch = self._companion.role.epoch
        if group.is_commit is not None:
            batch = build_marker(
                # Whoever coordinates has been asked by the partition itself.
                EndMarker(group.is_commit, 0),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=self._clock.now_ms(),
                base_offset=offset,
                leader_epoch=leader_epoch,
            )
            return [(batch, 1)]
        built: list[tuple[bytearray, int]] = []
        for records in _portions(group.records):
            batch = build_batch(
                records,
                base_offset=offset,
                leader_epoch=leader_epoch,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_transactional=producer_id >= 0,
            )
            built.append((batch, len(records)))
            offset += len(records)
        return built

    def _append(self, batches: list[bytearray]) -> None:
        if batches:
            whole = batches[0] if len(batches) == 1 else bytearray(b"".join(batches))
            self._companion.log.append(memoryview(whole), [header_of(batch) for batch in batches])
            self.written_bytes += len(whole)

    def _on_known(self, commitment: Commitment) -> None:
        if commitment.loss is not None:
            self.is_lost = True


def _portions(records: list[Record]) -> list[list[Record]]:
    portions: list[list[Record]] = []
    size_bytes, bytes_max = 0, 0
    for record in records:
        if record.value is None:
            record_bytes, record_bytes_max = _TOMBSTONE_BYTES, OTHER_BYTES_MAX
        else:
            record_bytes, record_bytes_max = len(record.value) + _ROW_BYTES, BATCH_BYTES_MAX
        if size_bytes + record_bytes > bytes_max or record_bytes_max != bytes_max:
            portions.append([])
            size_bytes, bytes_max = 0, record_bytes_max
        portions[-1].append(record)
        size_bytes += record_bytes
    return portions


def _resolve(future: asyncio.Future[bool], is_durable: bool) -> None:
    if not future.done():
        future.set_result(is_durable)
