"""Logs on the disks of several nodes, compared batch by batch when the nodes have stopped.

A log is compared from the highest start to the lowest end of its replicas: what is past that was promised to nobody.
Bytes are as the leader wrote them, so replicas are equal whatever segments they cut them into.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

# Base offset and how many bytes follow; the rest of a batch's header says how many offsets it has.
_HEADER: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23
_BATCH_BYTES_MIN: Final = 61

# Base offset, next offset, checksum of all of its bytes.
Batch = tuple[int, int, int]


def compare_replicas(data_directories: Mapping[int, Path], topic: str) -> list[str]:
    """What differs, in words; nothing: the replicas are equal."""
    replicas = {node_id: _logs_of(directory, topic) for node_id, directory in data_directories.items()}
    numbers = sorted({number for logs in replicas.values() for number in logs})
    assert numbers, f"no node has a log of {topic}"
    troubles: list[str] = []
    for number in numbers:
        held = {node_id: logs.get(number, []) for node_id, logs in replicas.items()}
        troubles += [f"{topic}-{number}: {trouble}" for trouble in compare_logs(held)]
    return troubles


def compare_logs(held: Mapping[int, Sequence[Batch]]) -> list[str]:
    start = max((batches[0][0] for batches in held.values() if batches), default=0)
    end = min((batches[-1][1] if batches else 0) for batches in held.values())
    troubles: list[str] = []
    (first_id, first), *others = held.items()
    wanted = _between(first, start, end)
    for node_id, batches in others:
        found = _between(batches, start, end)
        if found != wanted:
            place = next(
                (mine[0] for mine, theirs in zip(wanted, found, strict=False) if mine != theirs),
                "the end",
            )
            troubles.append(f"nodes {first_id} and {node_id} differ at {place} (below {end})")
    return troubles


def _between(batches: Sequence[Batch], start: int, end: int) -> list[Batch]:
    return [batch for batch in batches if batch[0] >= start and batch[1] <= end]


def _logs_of(data_directory: Path, topic: str) -> dict[int, list[Batch]]:
    for described in sorted(data_directory.glob("logs/*/topic.json")):
        if json.loads(described.read_text())["name"] == topic:
            homes = [home for home in described.parent.iterdir() if home.name.isdigit()]
            return {int(home.name): list(_batches_of(home)) for home in homes}
    return {}


def _batches_of(home: Path) -> Iterator[Batch]:
    for segment in sorted(home.glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at + _BATCH_BYTES_MIN <= len(data):
            base, length = _HEADER.unpack_from(data, at)
            size = _HEADER.size + length
            # Space that was reserved and not written, or a batch that was torn: the log ends before it.
            if length <= 0 or at + size > len(data):
                return
            (last_delta,) = _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)
            yield base, base + last_delta + 1, zlib.crc32(memoryview(data)[at : at + size])
            at += size
