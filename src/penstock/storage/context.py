"""What all logs of a node share: the file seam, the settings, the caches, and whether the disk has room."""

from __future__ import annotations

from penstock.base.clock import Clock
from penstock.base.metrics import CollectorRegistry
from penstock.storage.config import StorageConfig, handles_max_of
from penstock.storage.files.handles import HandleCache
from penstock.storage.files.protocols import Files
from penstock.storage.files.reserve import DiskReserve
from penstock.storage.files.retired import RetiredFiles
from penstock.storage.metrics import StorageMetrics
from penstock.storage.segment.early_writeback import EarlyWriteback
from penstock.storage.segment.index_cache import IndexCache


class StoreContext:
    __slots__ = (
        "clock",
        "config",
        "files",
        "handles",
        "indexes",
        "is_full",
        "is_read_only",
        "metrics",
        "reserve",
        "retired",
        "writeback",
    )

    def __init__(
        self,
        files: Files,
        root: str,
        config: StorageConfig,
        clock: Clock,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.files = files
        self.config = config
        self.clock = clock
        self.handles = HandleCache(files, handles_max_of(config))
        self.indexes = IndexCache(
            files,
            segments_max=config.index_cache_segments_max,
            index_interval_bytes=config.index_interval_bytes,
        )
        self.metrics = StorageMetrics(registry if registry is not None else CollectorRegistry())
        self.reserve = DiskReserve(files, root)
        self.retired = RetiredFiles(files)
        self.writeback = EarlyWriteback(files)
        # Nothing is written: for lack of room, or because the file system takes no writes.
        self.is_full = False
        self.is_read_only = False

    def note_read_only(self) -> None:
        """Learnt by a write; `LogStore.free_space_check` learns when it is over."""
        self.is_full = self.is_read_only = True
