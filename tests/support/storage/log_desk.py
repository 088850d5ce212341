"""A log store to write to and read from in a test, with as little ado as possible."""

from __future__ import annotations

from penstock.base.clock import ManualClock
from penstock.base.metrics import CollectorRegistry
from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.header import BatchHeader, read_header, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.files import Files
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.store import LogStore
from support.storage.faulty_files import FaultyFiles

ROOT = "/data"
TOPIC_ID = bytes(range(16))


class LogDesk:
    def __init__(
        self,
        files: Files | None = None,
        root: str = ROOT,
        *,
        settings: StorageConfig | None = None,
        config: LogConfig | None = None,
        is_replicated: bool = False,
    ) -> None:
        self.files = files if files is not None else FaultyFiles()
        self.root = root
        self.clock = ManualClock()
        # On one thread: the journal of a test has one order.
        self.settings = settings or StorageConfig(free_bytes_min=0, sync_threads=1)
        self.config = config or LogConfig()
        self.is_replicated = is_replicated
        self.registry = CollectorRegistry()
        self.store = self._open()
        self.log = self.open_log()

    def _open(self) -> LogStore:
        self.registry = CollectorRegistry()
        return LogStore.open(self.files, self.root, self.settings, self.clock, self.registry)

    def open_log(self, partition: int = 0) -> PartitionLog:
        return self.store.open_log("topic", TOPIC_ID, partition, self.config, is_replicated=self.is_replicated)

    def restart(self, *, clean: bool) -> None:
        """Another process, on the same disk; without `clean` the last one was killed."""
        if clean:
            self.store.close()
        elif isinstance(self.files, FaultyFiles):
            self.files.locked.clear()
        else:
            self.store.close(clean=False)
        if isinstance(self.files, FaultyFiles):
            self.files.life += 1
        self.store = self._open()
        self.log = self.open_log()

    def append(self, *values: bytes, log: PartitionLog | None = None, size: int = 0, **fields: int) -> bytes:
        """One batch; its bytes."""
        log = log or self.log
        data = self.batch(*(values or (bytes(max(size, 1)),)), base_offset=log.log_end, **fields)
        header = read_header(data)
        assert isinstance(header, BatchHeader)
        log.append(memoryview(data), (header,))
        return bytes(data)

    def append_in_transaction(self, producer_id: int, *values: bytes, epoch: int = 0, sequence: int = 0) -> int:
        """One batch of the producer's transaction; its offset."""
        offset = self.log.log_end
        self.append(
            *(values or (b"value",)),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return offset

    def append_marker(self, producer_id: int, *, is_commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> int:
        """The end of the producer's transaction; its offset."""
        offset = self.log.log_end
        data = build_marker(
            EndMarker(is_commit, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp_ms=self.clock.now_ms(),
            base_offset=offset,
            leader_epoch=0,
        )
        header = read_header(data)
        assert isinstance(header, BatchHeader)
        self.log.append(memoryview(data), (header,))
        return offset

    def batch(self, *values: bytes, base_offset: int = 0, timestamp_ms: int | None = None, **fields: int) -> bytearray:
        stamp = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        records = [Record(value=value, timestamp_ms=stamp) for value in values]
        return build_batch(records, base_offset=base_offset, **{"leader_epoch": 0, **fields})  # type: ignore[arg-type]

    def sync(self, log: PartitionLog | None = None) -> None:
        log = log or self.log
        assert not self.store.group_commit.sync_now([log])
        log.advance_readable(log.durable_end)

    def read(self, offset: int, bytes_max: int = 1 << 20, up_to: int | None = None) -> bytes:
        plan = self.log.plan_read(offset, bytes_max=bytes_max, up_to=up_to)
        assert isinstance(plan, ReadPlan), plan
        loaded = plan.load_cached()
        if loaded is None:
            cold = plan.load()
            assert isinstance(cold, memoryview), cold
            loaded = cold
        return bytes(loaded)

    def offsets(self, data: bytes) -> list[int]:
        return [header.base_offset for _, header in walk_headers(data)]

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0
