"""A node that stands still for a while (SIGSTOP: a stolen CPU, a swapped machine) goes on where it was."""

from __future__ import annotations

import time

from support.node_process import NodeProcess
from support.numbered_load import NumberedLoad

# Longer than the client's request timeout in this test, so that it gives up, reconnects and sends again.
PAUSE_SECONDS = 2.5
REQUEST_TIMEOUT_MS = 1_000


def test_clients_go_on_after_a_pause(own_node: NodeProcess, topic: str) -> None:
    load = NumberedLoad(
        own_node.kafka,
        topic,
        partitions=1,
        **{"request.timeout.ms": REQUEST_TIMEOUT_MS, "socket.timeout.ms": REQUEST_TIMEOUT_MS},
    )
    for _ in range(2):
        load.run(acknowledgements=2_000)
        own_node.pause()
        push_for(load, PAUSE_SECONDS)
        own_node.resume()
    load.run(acknowledgements=2_000)
    load.finish()
    load.check(own_node.kafka)
    assert own_node.terminate() == 0


def push_for(load: NumberedLoad, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        load.push()
