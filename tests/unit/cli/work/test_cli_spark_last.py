"""What needs a node and Spark asks for the node first: Spark takes seconds to start."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from pyspark import SparkContext

from penstock.cli.work import archive
from penstock.cli.work.replay import ReplayWish, replay
from penstock.net.errors import BrokerUnreachableError


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address at which nobody listens, and nobody will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def run_replay(bootstrap: str) -> None:
    replay(ReplayWish(bootstrap, "orders", "again"), as_json=False)


def run_archive(bootstrap: str) -> None:
    request = archive.request_of(
        bootstrap, ["orders"], "/nowhere/archive", every="1s", rows=1, schema=None, value_format="json",
        compact_every=1, group="archive", is_once=True, allows_loss=False,
    )  # fmt: skip
    archive.run(request, keep=None, master=None, as_json=False)


@pytest.mark.parametrize("command", [run_replay, run_archive])
def test_nobody_waits_for_spark_to_hear_that_no_node_answers(nowhere: str, command: Callable[[str], None]) -> None:
    before = SparkContext._gateway
    with pytest.raises(BrokerUnreachableError):
        command(nowhere)
    assert SparkContext._gateway is before
