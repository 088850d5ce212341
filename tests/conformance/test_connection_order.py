"""One connection: answers in the order of the questions, and no memory for a peer that does not read them."""

from __future__ import annotations

import pytest

from penstock.codec.kafka.messages import fetch, metadata, produce
from support.door.raw_kafka import (
    FETCH_VERSION,
    METADATA_VERSION,
    PRODUCE_VERSION,
    RawConnection,
    create_by_asking,
    fetch_request,
    one_batch,
    produce_request,
    records_of,
)
from support.node_process import NodeProcess

ALL_TOPICS = metadata.MetadataRequest(topics=())
NOTHING_YET_WAIT_MS = 700


def test_pipelined_requests_are_answered_in_order(node: NodeProcess, topic: str) -> None:
    with RawConnection(node) as connection:
        create_by_asking(connection, topic)
        kinds = [produce.ProduceResponse, metadata.MetadataResponse, fetch.FetchResponse]
        versions = [PRODUCE_VERSION, METADATA_VERSION, FETCH_VERSION]
        requests = [produce_request(topic, {0: one_batch(b"x")}), ALL_TOPICS, fetch_request(topic)]
        asked = [connection.send(requests[number % 3], versions[number % 3]) for number in range(300)]
        answered = [connection.receive(kinds[number % 3], versions[number % 3])[0] for number in range(300)]
    assert answered == asked


def test_answer_behind_a_waiting_fetch_does_not_overtake_it(node: NodeProcess, topic: str) -> None:
    with RawConnection(node) as connection:
        create_by_asking(connection, topic)
        first = connection.send(fetch_request(topic, wait_ms=NOTHING_YET_WAIT_MS), FETCH_VERSION)
        second = connection.send(ALL_TOPICS, METADATA_VERSION)
        assert connection.receive(fetch.FetchResponse, FETCH_VERSION)[0] == first
        assert connection.receive(metadata.MetadataResponse, METADATA_VERSION)[0] == second


def test_waiting_fetch_ends_when_data_comes(node: NodeProcess, topic: str) -> None:
    with RawConnection(node) as reader, RawConnection(node) as writer:
        create_by_asking(writer, topic)
        reader.send(fetch_request(topic, wait_ms=15_000), FETCH_VERSION)
        writer.ask(produce_request(topic, {0: one_batch(b"x")}), produce.ProduceResponse, PRODUCE_VERSION)
        # The socket's timeout is longer than the wait: only the content tells that it ended early.
        _, reply = reader.receive(fetch.FetchResponse, FETCH_VERSION)
        assert records_of(reply.responses[0].partitions[0]).endswith(b"x\x00")


def test_no_acks_no_answer(node: NodeProcess, topic: str) -> None:
    with RawConnection(node) as connection:
        create_by_asking(connection, topic)
        connection.send(produce_request(topic, {0: one_batch(b"x")}, acks=0), PRODUCE_VERSION)
        asked = connection.send(ALL_TOPICS, METADATA_VERSION)
        assert connection.receive(metadata.MetadataResponse, METADATA_VERSION)[0] == asked


@pytest.mark.timeout(120)
def test_slow_reader_does_not_grow_memory(own_node: NodeProcess, topic: str) -> None:
    """300 questions whose answers are gigabytes, and a peer that takes none of them."""
    megabyte = one_batch(bytes(1_000_000))
    with RawConnection(own_node) as writer:
        create_by_asking(writer, topic)
        for _ in range(20):
            writer.ask(produce_request(topic, {0: megabyte}), produce.ProduceResponse, PRODUCE_VERSION)
        before_bytes = own_node.resident_bytes()
        with RawConnection(own_node, receive_buffer=4_096) as slow:
            for _ in range(300):
                slow.send(fetch_request(topic), FETCH_VERSION)
            for _ in range(200):
                # Others are served meanwhile; and each answer is a turn in which the node could have read on.
                writer.ask(ALL_TOPICS, metadata.MetadataResponse, METADATA_VERSION)
            grown_bytes = own_node.resident_bytes() - before_bytes
            # One answer under way, one more being made, and an allocator that keeps what it had.
            assert grown_bytes < 100_000_000, f"{grown_bytes} bytes for a peer that does not read"
            _, reply = slow.receive(fetch.FetchResponse, FETCH_VERSION)
            # Whole batches, as many as the node puts into one answer.
            received_bytes = len(records_of(reply.responses[0].partitions[0]))
            assert received_bytes >= len(megabyte)
            assert received_bytes % len(megabyte) == 0
