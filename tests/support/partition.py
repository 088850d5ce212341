"""A partition's shell on a log of its own, with a disk that the test chooses."""

from __future__ import annotations

from penstock.base.clock import ManualClock
from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.log_config import log_config
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.role import ALONE
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.config.topic import make_topic_config
from penstock.storage.config import StorageConfig
from penstock.storage.files import Files
from penstock.storage.store import LogStore

TOPIC_ID = bytes(range(16))


class PartitionDesk:
    def __init__(self, files: Files, *, durability: str = "fsync", **settings: str) -> None:
        """Settings by Kafka's names with _ for the dots."""
        self.clock = ManualClock()
        self.store = LogStore.open(files, "/data", StorageConfig(free_bytes_min=0), self.clock)
        others = {name.replace("_", "."): value for name, value in settings.items()}
        self._config = make_topic_config({"durability": durability, **others})
        self.shell = self.open(0)

    def open(self, index: int) -> PartitionShell:
        log = self.store.open_log("orders", TOPIC_ID, index, log_config(self._config))
        return PartitionShell("orders", index, log, store=self.store, clock=self.clock, config=self._config, role=ALONE)

    def batch(self, value: bytes = b"a") -> memoryview:
        return memoryview(build_batch([Record(value=value, timestamp_ms=self.clock.now_ms())]))

    def append(self, shell: PartitionShell | None = None) -> Appended:
        outcome = (shell or self.shell).append(self.batch())
        assert isinstance(outcome, Appended), outcome
        return outcome

    def append_synced(self, shell: PartitionShell | None = None) -> Commitment:
        commitment = self.append(shell).commitment
        assert commitment is not None
        return commitment

    async def turn(self, shell: PartitionShell | None = None) -> None:
        """The disk has had its turn with everything that was written."""
        await self.store.group_commit.join((shell or self.shell).log).wait()
