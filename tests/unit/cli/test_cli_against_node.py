"""Every command that speaks to a node, against a real one in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.domain.queue.receipt import MessageId, read_message_id
from support.client.command import Penstock, command
from support.node_process import NodeProcess

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--bootstrap", node.kafka))


def lines_file(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "lines"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def described(penstock: Penstock, topic: str) -> Any:
    code, out, _ = penstock("topic", "describe", topic, "--json")
    assert code == 0
    return json.loads(out)


def test_a_topic_from_its_creation_to_its_end(penstock: Penstock) -> None:
    assert penstock("topic", "create", "life", "-p", "3", "--config", "retention.ms=5000")[0] == 0
    assert penstock("topic", "create", "life", "--if-not-exists")[0] == 0
    code, _, err = penstock("topic", "create", "life")
    assert code == 1
    assert err.startswith("penstock: topic 'life' was not created: topic already exists")

    topics = json.loads(penstock("topic", "list", "--json")[1])["topics"]
    assert {"name": "life", "partitions": 3, "offsets": 0, "internal": False} in topics
    assert "life" in penstock("topic", "list")[1]

    assert penstock("topic", "alter", "life", "-p", "5", "--config", "durability=interval")[0] == 0
    assert penstock("topic", "alter", "life", "--delete-config", "retention.ms")[0] == 0
    found = described(penstock, "life")
    assert len(found["partitions"]) == 5
    own = {config["name"]: config["value"] for config in found["configs"] if config["source"] == "topic"}
    assert own == {"durability": "interval"}
    assert "interval" in penstock("topic", "describe", "life")[1]

    assert penstock("topic", "delete", "life", "--yes")[0] == 0
    code, _, err = penstock("topic", "delete", "life", "--yes")
    assert (code, err) == (1, "penstock: topic 'life' does not exist\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("topic", "create", "no/slash"), "invalid topic"),
        (("topic", "create", "t", "--config", "nonsense=1"), "nonsense"),
        (("topic", "create", "t", "--config", "durability=maybe"), "durability"),
        (("topic", "describe", "missing"), "topic 'missing' does not exist"),
        (("topic", "alter", "missing", "-p", "2"), "topic 'missing' does not exist"),
        (("consume", "missing"), "topic 'missing' does not exist"),
    ],
)
def test_a_refusal_is_one_sentence(penstock: Penstock, words: tuple[str, ...], sentence: str) -> None:
    code, out, err = penstock(*words)
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back_as_they_went_in(penstock: Penstock, tmp_path: Path, compression: str) -> None:
    topic = f"lines-{compression}"
    lines = [f"line {number}" for number in range(1000)]
    file = lines_file(tmp_path, *lines)
    code, _, err = penstock("produce", topic, "--file", file, "-z", compression, "--partition", "0")
    assert (code, err) == (0, "1,000 messages acknowledged: partition 0, offsets 0 to 999\n")
    assert penstock("consume", topic)[1].splitlines() == lines
    assert penstock("consume", topic, "--from", "990")[1].splitlines() == lines[990:]
    assert penstock("consume", topic, "--last", "2")[1].splitlines() == lines[-2:]
    assert penstock("consume", topic, "--count", "3")[1].splitlines() == lines[:3]
    assert penstock("consume", topic, "--from", "10 minutes ago", "-n", "1")[1].splitlines() == lines[:1]
    assert penstock("consume", topic, "--from", "latest")[1] == ""


def test_producer_is_told_ids_that_others_understand(penstock: Penstock, tmp_path: Path) -> None:
    penstock("topic", "create", "named", "-p", "1")
    file = lines_file(tmp_path, "a", "b")
    assert penstock("produce", "named", "--file", file)[2] == "2 messages acknowledged: partition 0, offsets 0 to 1\n"
    code, out, err = penstock("produce", "named", "--file", file, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["partitions"] == [{"partition": 0, "message_count": 2, "first_offset": 2, "last_offset": 3}]
    topic_id = bytes.fromhex(described(penstock, "named")["topic_id"])
    ids = [read_message_id(place["id"]) for place in found["messages"]]
    assert ids == [MessageId(topic_id, 0, 2), MessageId(topic_id, 0, 3)]
    late = penstock("produce", "named", "--file", file, "--delay", "1h")
    assert late[2] == "2 messages acknowledged, to be delivered later: penstock schedule pending --topic named\n"


def test_changes_of_topics_are_told_in_json(penstock: Penstock) -> None:
    def told(*words: str) -> Any:
        code, out, err = penstock(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    assert told("topic", "create", "changing") == {"topic": "changing", "is_created": True}
    assert not told("topic", "create", "changing", "--if-not-exists")["is_created"]
    assert told("topic", "alter", "changing", "--config", "retention.ms=5000")["changed"] == {"retention.ms": "5000"}
    assert told("topic", "delete", "changing", "--yes") == {"deleted": ["changing"]}
    code, out, err = penstock("topic", "delete", "changing", "--yes", "--json")
    assert (code, out, json.loads(err)["error"]) == (1, "", "topic 'changing' does not exist")


def test_keys_headers_and_partitions(penstock: Penstock, tmp_path: Path) -> None:
    penstock("topic", "create", "keyed", "-p", "4")
    file = lines_file(tmp_path, "k1:a", "k2:b", "k1:c")
    assert penstock("produce", "keyed", "--file", file, "-K", ":", "-H", "trace=x")[0] == 0
    rows = [json.loads(line) for line in penstock("consume", "keyed", "--json")[1].splitlines()]
    assert sorted((row["key"], row["value"]) for row in rows) == [("k1", "a"), ("k1", "c"), ("k2", "b")]
    assert len({row["partition"] for row in rows if row["key"] == "k1"}) == 1
    assert all(row["headers"] == [["trace", "x"]] for row in rows)
    shown = penstock("consume", "keyed", "--format", "%k=%v")[1].splitlines()
    assert sorted(shown) == ["k1=a", "k1=c", "k2=b"]


def test_acks_0_and_whole_files(penstock: Penstock, tmp_path: Path) -> None:
    penstock("topic", "create", "whole", "-p", "1")
    file = lines_file(tmp_path, "a", "b")
    assert penstock("produce", "whole", "--file", file, "--whole-file", "--acks", "1")[0] == 0
    assert penstock("consume", "whole", "--value-format", "hex")[1] == "610a620a\n"
    code, _, err = penstock("produce", "whole", "--file", file, "--acks", "0")
    assert (code, err) == (0, "2 messages sent, unacknowledged (acks=0)\n")


def test_a_message_that_is_too_large_is_refused_with_the_reason(penstock: Penstock, tmp_path: Path) -> None:
    penstock("topic", "create", "small", "--config", "max.message.bytes=1000")
    code, _, err = penstock("produce", "small", "--file", lines_file(tmp_path, "x" * 5000))
    assert code == 1
    assert "message too large" in err


def test_following_shows_lines_as_they_come(node: NodeProcess, penstock: Penstock, tmp_path: Path) -> None:
    penstock("topic", "create", "followed", "-p", "1")
    program = "import sys; from penstock.cli.app import app, run; sys.exit(run(app))"
    words = ["consume", "followed", "--follow", "--count", "2", "--bootstrap", node.kafka]
    follower = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    penstock("produce", "followed", "--file", lines_file(tmp_path, "first"))
    assert follower.stdout.readline() == "first\n"
    penstock("produce", "followed", "--file", lines_file(tmp_path, "second"))
    assert follower.communicate(timeout=20)[0] == "second\n"
    assert follower.returncode == 0


def test_a_pipe_is_sent_before_it_ends(node: NodeProcess, penstock: Penstock) -> None:
    penstock("topic", "create", "piped", "-p", "1")
    program = "import sys; from penstock.cli.app import app, run; sys.exit(run(app))"
    words = ["produce", "piped", "--bootstrap", node.kafka]
    sender = subprocess.Popen([sys.executable, "-c", program, *words], stdin=subprocess.PIPE)
    assert sender.stdin is not None
    sender.stdin.write(b"early\n")
    sender.stdin.flush()
    assert penstock("consume", "piped", "--follow", "--count", "1")[1] == "early\n"
    sender.stdin.close()
    assert sender.wait(20) == 0


def test_benches_measure_and_clean_up(penstock: Penstock, tmp_path: Path) -> None:
    for words in (
        ("bench", "produce", "--messages", "20000", "-p", "2"),
        ("bench", "consume", "--messages", "20000", "-p", "2"),
        ("bench", "latency", "--seconds", "0.3", "--rate", "5000", "-p", "8", "--data-dir", str(tmp_path)),
    ):
        code, out, _ = penstock(*words, "--json")
        assert code == 0
        outcome = json.loads(out)
        assert outcome["messages"] == (1500 if words[1] == "latency" else 20000)
        assert outcome["latency"]["p99_ms"] > 0
        assert sum(bar["count"] for bar in outcome["histogram"]) == outcome["messages"]
    assert outcome["disk_ratio"] > 0
    assert "messages/s" in penstock("bench", "produce", "--messages", "1000")[1]
    assert "penstock-bench" not in penstock("topic", "list")[1]
