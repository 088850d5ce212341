"""The log of one partition: segments of whole batches, appended to at the end, read anywhere, removed from the head.

Who calls what: everything here runs on the event loop and returns in microseconds, except what says "blocking", which
belongs in a thread. Nothing here awaits, so nothing comes in between.

    log_start          readable_end        log_end
        |=================|------------------|
         served            written, not yet promised to anybody

- `append` writes at once and changes nothing if it fails; when the bytes are durable is GroupCommit's business.
- `advance_readable` is the caller's word that everything below is durable (or replicated): reads stop there.
- `damages`: places that are not served; what lies before and after them is, and appends go on.
- `lost_end`: the log's last bytes are gone, and where it ended nobody knows: nothing is appended until it was repaired.
- Offline (`failure`): the disk failed a write or a sync. Nothing is served or taken until recovery has read it again.
- Withheld: one of several replicas that has a flaw. Nothing is read from it until another leads, or nobody else can.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from penstock.base.log_events import get_logger
from penstock.codec.batch.header import BatchHeader
from penstock.storage.config import SEGMENT_BYTES_LIMIT, LogConfig
from penstock.storage.context import StoreContext
from penstock.storage.errors import Damage, Damaged, Offline, OutOfRange
from penstock.storage.files.small import write_fully
from penstock.storage.log import head
from penstock.storage.log.damage import DamagedPlaces, tell_damage
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.flaws import WITHHELD, LogFlaws
from penstock.storage.log.home import LogHome
from penstock.storage.log.maintenance import LogMaintenance
from penstock.storage.log.producers import IN_TRANSACTION, LogProducers, ProducerFacts
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.log.recovered import RecoveredLog
from penstock.storage.log.refusals import cannot_begin, refusal_of, write_failed
from penstock.storage.log.removal import LogRemoval
from penstock.storage.log.replica import NotReplicated, append_replicated
from penstock.storage.log.swap import SegmentSwap
from penstock.storage.log.sync import LogSync, UnsyncedFiles
from penstock.storage.log.time_lookup import TimeLookup, TimestampOffset, ask
from penstock.storage.segment.early_writeback import WRITEBACK_BYTES
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index import ENTRY_MAX, SegmentIndex

_log = get_logger("storage")

# Ends of recent reads, so that a reader that goes on from there needs no search: more than consumers of one partition.
_BOUNDARIES_MAX: Final = 64
_base_offset: Final = attrgetter("base_offset")


class PartitionLog:
    def __init__(self, context: StoreContext, home: LogHome, config: LogConfig) -> None:
        """Empty, and nothing on disk. `recovery` brings back what was there."""
        self.context = context
        self.home = home
        self.config = config
        self.log_start = 0
        self.log_end = 0
        self.readable_end = 0
        # Everything below is on disk, as far as turns of group commit have proved it.
        self.durable_end = 0
        # Grows when the log was cut or read again: syncs and reads of the time before say nothing about it.
        self.generation = 0
        self.size_bytes = 0
        self.damages = DamagedPlaces(context.files, home.directory)
        self.lost_end: Damage | None = None
        self.flaws = LogFlaws(self)
        self.failure: str | None = None
        self.is_closed = False
        self.is_being_cut = False
        # None of these four. Asked for every append, so it is kept apart from them.
        self._takes_batches = True
        self._use_producers(LogProducers.empty(context.config.producers_max))
        self.epochs: LeaderEpochs = LeaderEpochs()
        # Where the last checkpoint of this log ends. Only what lies below may be removed from the head: the saved
        # producers know it, so a retry of a removed batch is still seen to be one after a crash.
        self.saved_end = 0
        self.is_save_wanted = False
        # Others have it too: what is readable is what they have agreed on, and is saved with each checkpoint.
        self.is_replicated = False
        self.saved_readable_end = 0
        # What retention would have removed, had the topic's archive had it.
        self.held_bytes = 0
        # Compaction: below `clean_end` each key is there once; swaps of segments since the last checkpoint.
        self.clean_end = 0
        # Below it tombstones or markers are gone for good: a replica that ends before it would never learn of them.
        self.tombstone_horizon: int = 0
        self.swaps: list[SegmentSwap] = []
        self.swap_lock = threading.Lock()
        self.maintenance = LogMaintenance()
        # Since the last checkpoint: what an unclean start would have to read.
        self.unsaved_bytes = self.unsaved_batches = 0
        self.segments: list[Segment] = []
        self._active: Segment | None = None
        self._readable_segment: Segment | None = None
        self._readable_position = 0
        # (offset after a batch, its segment, position there), for batches past the readable end.
        self._marks: deque[tuple[int, Segment, int]] = deque()
        self.unsynced = UnsyncedFiles()
        self._boundaries: dict[int, tuple[Segment, int]] = {}
        self._index_interval_bytes = context.config.index_interval_bytes

    def __repr__(self) -> str:
        return f"<PartitionLog {self.home.topic}-{self.home.partition} {self.log_start} … {self.log_end}>"

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, data: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Whole, checked and placed batches from `log_end` on. On a StorageError nothing has changed."""
        if not self._takes_batches or self.context.is_full:
            raise refusal_of(self)
        assert headers[0].base_offset == self.log_end, (headers[0].base_offset, self.log_end)
        size = len(data)
        segment = self._active
        if segment is None or (segment.size + size > self.config.segment_bytes and segment.size > 0):
            segment = self._begin_segment(headers[0])
        elif segment.index is None or headers[-1].base_offset - segment.base_offset > ENTRY_MAX:
            segment = self._ready_segment(segment, headers)
        position = segment.size
        try:
            file = segment.file or self.context.handles.open(segment)
            if file.write_at(data, position) != size:
                write_fully(file, data, position)
        except OSError as error:
            raise write_failed(self, segment, error) from error
        marks = self._marks
        for header in headers:
            segment.take(header, self._index_interval_bytes)
            if header.producer_id >= 0:
                if header.attributes & IN_TRANSACTION:
                    self.known_producers.apply(header, data, segment.size - header.size_bytes - position)
                else:
                    self.producers.apply(header)
            if header.leader_epoch != self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            marks.append((segment.next_offset, segment, segment.size))
        assert segment.size == position + size, "headers and bytes are of the same batches"
        self.log_end = segment.next_offset
        self.size_bytes += size
        self.unsaved_bytes += size
        self.unsaved_batches += len(headers)
        if not segment.is_dirty:
            self.unsynced.note(segment)
        if segment.size - segment.writeback_end >= WRITEBACK_BYTES:
            self.context.writeback.ask(segment, file)

    def append_replicated(self, data: memoryview, *, leader_epoch: int, may_skip: bool = False) -> NotReplicated | None:
        """Batches as the leader of `leader_epoch` has them, from `log_end` on; checksums are checked here. `may_skip`:
        the leader says that offsets without records may be missing, which counts in a compacted log alone. All of them
        or, with a reason or a StorageError, none."""
        return append_replicated(self, data, leader_epoch=leader_epoch, may_skip=may_skip)

    def note_epoch(self, epoch: int) -> None:
        """This node leads from now on: what was written so far is of epochs before. At once, or a follower that asks
        before the first batch is told that its own end is right. Not kept over a restart unless a batch was written:
        no process goes on in an epoch of an earlier life."""
        self.epochs.assign(epoch, self.log_end)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not over this one, and where it ends in this log, readable or not; (-1, -1): it is later
        than everything here."""
        return self.epochs.end_offset_for(epoch, self.log_end)

    def advance_readable(self, offset: int) -> None:
        """Everything below `offset` may be read; between two batches' ends the lower one counts."""
        marks = self._marks
        while marks and marks[0][0] <= offset:
            self.readable_end, self._readable_segment, self._readable_position = marks.popleft()
        self.transactions.advance(self.readable_end)

    def begin_sync(self) -> LogSync:
        """What has to be synced so that everything below today's `log_end` is durable."""
        return self.unsynced.take(self)

    def end_sync(self, sync: LogSync) -> bool:
        """The sync went well; False if the log was cut or read again meanwhile, so that this says nothing."""
        if sync.generation != self.generation:
            return False
        self.durable_end = max(self.durable_end, sync.end_offset)
        return True

    def fail(self, reason: str) -> None:
        """The disk failed the log: nothing is taken or served until recovery has read it again."""
        if self.failure is None:
            self.failure = reason
            self._takes_batches = False
            self.context.metrics.offline_logs.inc()
            _log.error("log offline", topic=self.home.topic, partition=self.home.partition, reason=reason)
            self.flaws.note()

    def adopt(self, recovered: RecoveredLog) -> None:
        """The log is what recovery read from its files: all of it durable, and readable unless it has marks."""
        for segment in self.segments:
            self.context.handles.forget(segment)
            self.context.indexes.release(segment)
        if self.failure is not None:
            self.context.metrics.offline_logs.dec()
        self.failure = None
        self.generation += 1
        self.segments = recovered.segments
        self._active = self.segments[-1] if self.segments else None
        self.log_start = recovered.log_start
        self.log_end = self.readable_end = self.durable_end = recovered.log_end
        self._readable_segment = self._active
        self._readable_position = self._active.size if self._active is not None else 0
        self.size_bytes = sum(segment.size for segment in self.segments)
        recovered.producers.transactions.follow(self.transactions)
        recovered.producers.is_pinned = self.known_producers.is_pinned
        self._use_producers(recovered.producers)
        self.epochs = recovered.epochs
        self.saved_end = recovered.saved_end
        self.unsaved_bytes = recovered.scanned_bytes
        self.unsaved_batches = recovered.scanned_batches
        self._marks.clear()
        self.unsynced.forget_segments()
        self._boundaries = {}
        self.clean_end = recovered.clean_end
        self.tombstone_horizon = recovered.tombstone_horizon
        self.swaps = list(recovered.swaps)
        self.damages = DamagedPlaces(self.context.files, self.home.directory, recovered.damages)
        self.lost_end = recovered.lost_end
        self._takes_batches = recovered.lost_end is None
        self.flaws.forget()
        for damage in (*recovered.damages, *([recovered.lost_end] if recovered.lost_end is not None else [])):
            tell_damage(damage, self.home, self.context.metrics)
            self.flaws.note()
        if recovered.marks:
            self._marks.extend(recovered.marks)
            self.readable_end, self._readable_segment, self._readable_position = self._marks.popleft()
        self.saved_readable_end = min(self.saved_readable_end, self.readable_end)
        self.move_transactions()
        self.transactions.advance(self.readable_end)

    def begin_cut(self, offset: int) -> None:
        """Nothing is taken from now on; if the cut is unclean, nothing is served either."""
        self.is_being_cut = True
        self._takes_batches = False
        if offset < self.readable_end:
            self.readable_end, self._readable_segment, self._readable_position = self.log_start, None, 0
            self._marks.clear()

    def end_cut(self) -> None:
        """`adopt` follows, unless nothing was cut."""
        self.is_being_cut = False
        self._takes_batches = self.is_healthy

    def move_transactions(self) -> None:
        """The log's start has moved: what lies below it need not be known any more."""
        # By whole segments: a start that was moved is durable only later, but a checkpoint that knows no segment before
        # the first one keeps them from coming back.
        kept_from = min(self.log_start, self.segments[0].base_offset) if self.segments else self.log_start
        self.transactions.move_log_start(self.log_start, kept_from=kept_from)

    def _use_producers(self, known: LogProducers) -> None:
        self.known_producers = known
        # The two parts of it, for whoever asks before an append.
        self.producers = known.sequences
        self.transactions = known.transactions

    @property
    def has_unsaved_watermark(self) -> bool:
        return self.is_replicated and self.readable_end > self.saved_readable_end

    @property
    def is_healthy(self) -> bool:
        """It takes writes, as far as its disk has room; some of it may be damaged."""
        return self.failure is None and self.lost_end is None

    @property
    def damage(self) -> Damage | None:
        """The first place that is not served; None: all of it is, as far as anybody has looked."""
        return self.damages.places[0] if self.damages else self.lost_end

    def close(self) -> None:
        """Takes and serves nothing from now on; reads that were planned may finish."""
        if self.failure is not None:
            self.context.metrics.offline_logs.dec()
        self.is_closed = True
        self.failure = "the log is closed"
        self._takes_batches = False
        for segment in self.segments:
            self.context.handles.forget(segment)
            self.context.indexes.release(segment)
        self.unsynced.forget_segments()

    # --- reading -------------------------------------------------------------------------------------------------

    def plan_read(
        self, offset: int, *, bytes_max: int, up_to: int | None = None, is_replica: bool = False
    ) -> ReadPlan | OutOfRange | Damaged | Offline | None:
        """Whole batches, the first of which holds `offset`, at least one whatever its size; None: nothing there yet. A
        replica is given what nobody else may read yet."""
        if self.failure is not None:
            return Offline(self.failure)
        if offset < self.log_start or offset > self.log_end:
            return OutOfRange(self.log_start, self.log_end)
        if self.flaws.is_troubled:
            if self.flaws.is_withheld:
                return Offline(WITHHELD)
            damage = self.damage_at(offset)
            if damage is not None:
                return Damaged(damage)
        if offset >= self.readable_end and not (is_replica and offset < self.log_end):
            return None
        if up_to is not None and offset >= up_to:
            return None
        segment = self.segment_of(offset)
        boundary = self._boundaries.get(offset)
        segment.was_used = True
        try:
            file = segment.file or self.context.handles.open(segment)
        except OSError as error:
            return Offline(f"{segment.path} cannot be opened: {error.strerror}")
        plan = ReadPlan(
            self,
            segment,
            file,
            offset=offset,
            bytes_max=bytes_max,
            start=boundary[1] if boundary is not None and boundary[0] is segment else -1,
            end=(segment.size, segment.next_offset) if is_replica else self.readable_part(segment),
        )
        if up_to is not None:
            plan.stop_before(up_to)
        if self.damages:
            plan.keep_off(self.damages)
        return plan

    def readable_part(self, segment: Segment) -> tuple[int, int]:
        """Where what may be read of a segment ends: a position, and the offset after it."""
        if segment is self._readable_segment:
            return self._readable_position, self.readable_end
        if segment.base_offset >= self.readable_end:
            return 0, segment.base_offset
        return segment.size, segment.next_offset

    def damage_at(self, offset: int) -> Damage | None:
        """Why the offset is not served, if it is damage that keeps it from being so."""
        lost = self.lost_end
        return lost if lost is not None and offset >= lost.offset else self.damages.at(offset)

    def segment_of(self, offset: int) -> Segment:
        active = self._active
        assert active is not None
        if offset >= active.base_offset:
            return active
        place = bisect_right(self.segments, offset, key=_base_offset)
        return self.segments[max(place - 1, 0)]

    def remember_boundary(self, offset: int, segment: Segment, position: int) -> None:
        """A batch begins at `offset`, there. Also called by reading threads: one dict operation each."""
        boundaries = self._boundaries
        if len(boundaries) >= _BOUNDARIES_MAX:
            boundaries.clear()
        boundaries[offset] = (segment, position)

    def note_damage(self, damage: Damage) -> None:
        """Blocking. Found by whoever read the bytes; each place is told once, and remembered beside the log."""
        assert damage.offset_end > damage.offset, damage
        # Before the place is there: from then on nobody must read past it.
        self.flaws.is_troubled = True
        if self.failure is None and self.damages.add(damage):
            tell_damage(damage, self.home, self.context.metrics)
            self.flaws.note()

    def note_unreadable(self, damage: Damage, error: OSError) -> None:
        """The disk did not give out what is there. It may do so a moment later, so nothing is marked."""
        self.flaws.note_unreadable(damage, error)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | Offline | None:
        """Blocking: the first readable record at or after the moment."""
        return ask(self, lambda lookup: lookup.first_at_or_after(timestamp_ms))

    def offset_of_max_timestamp(self) -> TimestampOffset | Offline | None:
        """Blocking: the first of the newest readable records."""
        return ask(self, TimeLookup.newest)

    # --- taking from the head ------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> LogRemoval:
        """Records below `offset` are gone for readers now, and for good when the removal's `run` has returned."""
        return head.delete_before(self, offset)

    def apply_retention(self, now_ms: int, archived_end: int | None = None) -> LogRemoval | None:
        """Rolls a segment that is old enough, and lets go of those that the topic's retention no longer keeps; if there
        is an `archived_end`, of what lies below it only.
        """
        return head.apply_retention(self, now_ms, archived_end)

    def follow_log_start(self, offset: int) -> LogRemoval | None:
        """The leader's log begins there: so does this one, as far as it is readable. None: nothing is to be done."""
        return head.follow(self, offset)

    def roll_if_due(self, now_ms: int) -> None:
        """Ends a segment that is old enough: of a log, too, that somebody else decides the retention of."""
        head.roll_if_due(self, now_ms)

    def replace_segments(self, replaced: Sequence[Segment], segment: Segment) -> None:
        """What a cleaning kept of some sealed and readable segments stands in their place from now on."""
        place = self.segments.index(replaced[0])
        self.segments = [*self.segments[:place], segment, *self.segments[place + len(replaced) :]]
        for gone in replaced:
            self.context.handles.forget(gone)
            self.context.indexes.release(gone)
            self.size_bytes -= gone.size
        self.size_bytes += segment.size
        self._boundaries = {}
        if self._readable_segment in replaced:
            self._readable_segment, self._readable_position = segment, segment.size

    # --- producers -----------------------------------------------------------------------------------------------

    def expire_producers(self, now_ms: int, *, expiration_ms: int) -> int:
        """A sweep, made now and then: forgets the long silent ones, but nobody with a transaction under way."""
        return self.known_producers.expire(now_ms, expiration_ms=expiration_ms)

    def describe_producers(self) -> list[ProducerFacts]:
        """By id, for DescribeProducers."""
        return self.known_producers.describe()

    # --- facts ---------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended, and how is readable; `readable_end` if none is under way."""
        return self.transactions.last_stable_offset

    @property
    def record_count(self) -> int:
        """Records, not offsets: holes are not counted. Those below `log_start` in its segment still are."""
        return sum(segment.record_count for segment in self.segments)

    @property
    def max_timestamp(self) -> int:
        return max((segment.max_timestamp for segment in self.segments), default=-1)

    # --- segments ------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Begins a new segment at the log's end, if the last one has anything in it."""
        if self._active is not None and self._active.size > 0:
            self._begin_segment_at(self.log_end)

    def _begin_segment(self, header: BatchHeader) -> Segment:
        try:
            return self._begin_segment_at(header.base_offset)
        except OSError as error:
            raise cannot_begin(self, error) from error

    def _begin_segment_at(self, base_offset: int) -> Segment:
        if self._active is None:
            self._make_home()
        segment = Segment(self.home.directory, base_offset, begun_ms=self.context.clock.now_ms())
        file = self.context.handles.open(segment, create=True)
        # A leftover of a roll that failed half-way, or of a crash before the name was known to be there.
        if file.size() > 0:
            file.truncate(0)
        segment.index = SegmentIndex()
        segment.is_new = True
        segment.is_active = True
        self.unsynced.note(segment)
        if self._active is not None:
            self._active.is_active = False
        self._active = segment
        self.segments.append(segment)
        # A start that does not know of the segment would not miss it, and give its offsets out again.
        self.is_save_wanted = True
        return segment

    def _make_home(self) -> None:
        home = self.home
        topic_file = home.create(self.context.files)
        self.unsynced.note_home(topic_file, [home.directory, home.topic_directory, home.logs_directory])

    def _ready_segment(self, segment: Segment, headers: Sequence[BatchHeader]) -> Segment:
        if headers[-1].base_offset - segment.base_offset > ENTRY_MAX:
            return self._begin_segment(headers[0])
        # The first append after a start: the index comes from its files, once. Blocking, about 0.1 ms.
        try:
            self.context.indexes.index_of(segment, segment.file or self.context.handles.open(segment))
        except OSError as error:
            raise write_failed(self, segment, error) from error
        return segment


assert SEGMENT_BYTES_LIMIT <= ENTRY_MAX, "positions fit into an index entry"
