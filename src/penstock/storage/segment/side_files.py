"""Files beside a segment that say what is in it, made in the background and never needed: they go when it goes."""

from __future__ import annotations

from typing import Final

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import TEMPORARY_SUFFIX
from penstock.storage.segment.lanes import LANES_SUFFIX

ZONES_SUFFIX: Final = ".zones"
SIDE_SUFFIXES: Final = (LANES_SUFFIX, ZONES_SUFFIX)


def remove_side_files(files: Files, prefix: str) -> None:
    for suffix in SIDE_SUFFIXES:
        files.remove(prefix + suffix)
        files.remove(prefix + suffix + TEMPORARY_SUFFIX)
