"""kill -9 under load, again and again: nothing acknowledged is lost, nothing doubled, offsets stay dense.

The page cache survives a kill, so this proves recovery and idempotence across restarts, not the sync: that is
proved by the file seam that drops what was not synced and by `test_sync_before_reply`.
Twenty cycles in `make test`; `make chaos` sets PENSTOCK_KILL_CYCLES to 200.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess
from support.numbered_load import NumberedLoad

CYCLES = int(os.environ.get("PENSTOCK_KILL_CYCLES", "20"))
PARTITIONS = 3
SEED = 20_24


@pytest.mark.timeout(120 + 10 * CYCLES)
def test_kill_nine_loses_nothing_and_doubles_nothing(own_node: NodeProcess, topic: str) -> None:
    chance = random.Random(SEED)
    create(own_node, topic)
    load = NumberedLoad(own_node.kafka, topic, partitions=PARTITIONS)
    for _ in range(CYCLES):
        load.run(acknowledgements=chance.randrange(1, 3_000))
        # Not at the edge of a poll only: somewhere in the next requests, which are under way by now.
        keep_pushing(load, chance.uniform(0.0, 0.05))
        own_node.kill()
        own_node.start()
    load.run(acknowledgements=1_000)
    load.finish()
    load.check(own_node.kafka)
    assert "Traceback" not in own_node.log_text(), own_node.log_tail()


def test_kill_in_the_middle_of_rolling_segments_loses_nothing(own_node: NodeProcess, topic: str) -> None:
    create(own_node, topic, config={"segment.bytes": "16384"})
    load = NumberedLoad(own_node.kafka, topic, partitions=PARTITIONS)
    for _ in range(4):
        load.run(acknowledgements=5_000)
        own_node.kill()
        own_node.start()
    load.finish()
    load.check(own_node.kafka)


def test_kill_and_graceful_end_in_turns_lose_nothing(own_node: NodeProcess, topic: str) -> None:
    create(own_node, topic)
    load = NumberedLoad(own_node.kafka, topic, partitions=PARTITIONS)
    for number in range(6):
        load.run(acknowledgements=2_000)
        if number % 2:
            own_node.kill()
        else:
            assert own_node.terminate() == 0, own_node.log_tail()
        own_node.start()
    load.finish()
    load.check(own_node.kafka)


def create(node: NodeProcess, topic: str, *, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    new_topic = NewTopic(topic, PARTITIONS, config={"durability": "fsync", **(config or {})})
    admin.create_topics([new_topic])[topic].result(20)


def keep_pushing(load: NumberedLoad, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        load.push()
