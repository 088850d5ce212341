"""A full disk: writes are refused in the protocol's words, reads go on, and writes resume by themselves.

The disk is a small tmpfs in a mount namespace of the node's own, which needs no root where the kernel lets
users make namespaces; where it does not, the same is proved through the file seam (tests/unit/storage).
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import delete_topics, fetch, produce
from support.door.raw_kafka import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawConnection,
    create_by_asking,
    fetch_request,
    one_batch,
    produce_request,
    records_of,
)
from support.node_process import NodeProcess

DISK_MEGABYTES = 64
RESUME_SECONDS_MAX = 30.0


def small_disk(directory: Path) -> tuple[str, ...]:
    directory.mkdir(parents=True, exist_ok=True)
    script = f'mount -t tmpfs -o size={DISK_MEGABYTES}m none "$0" && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(directory))


# With a reserve the node refuses before the disk does; without one it meets the end of the disk in mid-write.
@pytest.fixture(params=[8 << 20, 0], ids=["a reserve is kept", "to the last byte"])
def cramped_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeProcess]:
    wrapper = small_disk(tmp_path / "cramped" / "data")
    if shutil.which("unshare") is None or subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        pytest.skip("no namespace with a small disk can be made here")
    reserve = {"PENSTOCK_STORAGE__FREE_BYTES_MIN": str(request.param)}
    with NodeProcess(tmp_path / "cramped", wrapper=wrapper, environment=reserve) as running:
        yield running


def produce_one(connection: RawConnection, topic: str, batch: bytes) -> int:
    reply = connection.ask(produce_request(topic, {0: batch}), produce.ProduceResponse, PRODUCE_VERSION)
    return reply.responses[0].partition_responses[0].error_code


def fill(connection: RawConnection, topic: str) -> tuple[int, int]:
    """Megabytes until the first refusal: how many went in, and what the refusal said."""
    megabyte = one_batch(bytes(1_000_000))
    for count in range(2 * DISK_MEGABYTES):
        error = produce_one(connection, topic, megabyte)
        if error != wire.ErrorCode.NONE:
            return count, error
    raise AssertionError(f"{2 * DISK_MEGABYTES} MB went onto a disk of {DISK_MEGABYTES}")


def test_full_disk_refuses_writes_serves_reads_and_heals(cramped_node: NodeProcess, topic: str) -> None:
    with RawConnection(cramped_node) as connection:
        create_by_asking(connection, topic)
        create_by_asking(connection, f"{topic}-filler")
        assert produce_one(connection, topic, one_batch(b"before")) == wire.ErrorCode.NONE
        written, error = fill(connection, f"{topic}-filler")
        assert error == wire.ErrorCode.KAFKA_STORAGE_ERROR, wire.ErrorCode(error).name
        assert written > DISK_MEGABYTES // 4

        reply = connection.ask(fetch_request(topic), fetch.FetchResponse, FETCH_VERSION)
        assert b"before" in records_of(reply.responses[0].partitions[0])

        connection.ask(
            delete_topics.DeleteTopicsRequest(topic_names=(f"{topic}-filler",), timeout_ms=10_000),
            delete_topics.DeleteTopicsResponse,
            5,
        )
        deadline = time.monotonic() + RESUME_SECONDS_MAX
        while produce_one(connection, topic, one_batch(b"after")) != wire.ErrorCode.NONE:
            assert time.monotonic() < deadline, f"writes did not resume within {RESUME_SECONDS_MAX} s"
        reply = connection.ask(fetch_request(topic), fetch.FetchResponse, FETCH_VERSION)
        stored = records_of(reply.responses[0].partitions[0])
        assert stored.index(b"before") < stored.index(b"after")
    assert cramped_node.terminate() == 0, cramped_node.log_tail()
