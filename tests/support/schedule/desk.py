"""A schedule on a desk: one command after the other, each decision applied at once, as a shell would.

Bucket files are byte strings; a row of the log is a record.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.domain.schedule.buckets import ENTRY_BYTES
from penstock.domain.schedule.commands import (
    Accepted,
    Decision,
    FinishMove,
    FireCrons,
    Release,
    Schedule,
    ScheduleCommand,
    ScheduleReply,
)
from penstock.domain.schedule.machine import PartitionSchedule, ScheduleConfig
from penstock.domain.schedule.records import (
    Move,
    ProducerBatch,
    ScheduleRecord,
    Stored,
    StoredBucket,
    read_record,
    write_record,
)

START_MS = 1_700_000_000_000
PRODUCER_ID = 7


def zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


class ScheduleDesk:
    def __init__(self, config: ScheduleConfig | None = None) -> None:
        self.config = config or ScheduleConfig()
        self.schedule = PartitionSchedule(self.config, zones=zone)
        self.now_ms = START_MS
        self.rows: list[bytes] = []
        self.files: dict[int, bytes] = {}
        self.stored: Stored | None = None

    @property
    def end(self) -> int:
        return len(self.rows)

    def submit(self, command: ScheduleCommand) -> ScheduleReply:
        return self.decide(command).reply

    def decide(self, command: ScheduleCommand) -> Decision:
        decision = self.schedule.decide(command, self.now_ms)
        for record in decision.records:
            self.schedule.apply(record)
            self.rows.append(write_record(record))
        return decision

    def records(self) -> list[ScheduleRecord]:
        return [read_record(row) for row in self.rows]

    # ------------------------------------------------------------------ phrases

    def delay(self, *delays_ms: int, producer: ProducerBatch | None = None, is_transactional: bool = False) -> int:
        """The place of the first one that was new."""
        dues = tuple(self.now_ms + delay_ms for delay_ms in delays_ms)
        reply = self.submit(Schedule(self.end, dues, producer, is_transactional))
        assert isinstance(reply, Accepted), reply
        return reply.position

    def ring(self) -> None:
        """The alarm: files, crons."""
        for read in self.schedule.open_near(self.now_ms):
            data = self.files[read.name.number][: read.count * ENTRY_BYTES]
            self.schedule.load(read.name, data, is_last=True, now_ms=self.now_ms)
        self.submit(FireCrons(self.end))

    def begin_release(self) -> Move | None:
        self.ring()
        self.submit(Release(PRODUCER_ID, 0))
        return self.schedule.pending_move()

    def release(self) -> tuple[int, ...]:
        """One batch, and all the way: the places it came from."""
        move = self.begin_release()
        if move is None:
            return ()
        self.submit(FinishMove(move.batch))
        return move.sources

    def pass_time(self, elapsed_ms: int) -> list[tuple[int, ...]]:
        """Rings when it should: what was released at each ring that released anything."""
        until_ms = self.now_ms + elapsed_ms
        released: list[tuple[int, ...]] = []
        for _ring in range(100_000):
            deadline_ms = self.schedule.next_deadline_ms(self.now_ms)
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            released += [sources] if (sources := self.release()) else []
        self.now_ms = until_ms
        return released

    def spill(self) -> None:
        for write in self.schedule.take_spill():
            self.files[write.name.number] = self.files.get(write.name.number, b"") + write.entries

    def checkpoint(self) -> Stored:
        checkpoint = self.schedule.checkpoint(self.end)
        for write in checkpoint.writes:
            self.files[write.name.number] = self.files.get(write.name.number, b"") + write.entries
        self.stored = checkpoint.stored
        named = {bucket.number for bucket in self.stored.buckets}
        self.files = {number: data for number, data in self.files.items() if number in named}
        return self.stored

    def restart(self) -> None:
        """From the last checkpoint and what came after it; without one, from the log alone."""
        self.schedule = PartitionSchedule(self.config, zones=zone)
        start = 0
        buckets: tuple[StoredBucket, ...] = ()
        if self.stored is not None:
            self.schedule.apply(read_record(write_record(self.stored)))
            start, buckets = self.stored.next_position, self.stored.buckets
        self.files = {bucket.number: self.files[bucket.number][: bucket.count * ENTRY_BYTES] for bucket in buckets}
        for row in self.rows[start:]:
            self.schedule.apply(read_record(row))
