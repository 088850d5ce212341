"""Files beside a segment that say what is in it, made in the background and never needed: they go when it goes."""

from __future__ import annotations

from typing import Final

from penstock.storage.file_protocols import Files
from penstock.storage.lane_file import LANES_SUFFIX
from penstock.storage.small_file import TEMPORARY_SUFFIX

ZONES_SUFFIX: Final = ".zones"
SIDE_SUFFIXES: Final = (LANES_SUFFIX, ZONES_SUFFIX)


def remove_side_files(files: Files, prefix: str) -> None:
    for suffix in SIDE_SUFFIXES:
        files.remove(prefix + suffix)
        files.remove(prefix + suffix + TEMPORARY_SUFFIX)
