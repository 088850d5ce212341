"""Whether the end of a transaction may have been in bytes that are lost."""

from __future__ import annotations

from penstock.codec.batch.control import may_be_marker
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import ReadableFile


def may_hold_marker(file: ReadableFile | None, damage: Damage) -> bool:
    """Blocking. None: there is no file any more."""
    size = damage.position_end - damage.position
    return file is None or size <= 0 or may_be_marker(file.read_at(damage.position, size))
