"""First reads by several threads at once, each time in a process of its own: a class is learned once in its life."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import msgspec
import pytest

from penstock.base.typed_values import convert, read_json

# Three in four processes died before, so a mistake would have to be lucky twelve times.
PROCESSES: Final = 12
PROCESS_SECONDS_MAX: Final = 60

AT_ONCE: Final = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
{setup}
barrier = threading.Barrier(8)
problems = []
def work():
    barrier.wait()
    try:
        {read}
    except BaseException as error:
        problems.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(str(problems) if problems else 0)
"""

COMPACTION: Final = """
from penstock.storage.log import swap
from penstock.storage.files.memory import MemoryFiles
from penstock.storage.files.small import write_small_file
files = MemoryFiles(bytes_max=1 << 20)
files.make_root("/r")
payload = msgspec.msgpack.encode(swap.CompactionState(clean_end=5))
write_small_file(files, "/r", swap.COMPACTION_FILE, swap.COMPACTION_MAGIC, payload)
"""
METADATA: Final = """
from penstock.cluster.store import values
from penstock.cluster.catalog.queues import StoredQueue
payload = values.encode(StoredQueue(bytes(16)))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("setup", "read"),
    [
        (COMPACTION, 'assert swap.read_state(files, "/r").clean_end == 5'),
        (METADATA, 'assert values.decode("k", payload, StoredQueue).topic_id == bytes(16)'),
    ],
    ids=["compaction", "metadata"],
)
def test_first_reads_by_many_threads_do_not_end_the_process(setup: str, read: str) -> None:
    script = AT_ONCE.format(setup=setup, read=read)
    for _ in range(PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX, check=False
        )
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"


class Point(msgspec.Struct, frozen=True):
    x: int


class Blob(bytes):
    pass


def _read_blob(_kind: type, value: object) -> Blob:
    assert isinstance(value, str)
    return Blob(value.encode())


class Letter(msgspec.Struct, frozen=True):
    body: Blob


def test_bytes_and_values_are_read_as_their_type() -> None:
    assert read_json(b'{"x": 3}', Point) == convert({"x": 3}, Point) == Point(3)
    assert convert({"x": "3"}, Point, strict=False) == Point(3)
    assert read_json('{"body": "a"}', Letter, dec_hook=_read_blob) == Letter(Blob(b"a"))
    assert convert({"body": "a"}, Letter, dec_hook=_read_blob) == Letter(Blob(b"a"))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        read_json(b'{"x": "3"}', Point)
    with pytest.raises(msgspec.ValidationError):
        convert({"x": "3"}, Point)
