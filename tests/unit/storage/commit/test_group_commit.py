from __future__ import annotations

import asyncio
import errno
import threading

from penstock.storage.commit.group_commit import Turn
from penstock.storage.files.memory import MemoryFiles
from support.storage.faulty_files import FaultyFile, FaultyFiles
from support.storage.log_desk import LogDesk


class GatedFiles(FaultyFiles):
    """A disk whose syncs wait until the test lets them through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(1000)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        file = super().open(path, create=create)
        sync = file.sync

        def gated() -> None:
            self.gate.acquire()
            sync()

        file.sync = gated  # type: ignore[method-assign]
        return file

    def close_gate(self) -> None:
        while self.gate.acquire(blocking=False):
            pass


async def test_one_turn_releases_all_who_joined_before_it_began() -> None:
    desk = LogDesk()
    other = desk.open_log(1)
    desk.append(b"a")
    first = desk.store.group_commit.join(desk.log)
    desk.append(b"b", log=other)
    assert desk.store.group_commit.join(other) is first
    assert await first.wait() == frozenset()
    assert (desk.log.durable_end, other.durable_end) == (1, 1)


async def test_write_during_a_sync_waits_for_the_next_turn() -> None:
    files = GatedFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    files.close_gate()
    first = desk.store.group_commit.join(desk.log)
    await asyncio.sleep(0)  # the turn begins
    desk.append(b"b")
    second = desk.store.group_commit.join(desk.log)
    assert second is not first
    ends: list[int] = []
    first.add_done_callback(lambda _turn: ends.append(desk.log.durable_end))
    files.gate.release(1000)
    await second.wait()
    assert ends == [1]
    assert desk.log.durable_end == 2


async def test_callbacks_run_after_the_sync_in_the_order_of_asking() -> None:
    files = FaultyFiles()
    files.can_sync_all = False
    desk = LogDesk(files)
    desk.append(b"a")
    path = desk.log.segments[0].path
    order: list[str] = []
    turn = desk.store.group_commit.join(desk.log)

    def reply(name: str, _turn: Turn) -> None:
        # The journal proves it: no reply leaves before the sync of what it answers for.
        assert ("sync", path) in files.journal
        assert ("sync_directory", desk.log.home.directory) in files.journal
        order.append(name)

    turn.add_done_callback(lambda turn: reply("first", turn))
    turn.add_done_callback(lambda turn: reply("second", turn))
    assert not turn.done
    await turn.wait()
    assert order == ["first", "second"]


async def test_failed_sync_names_its_log_and_spares_the_others() -> None:
    files = FaultyFiles()
    files.can_sync_all = False
    desk = LogDesk(files)
    other = desk.open_log(1)
    desk.append(b"a")
    desk.append(b"b", log=other)
    files.fail_next("sync", errno.EIO)
    commit = desk.store.group_commit
    commit.join(desk.log)
    failed = await commit.join(other).wait()
    assert failed == {desk.log}
    assert desk.log.failure is not None
    assert other.durable_end == 1
    assert desk.metric("penstock_sync_failures_total") == 1


async def test_log_that_failed_fails_again_in_the_next_turn() -> None:
    files = FaultyFiles()
    files.can_sync_all = False
    desk = LogDesk(files)
    desk.append(b"a")
    files.fail_next("sync", errno.EIO)
    await desk.store.group_commit.join(desk.log).wait()
    assert await desk.store.group_commit.join(desk.log).wait() == {desk.log}


async def test_failed_sync_of_the_whole_disk_takes_every_unsynced_log_offline() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    logs = [desk.log, *(desk.open_log(partition) for partition in range(1, 6))]
    for log in logs:
        desk.append(b"a", log=log)
    files.fail_next("sync_all", errno.EIO)
    commit = desk.store.group_commit
    for log in logs[1:5]:
        commit.join(log)
    failed = await commit.join(desk.log).wait()
    assert failed == set(logs[:5])
    # Not in the turn, but the same call has flushed, and lost, its bytes.
    assert logs[5].failure is not None


async def test_more_than_four_files_take_one_sync() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    logs = [desk.log, *(desk.open_log(partition) for partition in range(1, 6))]
    for log in logs:
        desk.append(b"a", log=log)
    files.journal.clear()
    for log in logs[1:]:
        desk.store.group_commit.join(log)
    await desk.store.group_commit.join(desk.log).wait()
    assert [entry[0] for entry in files.journal] == ["sync_all"]


async def test_new_directories_are_synced_with_the_first_batch_alone() -> None:
    files = FaultyFiles()
    files.can_sync_all = False
    desk = LogDesk(files)
    desk.append(b"a")
    files.journal.clear()
    await desk.store.group_commit.join(desk.log).wait()
    home = desk.log.home
    synced = [entry[1] for entry in files.journal if entry[0] == "sync_directory"]
    assert synced == [home.directory, home.topic_directory, home.logs_directory]
    desk.append(b"b")
    files.journal.clear()
    await desk.store.group_commit.join(desk.log).wait()
    assert [entry[0] for entry in files.journal] == ["sync"]


async def test_memory_engine_needs_no_thread() -> None:
    desk = LogDesk(MemoryFiles())
    desk.append(b"a")
    turn = desk.store.group_commit.join(desk.log)
    await turn.wait()
    assert desk.log.durable_end == 1


async def test_cancelled_waiter_does_not_disturb_the_turn() -> None:
    desk = LogDesk()
    desk.append(b"a")
    turn = desk.store.group_commit.join(desk.log)
    waiter = asyncio.get_running_loop().create_task(turn.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    assert await turn.wait() == frozenset()
