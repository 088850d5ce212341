"""Bytes that an earlier release wrote between nodes are read by this one, and written again: a cluster is upgraded node
by node. Kafka's own messages are in `wire/`; here are the internal ones, and what we add to Fetch.

A line that changes is a break between releases: give the message a new version, and the new version a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from penstock.codec.kafka import decode, encode
from penstock.codec.kafka.internal.hello import HelloRequest, HelloResponse
from penstock.codec.kafka.schema import Body
from penstock.net.replica import fetch, questions
from support.cluster import exchanges as said

KEPT: Final = Path(__file__).parent / "internal.txt"

SAID: Final[list[tuple[Body, int]]] = [
    (HelloRequest("orchard", 3, 77, 2), 0),
    (HelloResponse(104, "node 2 is of cluster 'meadow'", "meadow", 2, 78, 1), 0),
    (questions.write_barrier(said.BARRIER), 0),
    (questions.write_passed(said.PASSED), 0),
    (questions.write_describe(said.DESCRIBE), 0),
    (questions.write_description(said.DESCRIPTION), 0),
    (questions.write_forward(said.FORWARD), 0),
    (questions.write_forwarded(said.NOT_FORWARDED), 0),
    (fetch.write_request(said.FETCH), 18),
    (fetch.write_response(said.FETCHED), 18),
]


def lines() -> list[tuple[str, int, bytes]]:
    kept = [line.split() for line in KEPT.read_text().splitlines() if not line.startswith("#")]
    return [(name, int(version), bytes.fromhex(data)) for name, version, data in kept]


def test_every_message_is_kept() -> None:
    assert [(name, version) for name, version, _ in lines()] == [(type(each).__name__, v) for each, v in SAID]


@pytest.mark.parametrize(("message", "version"), SAID, ids=[type(message).__name__ for message, _ in SAID])
def test_bytes_between_nodes_stay_what_they_were(message: Body, version: int) -> None:
    (data,) = [data for name, known, data in lines() if (name, known) == (type(message).__name__, version)]
    assert encode(message, version) == data
    # Compared as bytes: a list and a tuple, a view and bytes are the same to a node.
    read = decode(type(message), version, data)
    assert isinstance(read, Body)
    assert encode(read, version) == data
