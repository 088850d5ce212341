"""What is left of lost or damaged metadata: the store's file, its copy, and what the data directory knows of itself.

    the store, if it is whole and no older than its copy
    otherwise: the copy, and what is newer than it among the entries of the store that are whole
    neither: nothing but the directories

What belongs to another cluster than the data directory is no source. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.cluster.store.copy import SUFFIX, CopiedEntry, MetadataCopy, UnreadableCopy, read_copy
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import StoreDamagedError
from penstock.cluster.store.sqlite_salvage import Salvage, salvage
from penstock.cluster.store.values import decode


class Sources(msgspec.Struct, frozen=True):
    entries: dict[str, bytes]
    # Higher than any that a node may have seen.
    revision: int
    # Sentences: where the entries are from, and what may be missing among them.
    notes: tuple[str, ...]
    # Nothing can be missing: the store itself is whole.
    is_whole: bool = False
    # Settings, rules, users, queues: known from somewhere.
    is_complete: bool = False


def read_sources(path: str, *, belongs_to: str | None, keys: KeySpace) -> Sources:
    stored = salvage(path)
    copy = read_copy(path + SUFFIX)
    notes = [f"{path}: " + (stored.problem or f"whole, revision {stored.revision}, {len(stored.entries)} entries")]
    if isinstance(copy, UnreadableCopy):
        notes.append(f"{path}{SUFFIX}: damaged")
        copy = None
    elif copy is not None:
        notes.append(f"{path}{SUFFIX}: revision {copy.revision}, {len(copy.entries)} entries")
    if stored.entries and belongs_to is not None and _is_foreign(stored.entries, belongs_to, keys):
        notes.append(f"{path}: not of this data directory's cluster {belongs_to}: left out")
        stored = Salvage(problem="of another cluster", revision=stored.revision)
    if copy is not None and belongs_to is not None and _is_foreign(copy.entries, belongs_to, keys):
        notes.append(f"{path}{SUFFIX}: not of this data directory's cluster {belongs_to}: left out")
        copy = None
    return _join(stored, copy, notes, keys)


def _join(stored: Salvage, copy: MetadataCopy | None, notes: list[str], keys: KeySpace) -> Sources:
    revision = max(stored.revision, 0 if copy is None else copy.revision) + 1
    if stored.problem is None and (copy is None or stored.revision >= copy.revision):
        entries = {entry.key: entry.value for entry in stored.entries}
        # Every store gets a cluster's id at the first start: without one it was begun in the place of a lost one.
        is_used = keys.cluster_id in entries
        return Sources(entries, revision, tuple(notes), is_whole=is_used, is_complete=is_used)
    if copy is None:
        entries = {entry.key: entry.value for entry in stored.entries}
        notes.append(f"{len(entries)} entries of the store are whole; how many are lost is not known")
        return Sources(entries, revision, tuple(notes))
    entries = {entry.key: entry.value for entry in copy.entries}
    # An entry that the copy lacks although it is older was deleted before the copy was made.
    newer = [entry for entry in stored.entries if entry.mod_revision > copy.revision]
    entries |= {entry.key: entry.value for entry in newer}
    notes.append(
        f"restored from the copy, with {len(newer)} later changes from the store; "
        "what was changed after the copy and cannot be read is lost"
    )
    return Sources(entries, revision, tuple(notes), is_complete=True)


def _is_foreign(entries: Iterable[CopiedEntry], belongs_to: str, keys: KeySpace) -> bool:
    """Entries without a cluster's id are of a store that was begun anew, or of one that is damaged just there."""
    found = [entry.value for entry in entries if entry.key == keys.cluster_id]
    if not found:
        return not any(entry.key.startswith(keys.topics) for entry in entries)
    try:
        return decode(keys.cluster_id, found[0], str) != belongs_to
    except StoreDamagedError:
        return False
