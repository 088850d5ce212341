"""No Produce reply leaves before its sync: seen from outside, in the node's system calls.

Each message carries a mark and each request a correlation id of its own, so that a trace shows, per message,
the write into the log, the sync that began after it and ended, and the reply that left: in this order.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import produce
from support.door.raw_kafka import PRODUCE_VERSION, RawConnection, one_batch, produce_request
from support.node_process import NodeProcess

CALLS: Final = "write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,fsync,fdatasync,syncfs,sync_file_range"
SYNCS: Final = frozenset({"fsync", "fdatasync", "syncfs"})
FIRST_CORRELATION_ID: Final = 0x5EED_0000
REQUESTS: Final = 40


class Call(msgspec.Struct, frozen=True):
    """A system call by the lines on which it began and ended: another thread's lines may stand between."""

    name: str
    text: str
    began: int
    ended: int


def read_trace(path: Path) -> list[Call]:
    open_calls: dict[str, tuple[str, str, int]] = {}
    calls: list[Call] = []
    for number, line in enumerate(path.read_text().splitlines()):
        found = re.match(r"(?P<pid>\d+)\s+(?:<\.\.\. )?(?P<name>\w+)(?P<rest>.*)", line)
        if found is None:
            continue
        if line.endswith("<unfinished ...>"):
            open_calls[found["pid"]] = (found["name"], found["rest"], number)
        elif " resumed>" in line and found["pid"] in open_calls:
            name, text, began = open_calls.pop(found["pid"])
            calls.append(Call(name, text, began, number))
        else:
            calls.append(Call(found["name"], found["rest"], number, number))
    return calls


def as_strace_hex(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not on PATH")


def trace_node(directory: Path, topics: list[str], *, durability: str) -> list[Call]:
    """What a node calls while it takes marked messages."""
    trace = directory / "trace"
    wrapper = ("strace", "-f", "-qq", "-xx", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(trace))
    with NodeProcess(directory / "node", wrapper=wrapper) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        created = admin.create_topics([NewTopic(name, 1, config={"durability": durability}) for name in topics])
        for future in created.values():
            future.result(20)
        with RawConnection(node) as connection:
            for number in range(REQUESTS):
                produce_marked(connection, topics, number)
        node.terminate()
    return read_trace(trace)


@needs_strace
@pytest.mark.parametrize("topics", [["one"], [f"of-{number}" for number in range(8)]], ids=["one log", "many logs"])
def test_reply_leaves_after_its_sync(tmp_path: Path, topics: list[str]) -> None:
    calls = trace_node(tmp_path, topics, durability="fsync")
    check_all(calls)


@needs_strace
def test_reply_that_does_not_wait_would_be_seen(tmp_path: Path) -> None:
    """The proof's own proof: with `interval` replies leave before the sync, and the check above must say so."""
    calls = trace_node(tmp_path, ["one"], durability="interval")
    with pytest.raises(AssertionError, match="no sync began and ended in between"):
        check_all(calls)


def produce_marked(connection: RawConnection, topics: list[str], number: int) -> None:
    """One request with a batch for each topic, so that the turn has that many dirty files."""
    data = tuple(data for name in topics for data in produce_request(name, {0: one_batch(mark_of(number))}).topic_data)
    request = produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
    correlation_id = FIRST_CORRELATION_ID + number
    connection.send(request, PRODUCE_VERSION, correlation_id=correlation_id)
    answered, reply = connection.receive(produce.ProduceResponse, PRODUCE_VERSION)
    assert answered == correlation_id
    for answer in reply.responses:
        assert answer.partition_responses[0].error_code == wire.ErrorCode.NONE


def mark_of(number: int) -> bytes:
    return b"<mark %05d>" % number


def check_all(calls: list[Call]) -> None:
    for number in range(REQUESTS):
        check_order(calls, number)


def check_order(calls: list[Call], number: int) -> None:
    syncs = [call for call in calls if call.name in SYNCS]
    mark = as_strace_hex(mark_of(number))
    reply_start = as_strace_hex((FIRST_CORRELATION_ID + number).to_bytes(4, "big"))
    written = [call for call in calls if mark in call.text]
    replied = [call for call in calls if reply_start in call.text and mark not in call.text]
    assert written, f"message {number}: no write of it was seen"
    assert len(replied) == 1, f"message {number}: {len(replied)} replies were seen"
    last_write, reply = max(call.ended for call in written), replied[0]
    between = [sync for sync in syncs if sync.began > last_write and sync.ended < reply.began]
    assert between, (
        f"message {number}: written by line {last_write}, answered from line {reply.began}, "
        "and no sync began and ended in between"
    )
