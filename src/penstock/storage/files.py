"""The file seam and its two engines, under one name."""

from penstock.storage.directory_files import DirectoryFiles
from penstock.storage.file_protocols import File, Files, Lock, WholeDiskSync, WritableBytes
from penstock.storage.memory_files import MemoryFiles

__all__ = ["DirectoryFiles", "File", "Files", "Lock", "MemoryFiles", "WholeDiskSync", "WritableBytes"]
