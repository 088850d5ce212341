"""What a disk may have lost, and what a node may therefore report as damaged: exactly that, and nothing else.

- A power cut that scatters: of batches that were not synced, any part may be there (docs/decisions/0003).
- A sync that failed: what was not synced then looks well until the cache is gone.
- A bit that rotted: the batch that it lies in.
"""

from __future__ import annotations

from penstock.codec.batch.header import BatchHeader, walk_headers
from penstock.storage.segment.facts import LOG_SUFFIX
from support.storage.faulty_files import FaultyFiles


class Excuses:
    """Offsets of the logs of one disk, by the directory of the log."""

    def __init__(self, files: FaultyFiles) -> None:
        self._files = files
        self._lost: dict[str, list[range]] = {}
        self._rotten: dict[str, list[range]] = {}

    def note_unsynced(self) -> None:
        """Now all that is in the cache alone may be lost in part."""
        for path in self._files.paths():
            if path.endswith(LOG_SUFFIX):
                offsets = [each for data in _in_one_piece(self._files, path) for each in _offsets_of(data)]
                self._lost.setdefault(_directory_of(path), []).extend(offsets)

    def rot(self, path: str, bit: int) -> None:
        """Turns one over, on the disk. A log's batch whose bit it is may be damaged from now on."""
        header = self._batch_of(path, bit)
        if header is not None:
            rotten = self._rotten.setdefault(_directory_of(path), [])
            rotten.append(range(header.base_offset, header.next_offset))
        self._files.rot(path, bit)

    def _batch_of(self, path: str, bit: int) -> BatchHeader | None:
        if not path.endswith(LOG_SUFFIX):
            return None
        batches = walk_headers(self._files.content(path))
        return next((header for at, header in batches if at <= bit // 8 < at + header.size_bytes), None)

    def may_be_damaged(self, log: str, offset: int) -> bool:
        """`log` is how the directory ends: `<topic id>/<partition>`."""
        return self.is_rotten(log, offset) or _is_among(self._lost, log, offset)

    def is_rotten(self, log: str, offset: int) -> bool:
        """Then it may be gone although it was confirmed: there is one disk, and it has lost it."""
        return _is_among(self._rotten, log, offset)


def _is_among(found: dict[str, list[range]], log: str, offset: int) -> bool:
    return any(offset in each for path, ranges in found.items() if path.endswith(log) for each in ranges)


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def _in_one_piece(files: FaultyFiles, path: str) -> list[bytes]:
    """Unsynced writes, those joined that go on where another ended: one that was cut short is continued."""
    pieces: list[tuple[int, bytes]] = []
    for position, data in files.unsynced_writes(path):
        if pieces and pieces[-1][0] + len(pieces[-1][1]) == position:
            position, data = pieces[-1][0], pieces.pop()[1] + data
        pieces.append((position, data))
    return [data for _position, data in pieces]


def _offsets_of(data: bytes) -> list[range]:
    return [range(header.base_offset, header.next_offset) for _position, header in walk_headers(data)]
