"""Whether the end of a transaction was in bytes that are lost. A repair keeps that, in the batch without records which
it puts in their place: as a batch of a transaction that nobody wrote.
"""

from __future__ import annotations

from penstock.codec.batch.control import may_be_marker
from penstock.codec.batch.header import ATTRIBUTE_TRANSACTIONAL, NO_PRODUCER_ID, BatchHeader
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import ReadableFile


def is_lost_end(header: BatchHeader) -> bool:
    """Of a batch that a repair has written."""
    is_transactional = bool(header.attributes & ATTRIBUTE_TRANSACTIONAL)
    return is_transactional and header.producer_id == NO_PRODUCER_ID and header.record_count == 0


def may_hold_marker(file: ReadableFile | None, damage: Damage) -> bool:
    """Blocking. None: there is no file any more."""
    size = damage.position_end - damage.position
    return file is None or size <= 0 or may_be_marker(file.read_at(damage.position, size))
