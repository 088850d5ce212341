"""What one sync of one log has to do: taken on the loop, done in a thread, settled on the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.file_protocols import File, Files

if TYPE_CHECKING:
    from penstock.storage.partition_log import PartitionLog


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
