"""What one sync of one log has to do: taken on the loop, done in a thread, settled on the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.file_protocols import File, Files

if TYPE_CHECKING:
    from penstock.storage.partition_log import PartitionLog


class LogSync:
    """The files and directories that hold everything written to `log` before it was taken."""

    __slots__ = ("directories", "end_offset", "files", "generation", "log", "paths")

    def __init__(self, log: PartitionLog, end_offset: int) -> None:
        self.log = log
        self.end_offset = end_offset
        self.generation = log.generation
        self.files: list[File] = []
        # Of files that had to be let go with unsynced writes: a sync of the whole disk, or they are opened again.
        self.paths: list[str] = []
        self.directories: list[str] = []

    @property
    def step_count(self) -> int:
        return len(self.files) + len(self.paths) + len(self.directories)

    def run(self, files: Files) -> None:
        """Blocking. Data first: a name that leads to bytes which are not there would be worse than no name."""
        for file in self.files:
            file.sync()
        for path in self.paths:
            # Gone: retention took the segment since, so there is nothing left to make durable.
            if files.exists(path):
                files.open(path).sync()
        for directory in self.directories:
            files.sync_directory(directory)
