"""What a node writes another reads back, through the bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.codec.kafka import decode, encode
from penstock.codec.kafka.error_codes import ErrorCode
from penstock.codec.kafka.schema import Body
from penstock.domain.replication.exchange import DescribeReplica, LogName, ReplicaFetched, ReplicaProblem
from penstock.net.replica import fetch, questions
from penstock.net.replica.problems import code_of, problem_of
from support.cluster import exchanges as said

FETCH_VERSION = 18


@pytest.mark.parametrize(
    ("value", "write", "read", "version"),
    [
        (said.FETCH, fetch.write_request, fetch.read_request, FETCH_VERSION),
        (said.FETCHED, fetch.write_response, fetch.read_response, FETCH_VERSION),
        (
            ReplicaFetched(problem=ReplicaProblem.SESSION_UNKNOWN, logs=[], places=[]),
            fetch.write_response,
            fetch.read_response,
            FETCH_VERSION,
        ),
        (said.BARRIER, questions.write_barrier, questions.read_barrier, 0),
        (said.PASSED, questions.write_passed, questions.read_passed, 0),
        (said.DESCRIBE, questions.write_describe, questions.read_describe, 0),
        (said.DESCRIPTION, questions.write_description, questions.read_description, 0),
        (said.FORWARD, questions.write_forward, questions.read_forward, 0),
        (said.FORWARDED, questions.write_forwarded, questions.read_forwarded, 0),
        (said.NOT_FORWARDED, questions.write_forwarded, questions.read_forwarded, 0),
    ],
)
def test_what_one_node_writes_the_other_reads(
    value: object, write: Callable[[Any], Body], read: Callable[[Any], object], version: int
) -> None:
    message = write(value)
    assert read(decode(type(message), version, encode(message, version))) == value


def test_every_problem_has_a_code_of_its_own() -> None:
    assert [problem_of(code_of(problem)) for problem in ReplicaProblem] == list(ReplicaProblem)
    assert code_of(None) == ErrorCode.NONE
    assert problem_of(ErrorCode.NONE) is None


def test_a_code_that_nobody_here_sends_is_a_fault() -> None:
    assert problem_of(ErrorCode.NOT_CONTROLLER) is ReplicaProblem.FAILED


def test_ranges_are_counted_with_the_last_short_one() -> None:
    def asked(first: int, last: int, step: int) -> int:
        log = LogName(bytes(16), 0)
        return DescribeReplica(log=log, from_offset=first, to_offset=last, step_offsets=step).range_count

    assert [asked(0, 20_000, 10_000), asked(0, 20_001, 10_000), asked(5, 6, 10_000)] == [2, 3, 1]
    assert [asked(0, 0, 10), asked(9, 3, 10), asked(0, 5, 0), asked(0, 5, -1)] == [0, 0, 0, 0]
