"""The file seam and its two engines, under one name."""

from penstock.storage.files.directory import DirectoryFiles
from penstock.storage.files.memory import MemoryFiles
from penstock.storage.files.protocols import File, Files, Lock, WholeDiskSync, WritableBytes

__all__ = ["DirectoryFiles", "File", "Files", "Lock", "MemoryFiles", "WholeDiskSync", "WritableBytes"]
