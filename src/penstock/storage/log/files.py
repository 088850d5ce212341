"""The small files beside a log's segments: where it starts, who its leaders were, what its producers sent last, and
their transactions."""

from __future__ import annotations

import struct
from typing import Final

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.producers import LogProducers

LOG_START_FILE: Final = "log_start"
LOG_START_MAGIC: Final = b"psstart1"
EPOCHS_FILE: Final = "leader_epochs"
EPOCHS_MAGIC: Final = b"psepoch1"
PRODUCERS_FILE: Final = "producers"
PRODUCERS_MAGIC: Final = b"psprodu3"
# Without the checksums of batches.
PRODUCERS_MAGIC_BEFORE: Final = b"psprodu2"

_OFFSET = struct.Struct("<q")


def write_log_start(files: Files, directory: str, log_start: int) -> None:
    """Durable when it returns."""
    write_small_file(files, directory, LOG_START_FILE, LOG_START_MAGIC, _OFFSET.pack(log_start))


def read_log_start(files: Files, directory: str) -> int | None:
    """0 if it was never moved. None if what was saved is bad: where the first segment begins is better than nothing,
    since nothing but records that were deleted can come back by it."""
    payload = read_small_file(files, directory, LOG_START_FILE, LOG_START_MAGIC)
    if payload is not None:
        return int(_OFFSET.unpack(payload)[0])
    return None if files.exists(f"{directory}/{LOG_START_FILE}") else 0


def read_epochs(files: Files, directory: str) -> LeaderEpochs:
    payload = read_small_file(files, directory, EPOCHS_FILE, EPOCHS_MAGIC)
    return LeaderEpochs() if payload is None else LeaderEpochs.from_bytes(payload)


def pack_producers(producers: LogProducers, offset: int) -> bytes:
    """The state after everything below `offset`."""
    return _OFFSET.pack(offset) + producers.to_bytes()


def read_producers(files: Files, directory: str, producers_max: int) -> tuple[int, LogProducers] | None:
    payload = read_small_file(files, directory, PRODUCERS_FILE, PRODUCERS_MAGIC)
    has_checksums = payload is not None
    if payload is None:
        payload = read_small_file(files, directory, PRODUCERS_FILE, PRODUCERS_MAGIC_BEFORE)
    if payload is None:
        return None
    (offset,) = _OFFSET.unpack_from(payload)
    producers = LogProducers.from_bytes(
        payload[_OFFSET.size :], log_end=offset, producers_max=producers_max, has_checksums=has_checksums
    )
    return offset, producers
