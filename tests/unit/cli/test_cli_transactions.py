"""`penstock transaction …` against a real node: what is listed, described, found hanging and aborted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.cli.app import app, run
from penstock.domain.topic_rules import TRANSACTION_STATE
from support.client.command import Penstock, command
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--bootstrap", node.kafka))


def told(penstock: Penstock, *words: str) -> Any:
    code, out, err = penstock("transaction", *words, "--json")
    assert (code, err) == (0, "") or (code == 0 and "hangs" in err), err
    return json.loads(out)


def open_transaction(node: NodeProcess, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return producer


def forget_transactions(node: NodeProcess) -> None:
    """The internal topic's files are lost, and an operator goes on without them: what is open has nobody to end it."""
    assert node.terminate() == 0
    for described in (node.data_directory / "logs").glob("*/topic.json"):
        if TRANSACTION_STATE in described.read_text():
            for partition in described.parent.iterdir():
                if partition.is_dir():
                    shutil.rmtree(partition)
    assert run(app, ["log", "repair", "--data-dir", str(node.data_directory), "--yes"]) == 0
    node.start()


def test_nothing_is_listed_before_anything_was_done(penstock: Penstock) -> None:
    assert told(penstock, "list") == {"transactions": []}
    assert penstock("transaction", "list")[0] == 0
    code, _, err = penstock("transaction", "describe", "nobody")
    assert (code, err) == (1, "penstock: nobody has used the transactional id 'nobody', or not for a long time\n")


def test_transaction_is_listed_and_described(node: NodeProcess, penstock: Penstock, topic: str) -> None:
    producer = open_transaction(node, topic)
    (listed,) = told(penstock, "list", "--state", "Ongoing", "--id-pattern", f"{topic[:10]}.*")["transactions"]
    assert (listed["transactional_id"], listed["coordinator"], listed["state"]) == (topic, 1, "Ongoing")
    assert told(penstock, "list", "--producer-id", str(listed["producer_id"]))["transactions"] == [listed]
    assert told(penstock, "list", "--longer-than", "10 minutes", "--state", "Ongoing")["transactions"] == []
    found = told(penstock, "describe", topic)
    assert (found["producer_epoch"], found["timeout_ms"]) == (0, 60_000)
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    assert 0 <= found["duration_ms"] < 60_000
    code, out, _ = penstock("transaction", "describe", topic)
    assert code == 0
    assert "Ongoing" in out
    assert topic in penstock("transaction", "list")[1]
    producer.commit_transaction(WAIT_SECONDS_MAX)


def test_transaction_that_is_looked_after_is_not_aborted(node: NodeProcess, penstock: Penstock, topic: str) -> None:
    producer = open_transaction(node, topic)
    (active,) = told(penstock, "describe-producers", "--topic", f"{topic}:0")["producers"]
    assert (active["topic"], active["partition"], active["start_offset"]) == (topic, 0, 0)
    assert str(active["producer_id"]) in penstock("transaction", "describe-producers", "-t", topic)[1]
    assert told(penstock, "find-hanging") == {"producers": []}
    where = ("abort", "--topic", topic, "--partition", "0", "--yes")
    code, _, err = penstock("transaction", *where, "--start-offset", "0")
    assert code == 1
    assert f"the transaction does not hang: node 1 looks after it as {topic!r} (Ongoing)" in err
    code, _, err = penstock("transaction", *where, "--producer-id", "4711")
    assert "has no open transaction of producer 4711" in err
    producer.commit_transaction(WAIT_SECONDS_MAX)


@pytest.mark.heavy
def test_hanging_transaction_is_found_and_aborted(
    node: NodeProcess, penstock: Penstock, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_transaction(node, topic)
    forget_transactions(node)
    capsys.readouterr()
    (hanging,) = told(penstock, "find-hanging", "--topic", topic)["producers"]
    assert (hanging["partition"], hanging["start_offset"]) == (0, 0)
    assert topic in penstock("transaction", "find-hanging")[1]
    words = ("abort", "-t", topic, "-p", "0", "--start-offset", "0", "--yes")
    assert told(penstock, *words)["aborted"]["producer_id"] == hanging["producer_id"]
    assert told(penstock, "find-hanging", "-t", topic) == {"producers": []}
    code, _, err = penstock("transaction", *words)
    assert (code, err) == (1, f"penstock: partition 0 of {topic!r} has no open transaction that begins at offset 0\n")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("list", "--state", "Odd"), 1, "a transaction has no state 'Odd'"),
        (("list", "--id-pattern", "("), 1, "invalid regular expression"),
        (("list", "--longer-than", "a while"), 2, "--longer-than"),
        (("abort", "-t", "t", "-p", "0"), 2, "either --start-offset or --producer-id"),
        (("abort", "-t", "t", "-p", "0", "--start-offset", "1", "--producer-id", "1"), 2, "either"),
        (("describe-producers", "-t", "missing"), 1, "topic 'missing' does not exist"),
        (("describe-producers", "-t", "t:x"), 2, "TOPIC:0,1,2"),
    ],
)
def test_refusal_is_one_sentence(penstock: Penstock, words: tuple[str, ...], code: int, sentence: str) -> None:
    found, out, err = penstock("transaction", *words)
    assert (found, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1
