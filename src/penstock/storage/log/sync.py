"""What one sync of one log has to do: taken on the loop, done in a thread, settled on the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.files.protocols import File, Files
from penstock.storage.segment.facts import Segment

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog


class LogSync:
    """The files and directories that hold everything written to `log` before it was taken."""

    __slots__ = ("directories", "end_offset", "generation", "log", "targets")

    def __init__(self, log: PartitionLog, end_offset: int) -> None:
        self.log = log
        self.end_offset = end_offset
        self.generation = log.generation
        # Files in the order of the log, so that a crash in between leaves a shorter log and not one with a hole. A path
        # stands for a file that had to be let go with unsynced writes: it is opened again.
        self.targets: list[File | str] = []
        self.directories: list[str] = []

    @property
    def step_count(self) -> int:
        return len(self.targets) + len(self.directories)

    def run(self, files: Files) -> None:
        """Blocking. Data first: a name that leads to bytes which are not there would be worse than no name."""
        for target in self.targets:
            if not isinstance(target, str):
                target.sync()
            # Gone: retention took the segment since, so there is nothing left to make durable.
            elif files.exists(target):
                files.open(target).sync()
        for directory in self.directories:
            files.sync_directory(directory)


class UnsyncedFiles:
    """Of one log: what was written or made since the last sync was taken."""

    __slots__ = ("_files", "_segments", "directories")

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._files: list[File] = []
        self.directories: list[str] = []

    def note(self, segment: Segment) -> None:
        """It was written to, or cut."""
        if not segment.is_dirty:
            segment.is_dirty = True
            self._segments.append(segment)

    def note_home(self, topic_file: File | None, directories: list[str]) -> None:
        """The log's first file is made, and what it stands in."""
        if topic_file is not None:
            self._files.append(topic_file)
        self.directories = directories

    def forget(self, segment: Segment) -> None:
        if segment.is_dirty:
            self._segments.remove(segment)

    def forget_segments(self) -> None:
        self._segments.clear()

    def take(self, log: PartitionLog) -> LogSync:
        """What has to be synced so that everything below today's `log_end` is durable."""
        sync = LogSync(log, log.log_end)
        for segment in self._segments:
            sync.targets.append(segment.file if segment.file is not None else segment.path)
            if segment.is_new:
                segment.is_new = False
                if log.home.directory not in self.directories:
                    self.directories.append(log.home.directory)
            # From here on a write is for the next turn. This one holds the file itself, so it stays open.
            segment.is_dirty = False
        self._segments.clear()
        if self._files:
            sync.targets.extend(self._files)
            self._files.clear()
        if self.directories:
            sync.directories.extend(self.directories)
            self.directories.clear()
        return sync
