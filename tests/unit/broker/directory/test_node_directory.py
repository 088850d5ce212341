"""The data directory as a node's own: what it says of itself, by which a life is judged."""

from __future__ import annotations

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.directory.node_directory import NodeDirectory
from penstock.storage.config import StorageConfig
from penstock.storage.files.memory import MemoryFiles
from penstock.storage.store import LogStore


@pytest.fixture
def store() -> LogStore:
    return LogStore.open(MemoryFiles(), "/data", StorageConfig(), ManualClock())


async def test_life_that_was_begun_is_known_to_the_next_one_also_without_a_restart(store: LogStore) -> None:
    """A node whose session the store has ended begins another life while it runs."""
    directory = NodeDirectory.open(store, boot_id="boot-1")
    assert directory.found is None
    directory.begin(cluster_id="cluster", node_id=1, directory_id="directory")
    await directory.keep_epochs((2,))
    assert directory.record.epochs == (2,)
    await directory.keep_epochs((2, 7))
    assert (directory.record.epochs, directory.record.boot_id) == ((2, 7), "boot-1")
    assert NodeDirectory.open(store, boot_id="boot-2").record == directory.record, "as a process that starts finds it"


async def test_what_is_found_says_nothing_of_the_life_that_begins(store: LogStore) -> None:
    directory = NodeDirectory.open(store, boot_id="boot-1")
    directory.begin(cluster_id="cluster", node_id=1, directory_id="directory")
    await directory.keep_epochs((2,))
    again = NodeDirectory.open(store, boot_id="boot-2")
    assert (again.record.epochs, again.record.boot_id) == ((2,), "boot-1")
