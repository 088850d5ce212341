"""A node whose metadata are gone or damaged: it refuses to start, and the rebuild brings everything back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.codec.kafka.messages import produce
from support.door.raw_kafka import (
    PRODUCE_VERSION,
    RawConnection,
    create_by_asking,
    log_ends,
    one_batch,
    produce_request,
)
from support.node_process import NodeFailedError, NodeProcess

RECORDS: Final = 5
COMMITTED: Final = 3
COMMAND_SECONDS_MAX: Final = 60


def _flip(store: Path) -> None:
    raw = bytearray(store.read_bytes())
    # In the entry, and not in the history of changes: there the key stands directly before the value.
    raw[raw.rindex(b'/topics/kept{"topic_id":"') + 30] ^= 1
    store.write_bytes(raw)


DAMAGES: Final[dict[str, Callable[[Path], object]]] = {
    "is gone": Path.unlink,
    "is empty": lambda store: store.write_bytes(b""),
    "does not fit its checksum": _flip,
}


def rebuild(data_directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.main", "metadata", "rebuild", "--data-dir", str(data_directory)]
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False
    )


def fill(node: NodeProcess) -> None:
    with RawConnection(node) as connection:
        create_by_asking(connection, "kept")
        for number in range(RECORDS):
            batch = one_batch(b"%d" % number)
            connection.ask(produce_request("kept", {0: batch}), produce.ProduceResponse, PRODUCE_VERSION)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("kept", 0, COMMITTED)], asynchronous=False)
    consumer.close()


def committed(node: NodeProcess) -> int:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "readers"})
    try:
        (found,) = consumer.committed([TopicPartition("kept", 0)], timeout=10)
    finally:
        consumer.close()
    assert found.error is None
    return int(found.offset)


def test_lost_metadata_refuse_the_start_and_are_rebuilt(own_node: NodeProcess, tmp_path: Path) -> None:
    fill(own_node)
    assert own_node.terminate() == 0
    for number, (said, damage) in enumerate(DAMAGES.items()):
        victim = NodeProcess(tmp_path / str(number))
        shutil.copytree(own_node.data_directory, victim.data_directory)
        damage(victim.data_directory / "metadata.sqlite")
        with pytest.raises(NodeFailedError, match=r"ended with code 1"):
            victim.start()
        assert said in victim.log_text()
        assert "penstock metadata rebuild --data-dir" in victim.log_text()
        assert "Traceback" not in victim.log_text()
        done = rebuild(victim.data_directory, "--yes")
        assert done.returncode == 0, done.stderr
        with victim:
            assert log_ends(victim, "kept") == (0, RECORDS)
            assert committed(victim) == COMMITTED


def test_without_copy_the_rebuild_names_what_is_lost_and_asks_to_accept_it(own_node: NodeProcess) -> None:
    fill(own_node)
    refused = rebuild(own_node.data_directory, "--yes")
    assert refused.returncode == 1
    assert "stop that one first" in refused.stderr
    own_node.kill()
    for each in own_node.data_directory.glob("metadata.sqlite*"):
        each.unlink()
    with pytest.raises(NodeFailedError, match=r"ended with code 1"):
        own_node.start()
    assert "belongs to the cluster" in own_node.log_text()
    told = rebuild(own_node.data_directory, "--yes")
    assert told.returncode == 1
    assert "--accept" in told.stderr
    assert "lost: topic kept: its settings are not known" in told.stdout
    done = rebuild(own_node.data_directory, "--yes", "--accept")
    assert done.returncode == 0, done.stderr
    own_node.start()
    assert log_ends(own_node, "kept") == (0, RECORDS)
    assert committed(own_node) == COMMITTED
