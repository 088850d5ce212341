"""kcat with librdkafka 2.0.2, the oldest client that we promise to serve."""

from __future__ import annotations

import json

import pytest

from support.codec.sample_messages import COMPRESSIONS
from support.door.raw_kafka import log_ends, stored_batches
from support.node_process import NodeProcess
from support.programs.kcat import Kcat


def lines(count: int) -> bytes:
    return b"".join(b"key-%d\tvalue %d %s\n" % (number % 5, number, b"water " * 10) for number in range(count))


def consume(kcat: Kcat, node: NodeProcess, topic: str, *arguments: str) -> bytes:
    return kcat.run("-b", node.kafka, "-C", "-t", topic, "-p", "0", "-e", "-q", *arguments)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_lines_come_back_as_they_were_sent(node: NodeProcess, topic: str, kcat: Kcat, compression: str) -> None:
    sent = lines(1_000)
    kcat.run("-b", node.kafka, "-P", "-t", topic, "-K", "\t", "-z", compression, stdin=sent)
    assert consume(kcat, node, topic, "-K", "\t") == sent
    # With a Produce minimum of 3 in the version table, this client would silently send them uncompressed.
    assert {header.codec for header in stored_batches(node, topic)} == {COMPRESSIONS.index(compression)}


def test_headers_keys_and_null_values_come_back(node: NodeProcess, topic: str, kcat: Kcat) -> None:
    produce = (
        "-b",
        node.kafka,
        "-P",
        "-t",
        topic,
        "-K",
        "\t",
        "-Z",
        "-H",
        "origin=well",
        "-H",
        "origin=river",
    )
    kcat.run(*produce, stdin=b"key\tvalue\ngone\t\n")
    received = [json.loads(line) for line in consume(kcat, node, topic, "-J").splitlines()]
    assert [(message["key"], message["payload"]) for message in received] == [
        ("key", "value"),
        ("gone", None),
    ]
    assert [message["offset"] for message in received] == [0, 1]
    assert received[0]["headers"] == ["origin", "well", "origin", "river"]


def test_consuming_by_time_starts_at_the_first_message_not_earlier(node: NodeProcess, topic: str, kcat: Kcat) -> None:
    kcat.run("-b", node.kafka, "-P", "-t", topic, stdin=b"early\n")
    # The client dates messages itself, to the millisecond: ask for the time of the one it has stored last.
    kcat.run("-b", node.kafka, "-P", "-t", topic, stdin=b"late\n")
    times = [json.loads(line)["ts"] for line in consume(kcat, node, topic, "-J").splitlines()]
    assert times[0] < times[1], "two runs of kcat within one millisecond"
    assert consume(kcat, node, topic, "-o", f"s@{times[1]}") == b"late\n"
    assert consume(kcat, node, topic, "-o", f"s@{times[0]}", "-o", f"e@{times[1]}") == b"early\n"
    query = kcat.run("-b", node.kafka, "-Q", "-t", f"{topic}:0:{times[1]}").decode()
    assert query.split() == [topic, "[0]", "offset", "1"]


def test_offsets_from_the_end_and_from_the_start(node: NodeProcess, topic: str, kcat: Kcat) -> None:
    kcat.run("-b", node.kafka, "-P", "-t", topic, stdin=b"".join(b"%d\n" % number for number in range(100)))
    assert consume(kcat, node, topic, "-o", "-2") == b"98\n99\n"
    assert consume(kcat, node, topic, "-o", "97") == b"97\n98\n99\n"
    assert consume(kcat, node, topic, "-o", "beginning", "-c", "1") == b"0\n"


def test_large_line_passes(node: NodeProcess, topic: str, kcat: Kcat) -> None:
    sent = b"x" * 900_000 + b"\n"
    kcat.run("-b", node.kafka, "-P", "-t", topic, stdin=sent)
    assert consume(kcat, node, topic) == sent


def test_topic_is_auto_created_and_listed(node: NodeProcess, topic: str, kcat: Kcat) -> None:
    kcat.run("-b", node.kafka, "-P", "-t", topic, stdin=b"first\n")
    listed = json.loads(kcat.run("-b", node.kafka, "-L", "-J"))
    assert [f"{broker['name']}" for broker in listed["brokers"]] == [node.kafka]
    assert topic in {listed_topic["topic"] for listed_topic in listed["topics"]}
    assert log_ends(node, topic) == (0, 1)


def test_idempotent_producer_is_served(node: NodeProcess, topic: str, kcat: Kcat) -> None:
    sent = lines(2_000)
    settings = ("-X", "enable.idempotence=true", "-X", "batch.num.messages=10")
    kcat.run("-b", node.kafka, "-P", "-t", topic, "-K", "\t", *settings, stdin=sent)
    assert consume(kcat, node, topic, "-K", "\t") == sent
    assert all(header.producer_id >= 0 for header in stored_batches(node, topic))
