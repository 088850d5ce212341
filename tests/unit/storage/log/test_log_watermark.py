"""How far a replica may be read after a start: as far as it was when its last checkpoint was made."""

from __future__ import annotations

import msgspec
import pytest

from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.files.small import read_small_file
from penstock.storage.log.checkpoint_file import (
    CHECKPOINT_FILE,
    CHECKPOINT_MAGIC,
    LogCheckpoint,
    unpack_entries,
    write_checkpoint,
)
from support.storage.faulty_files import FaultyFiles
from support.storage.log_desk import ROOT, TOPIC_ID, LogDesk


def durable(desk: LogDesk, count: int = 1, size: int = 40) -> None:
    """Synced, but not readable by it."""
    for _ in range(count):
        desk.append(bytes(size))
    assert not desk.store.group_commit.sync_now([desk.log])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [120, 1_000_000])
@pytest.mark.parametrize("readable_end", range(7))
def test_replica_is_readable_as_far_as_its_checkpoint_says(clean: bool, segment_bytes: int, readable_end: int) -> None:
    settings = StorageConfig(free_bytes_min=0, sync_threads=1, index_interval_bytes=250)
    desk = LogDesk(settings=settings, config=LogConfig(segment_bytes=segment_bytes), is_replicated=True)
    durable(desk, 6)
    desk.log.advance_readable(readable_end)
    desk.store.checkpoint_now(every_log=True)
    desk.restart(clean=clean)
    assert (desk.log.log_end, desk.log.readable_end) == (6, readable_end)
    served = 0
    while desk.log.plan_read(served, bytes_max=1) is not None:
        assert desk.offsets(desk.read(served, bytes_max=1)) == [served]
        served += 1
    assert served == readable_end


def test_readable_end_moves_on_after_a_start() -> None:
    settings = StorageConfig(free_bytes_min=0, sync_threads=1, index_interval_bytes=100)
    desk = LogDesk(settings=settings, is_replicated=True)
    durable(desk, 6)
    desk.log.advance_readable(2)
    desk.store.checkpoint_now(every_log=True)
    desk.restart(clean=False)
    ends = []
    for offset in range(8):
        desk.log.advance_readable(offset)
        ends.append(desk.log.readable_end)
        assert desk.log.readable_end <= max(offset, 2)
    assert ends == sorted(ends)
    # Between the entries of the index the lower one counts; at the end of the log it is exact.
    assert ends[-1] == 6
    assert len(set(ends)) > 2
    assert desk.offsets(desk.read(0)) == list(range(6))


def test_what_was_written_past_the_checkpoint_is_not_readable() -> None:
    desk = LogDesk(is_replicated=True)
    durable(desk, 2)
    desk.log.advance_readable(2)
    desk.store.checkpoint_now(every_log=True)
    durable(desk, 2)
    desk.log.advance_readable(4)
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.log.readable_end) == (4, 2)


def test_replica_without_a_checkpoint_is_not_readable() -> None:
    desk = LogDesk(is_replicated=True)
    durable(desk, 2)
    desk.log.advance_readable(2)
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.log.readable_end) == (2, 0)


def test_log_that_is_alone_is_readable_to_its_end() -> None:
    desk = LogDesk()
    durable(desk, 2)
    desk.store.checkpoint_now(every_log=True)
    desk.restart(clean=False)
    assert desk.log.readable_end == 2


def test_readable_end_that_moved_alone_is_saved_by_a_clean_end() -> None:
    desk = LogDesk(is_replicated=True)
    durable(desk, 2)
    desk.store.checkpoint_now(every_log=True)
    desk.log.advance_readable(2)
    desk.restart(clean=True)
    assert desk.log.readable_end == 2


def test_start_inside_a_batch_keeps_the_readable_end_above_it() -> None:
    desk = LogDesk(is_replicated=True)
    desk.append(b"a", b"b", b"c")
    desk.append(b"d")
    assert not desk.store.group_commit.sync_now([desk.log])
    desk.store.checkpoint_now(every_log=True)
    desk.log.advance_readable(4)
    desk.log.delete_before(2).run()
    desk.restart(clean=False)
    assert (desk.log.log_start, desk.log.readable_end, desk.log.log_end) == (2, 3, 4)


def test_log_that_failed_and_was_read_again_is_readable_as_far_as_before() -> None:
    desk = LogDesk(is_replicated=True)
    durable(desk, 4)
    desk.log.advance_readable(3)
    desk.log.fail("the disk failed a sync")
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert (desk.log.log_end, desk.log.readable_end) == (4, 3)


def test_checkpoint_of_the_time_before_replicas_is_read() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    durable(desk, 2)
    desk.store.checkpoint_now(every_log=True)
    payload = read_small_file(files, ROOT, CHECKPOINT_FILE, CHECKPOINT_MAGIC)
    assert payload is not None
    saved = unpack_entries(payload)[TOPIC_ID, 0]
    forget_readable_end(files, saved)
    desk.is_replicated = True
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.log.readable_end) == (2, 2)


def forget_readable_end(files: FaultyFiles, entry: LogCheckpoint) -> None:
    """The file as the version before wrote it: with one field less."""
    fields = list(msgspec.to_builtins(entry, builtin_types=(bytes,)))[:-1]
    data = msgspec.msgpack.encode(fields)
    write_checkpoint(files, ROOT, [len(data).to_bytes(4, "little") + data])
