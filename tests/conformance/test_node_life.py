"""A node as a process: start, end, restart, and the second one that must not start."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import fetch, produce
from support.door.raw_kafka import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawConnection,
    create_by_asking,
    fetch_request,
    log_ends,
    one_batch,
    produce_request,
)
from support.node_process import NodeFailedError, NodeProcess

# What every start needs before anything of ours runs. A second of processor time is not the same on a machine that has
# something else to do, so a start is measured by this, which takes 0.27 s where a start takes 0.65.
LIBRARIES = "import asyncio, msgspec, prometheus_client, sqlite3, structlog, typer, uvloop"
START_MAX = 3.2


def cpu_seconds_of_libraries() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", LIBRARIES], check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_start_costs_little_and_idles_in_a_hundred_megabytes(tmp_path: Path) -> None:
    # The best of three of each, in turn (`make bench` looks at the clock on the wall).
    seconds, libraries = [], []
    for number in range(3):
        libraries.append(cpu_seconds_of_libraries())
        with NodeProcess(tmp_path / str(number)) as node:
            seconds.append(node.cpu_seconds())
            assert node.resident_bytes() < 100_000_000
    assert min(seconds) < START_MAX * min(libraries), (seconds, libraries)


def test_sigterm_answers_what_is_in_flight(own_node: NodeProcess, topic: str) -> None:
    with RawConnection(own_node) as connection:
        create_by_asking(connection, topic)
        # One write: when the first is answered, the node has the second as well and holds it.
        connection.send_bytes(
            wire.encode_request(produce_request(topic, {0: one_batch(b"x")}), PRODUCE_VERSION, 1, "raw")
            + wire.encode_request(fetch_request(topic, offset=1, wait_ms=15_000), FETCH_VERSION, 2, "raw")
        )
        connection.receive(produce.ProduceResponse, PRODUCE_VERSION)
        assert own_node.terminate() == 0
        answered, reply = connection.receive(fetch.FetchResponse, FETCH_VERSION)
        assert answered == 2
        assert reply.responses[0].partitions[0].error_code == wire.ErrorCode.NONE
        assert connection.receive_frame() is None, "the connection is closed after the last answer"
    assert "Traceback" not in own_node.log_text(), own_node.log_tail()


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_what_was_acknowledged_is_there_after_a_restart(own_node: NodeProcess, topic: str, end: str) -> None:
    with RawConnection(own_node) as connection:
        create_by_asking(connection, topic)
        for number in range(50):
            batch = one_batch(b"%d" % number)
            connection.ask(produce_request(topic, {0: batch}), produce.ProduceResponse, PRODUCE_VERSION)
    getattr(own_node, end)()
    own_node.start()
    assert log_ends(own_node, topic) == (0, 50)
    with RawConnection(own_node) as connection:
        reply = connection.ask(
            produce_request(topic, {0: one_batch(b"after")}), produce.ProduceResponse, PRODUCE_VERSION
        )
        assert reply.responses[0].partition_responses[0].base_offset == 50


def test_second_node_on_one_directory_is_refused_with_one_sentence(own_node: NodeProcess, tmp_path: Path) -> None:
    second = NodeProcess(tmp_path / "second")
    second.data_directory = own_node.data_directory
    with pytest.raises(NodeFailedError, match=r"ended with code [1-9]"):
        second.start()
    said = second.log_text()
    assert "Traceback" not in said
    assert re.search(r"directory .* is used by another", said, re.IGNORECASE), said
    with RawConnection(own_node) as connection:
        create_by_asking(connection, "still-served")


def test_memory_engine_serves_and_leaves_no_file(tmp_path: Path, topic: str) -> None:
    with NodeProcess(tmp_path / "memory", memory=True) as node:
        with RawConnection(node) as connection:
            create_by_asking(connection, topic)
            connection.ask(produce_request(topic, {0: one_batch(b"x")}), produce.ProduceResponse, PRODUCE_VERSION)
        assert log_ends(node, topic) == (0, 1)
    assert not node.data_directory.exists()


def test_metrics_page_is_served(node: NodeProcess) -> None:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=10) as page:
        text = page.read().decode()
    assert page.status == 200
    assert "# TYPE penstock_" in text
    assert "process_cpu_seconds_total" in text
