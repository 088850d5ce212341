"""Ten thousand partitions in a node that may open 400 files."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import create_topics, produce
from support.door.raw_kafka import PRODUCE_VERSION, RawConnection, log_ends, one_batch, produce_request
from support.node_process import NodeProcess

PARTITIONS = 10_000
OPEN_FILES_MAX = 400
# More than the node may keep open at once, spread over the whole range.
WRITTEN = range(0, PARTITIONS, 13)
PER_REQUEST = 70


@pytest.fixture
def frugal_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    limit = ("sh", "-c", f'ulimit -n {OPEN_FILES_MAX} && exec "$@"', "sh")
    with NodeProcess(tmp_path_factory.mktemp("frugal"), wrapper=limit) as running:
        yield running


def write_to_many(connection: RawConnection, topic: str, value: bytes) -> None:
    for start in range(0, len(WRITTEN), PER_REQUEST):
        batches = {partition: one_batch(value) for partition in WRITTEN[start : start + PER_REQUEST]}
        reply = connection.ask(produce_request(topic, batches), produce.ProduceResponse, PRODUCE_VERSION)
        answers = reply.responses[0].partition_responses
        assert {answer.error_code for answer in answers} == {wire.ErrorCode.NONE}


@pytest.mark.timeout(180)
def test_ten_thousand_partitions_need_few_files(frugal_node: NodeProcess, topic: str) -> None:
    node = frugal_node
    with RawConnection(node, timeout_seconds=60) as connection:
        reply = connection.ask(
            create_topics.CreateTopicsRequest(
                topics=(create_topics.CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=1),),
                timeout_ms=60_000,
            ),
            create_topics.CreateTopicsResponse,
            5,
        )
        assert reply.topics[0].error_code == wire.ErrorCode.NONE, reply.topics[0].error_message
        write_to_many(connection, topic, b"first")
        write_to_many(connection, topic, b"second")
        assert node.open_file_count() < OPEN_FILES_MAX
    for partition in WRITTEN[::50]:
        assert log_ends(node, topic, partition) == (0, 2)
    assert log_ends(node, topic, 1) == (0, 0)
    node.kill()
    began = time.monotonic()
    node.start()
    assert time.monotonic() - began < 10.0
    for partition in WRITTEN[::50]:
        assert log_ends(node, topic, partition) == (0, 2)
    assert "Too many open files" not in node.log_text()
    # The loop has turned all the while, so that nobody took the node for dead.
    assert "session lost" not in node.log_text()
    assert "node registered anew" not in node.log_text()
