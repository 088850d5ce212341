"""What a recovery finds out about a log's producers and their transactions. Blocking.

    saved with the checkpoint, or later    believed up to the offset that it is of; later batches are applied to it
    missing, bad or too old                made anew from all of the log
    the file of compaction is bad          believed, but for aborted transactions of which the log holds nothing

What is lost where they are made anew: producers whose last batch or marker was in segments that retention has removed.
A retry of such a batch is stored again, and an old epoch of such a producer is let in again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from penstock.base.log_events import get_logger
from penstock.codec.batch.header import BatchHeader
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import Files, ReadableFile
from penstock.storage.files.small import write_small_file
from penstock.storage.log.checkpoint_file import LogCheckpoint
from penstock.storage.log.files import PRODUCERS_FILE, PRODUCERS_MAGIC, pack_producers, read_producers
from penstock.storage.log.home import LogHome
from penstock.storage.log.producers import LogProducers
from penstock.storage.segment.lost_end import may_hold_marker
from penstock.storage.segment.scan import BatchScan

_log = get_logger("storage")

_LOST: Final = -1

OnBatch = Callable[[BatchHeader, BatchScan], None]
# The file that the place is in; None: nothing is left of it.
OnDamage = Callable[[Damage, ReadableFile | None], None]
Walk = Callable[[OnBatch, OnDamage], None]


class ProducerRecovery:
    """`load`, then `take` for every batch that is read, then `settle`."""

    def __init__(self, files: Files, home: LogHome, *, producers_max: int, readable_end: int | None) -> None:
        self.known = LogProducers.empty(producers_max)
        self._files = files
        self._home = home
        self._producers_max = producers_max
        self._readable_end = readable_end
        # They are the state after everything below it.
        self._offset = 0
        # What all of the log says, when it must be asked.
        self._replayed: LogProducers | None = None

    def load(self, checkpoint: LogCheckpoint | None) -> None:
        saved = read_producers(self._files, self._home.directory, self._producers_max)
        needed = -1
        if checkpoint is not None:
            # No producers at the checkpoint: only a later file counts, an older one is of producers long forgotten.
            needed = checkpoint.producers_offset if checkpoint.producers_offset >= 0 else checkpoint.end_offset
        if saved is not None and saved[0] >= needed:
            self._offset, self.known = saved
        elif checkpoint is not None:
            self._offset = needed if checkpoint.producers_offset < 0 else _LOST

    @property
    def is_lost(self) -> bool:
        return self._offset == _LOST

    def replay(self) -> None:
        """All of the log will be read: which aborted transactions are left in it?"""
        self._replayed = LogProducers.empty(self._producers_max)

    def take(self, header: BatchHeader, scan: BatchScan) -> None:
        if header.producer_id < 0:
            return
        if 0 <= self._offset <= header.base_offset:
            self._apply(self.known, header, scan)
        if self._replayed is not None:
            self._apply(self._replayed, header, scan)

    def pass_damage(self, damage: Damage, file: ReadableFile | None) -> None:
        """The log goes on behind it. If it may have been a marker, nobody knows which transactions are over: a later
        one of the same producer would decide about their records."""
        if may_hold_marker(file, damage):
            self._doubt_all(damage.offset)

    def _doubt_all(self, offset: int) -> None:
        if 0 <= self._offset <= offset:
            self._doubt(self.known, offset)
        if self._replayed is not None:
            self._doubt(self._replayed, offset)

    def _doubt(self, producers: LogProducers, offset: int) -> None:
        for entry in producers.transactions.doubt(offset):
            _log.error(
                "end of a transaction lost, its records are kept from readers of committed ones",
                topic=self._home.topic,
                partition=self._home.partition,
                producer_id=entry.producer_id,
                offset=entry.first_offset,
                offset_end=entry.last_offset,
            )

    def _apply(self, producers: LogProducers, header: BatchHeader, scan: BatchScan) -> None:
        producers.apply(header, scan.batch(header) if header.is_control else b"")
        # What was read is not undone any more: a log of a million transactions need not remember how.
        end = header.next_offset if self._readable_end is None else min(header.next_offset, self._readable_end)
        producers.transactions.advance(end)

    def save(self, next_offset: int) -> None:
        """The segments that they were read from go now, and the log goes on at `next_offset`."""
        if not self.known.is_empty:
            payload = pack_producers(self.known, next_offset)
            write_small_file(self._files, self._home.directory, PRODUCERS_FILE, PRODUCERS_MAGIC, payload)
        self._offset = next_offset

    def rebuild(self, walk: Walk) -> None:
        """`walk` shows every batch of the log, and what is lost of it."""
        _log.warning("producers rebuilt", topic=self._home.topic, partition=self._home.partition)
        self.known = LogProducers.empty(self._producers_max)
        self._offset = 0
        walk(partial(self._rebuild_with, self.known), partial(self._rebuild_past, self.known))

    def _rebuild_past(self, producers: LogProducers, damage: Damage, file: ReadableFile | None) -> None:
        if may_hold_marker(file, damage):
            self._doubt(producers, damage.offset)

    def _rebuild_with(self, producers: LogProducers, header: BatchHeader, scan: BatchScan) -> None:
        if header.producer_id >= 0:
            self._apply(producers, header, scan)

    def settle(self, log_end: int, walk: Walk, empty_aborts: Iterable[int]) -> bool:
        """False: they had to be made anew. `empty_aborts`: what swaps of segments since the checkpoint left empty."""
        is_believed = not self.is_lost and self._offset <= log_end
        if not is_believed:
            self.rebuild(walk)
        # They may be of the time before a swap which left nothing of some aborted transactions.
        transactions = self.known.transactions
        gone = set(empty_aborts)
        if self._replayed is not None:
            # Nobody knows the swaps any more, but what is left of the log shows which of the aborted ones are.
            left = {entry.last_offset for entry in self._replayed.transactions.aborted.entries()}
            gone |= {entry.last_offset for entry in transactions.aborted.entries()} - left
        transactions.forget_aborts(gone)
        return is_believed
