"""The small files beside a log's segments: where it starts, who its leaders were, what its producers sent last."""

from __future__ import annotations

import struct
from typing import Final

from penstock.domain.producer_sequence import ProducerSequences
from penstock.storage.file_protocols import Files
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.small_file import read_small_file, write_small_file

LOG_START_FILE: Final = "log_start"
LOG_START_MAGIC: Final = b"psstart1"
EPOCHS_FILE: Final = "leader_epochs"
EPOCHS_MAGIC: Final = b"psepoch1"
PRODUCERS_FILE: Final = "producers"
PRODUCERS_MAGIC: Final = b"psprodu1"

_OFFSET = struct.Struct("<q")


def write_log_start(files: Files, directory: str, log_start: int) -> None:
    """Durable when it returns."""
    write_small_file(files, directory, LOG_START_FILE, LOG_START_MAGIC, _OFFSET.pack(log_start))


def read_log_start(files: Files, directory: str, first_offset: int) -> int:
    """0 if it was never moved. If what was saved is bad, where the first segment begins: better than nothing, since
    nothing but records that were deleted can come back by it."""
    payload = read_small_file(files, directory, LOG_START_FILE, LOG_START_MAGIC)
    if payload is not None:
        return int(_OFFSET.unpack(payload)[0])
    return first_offset if files.exists(f"{directory}/{LOG_START_FILE}") else 0


def read_epochs(files: Files, directory: str) -> LeaderEpochs:
    payload = read_small_file(files, directory, EPOCHS_FILE, EPOCHS_MAGIC)
    return LeaderEpochs() if payload is None else LeaderEpochs.from_bytes(payload)


def pack_producers(producers: ProducerSequences, offset: int) -> bytes:
    """The state after everything below `offset`."""
    return _OFFSET.pack(offset) + producers.to_bytes()


def read_producers(files: Files, directory: str, producers_max: int) -> tuple[int, ProducerSequences] | None:
    payload = read_small_file(files, directory, PRODUCERS_FILE, PRODUCERS_MAGIC)
    if payload is None:
        return None
    (offset,) = _OFFSET.unpack_from(payload)
    return offset, ProducerSequences.from_bytes(payload[_OFFSET.size :], producers_max)
