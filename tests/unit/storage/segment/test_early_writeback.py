from __future__ import annotations

from pathlib import Path

from penstock.storage.files import MemoryFiles
from penstock.storage.files.directory import DirectoryFiles
from penstock.storage.files.protocols import File
from penstock.storage.segment.early_writeback import WRITEBACK_BYTES, EarlyWriteback
from penstock.storage.segment.facts import Segment
from support.storage.log_desk import LogDesk


class WatchedFiles(DirectoryFiles):
    has_writeback = True


class WatchedFile:
    def __init__(self, file: File | None = None) -> None:
        self.asked: list[tuple[int, int]] = []

    def begin_writeback(self, position: int, size: int) -> None:
        self.asked.append((position, size))


def test_each_megabyte_is_asked_for_once() -> None:
    writeback, file, segment = EarlyWriteback(WatchedFiles()), WatchedFile(), Segment("/d", 0, begun_ms=0)
    for size in (WRITEBACK_BYTES, 3 * WRITEBACK_BYTES):
        segment.size = size
        writeback.ask(segment, file)  # type: ignore[arg-type]
        while not writeback._asked.empty():
            pass
    writeback.close()
    assert file.asked == [(0, WRITEBACK_BYTES), (WRITEBACK_BYTES, 2 * WRITEBACK_BYTES)]


def test_engine_without_writeback_has_no_thread_for_it() -> None:
    desk = LogDesk(MemoryFiles())
    for _ in range(3):
        desk.append(size=WRITEBACK_BYTES)
    assert desk.store.context.writeback._thread is None


def test_log_asks_for_what_was_appended(tmp_path: Path) -> None:
    desk = LogDesk(DirectoryFiles(), str(tmp_path / "data"))
    desk.append(size=WRITEBACK_BYTES // 2)
    assert desk.log.segments[-1].writeback_end == 0
    desk.append(size=WRITEBACK_BYTES)
    segment = desk.log.segments[-1]
    assert segment.writeback_end == segment.size > WRITEBACK_BYTES
    desk.sync()
    desk.store.close()
    assert desk.store.context.writeback._thread is None
