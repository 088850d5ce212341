"""`penstock queue …` and `penstock dlq …` against a real node in memory."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.app import app, run
from penstock.client.http.client import HttpClient, path_of
from support.client.command import Penstock, command
from support.node_process import NodeProcess

PATIENCE_SECONDS = 15
_names = iter(f"topic-{number}" for number in range(1_000))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True, has_http=True) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--http", node.http))


def told(penstock: Penstock, *words: str) -> Any:
    code, out, err = penstock(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def publish(node: NodeProcess, topic: str, *values: str) -> None:
    messages = [{"value": value, "key": f"key-{value}", "partition": 0} for value in values]
    with HttpClient(node.http) as client:
        client.post(path_of("topics", topic, "messages"), dict, {"messages": messages})


def die(node: NodeProcess, penstock: Penstock, *values: str) -> str:
    """A topic whose messages were all rejected; its name, when all are dead letters."""
    topic = next(_names)
    publish(node, topic, *values)
    taken = told(penstock, "queue", "receive", topic, "workers", "-n", "100")["messages"]
    receipts = [message["receipt"] for message in taken]
    with HttpClient(node.http) as client:
        body = {"receipts": receipts, "reject": True, "error": "no such article"}
        client.post(path_of("queues", topic, "workers", "nack"), dict, body)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pending(penstock, f"{topic}-dlq") != len(values):
        assert time.monotonic() < deadline, "not all of them are dead letters"
    return topic


def pending(penstock: Penstock, topic: str) -> int | None:
    found = told(penstock, "dlq", "list")["dead_letters"]
    return next((int(each["pending_count"]) for each in found if each["topic"] == topic), None)


def test_a_queue_from_its_creation_to_its_end(node: NodeProcess, penstock: Penstock) -> None:
    topic = next(_names)
    publish(node, topic, "a", "b", "c")
    words = ("--lease", "1 minute", "--deliveries", "3", "--ordering", "key")
    code, out, err = penstock("queue", "create", topic, "workers", *words)
    assert (code, out) == (0, "")
    assert err == f"queue {topic}/workers is ready, its dead letters go to {topic}-dlq\n"
    found = told(penstock, "queue", "describe", topic, "workers")
    assert (found["options"]["lease_ms"], found["options"]["deliveries_max"]) == (60_000, 3)
    assert found["backlog_count"] == 3
    code, out, _ = penstock("queue", "describe", topic, "workers")
    assert code == 0
    assert f"queue {topic}/workers" in out
    assert topic in penstock("queue", "list")[1]
    listed = told(penstock, "queue", "list")["queues"]
    assert [each["backlog_count"] for each in listed if each["topic"] == topic] == [3]
    assert penstock("queue", "delete", topic, "workers", "--yes")[0] == 0
    code, _, err = penstock("queue", "describe", topic, "workers")
    assert (code, err) == (1, f"penstock: there is no queue 'workers' on topic '{topic}'\n")


def test_messages_are_peeked_at_received_and_acked(node: NodeProcess, penstock: Penstock) -> None:
    topic = next(_names)
    publish(node, topic, "a", "b", "c")
    (first,) = told(penstock, "queue", "receive", topic, "workers")["messages"]
    assert (first["value"], first["key"], first["delivery_count"]) == ("a", "key-a", 1)
    peeked = told(penstock, "queue", "peek", topic, "workers")["messages"]
    assert [(message["value"], message["state"]) for message in peeked] == [
        ("a", "leased"),
        ("b", "ready"),
        ("c", "ready"),
    ]
    code, out, _ = penstock("queue", "peek", topic, "workers")
    assert code == 0
    assert "leased" in out
    code, _, err = penstock("queue", "ack", topic, "workers", first["receipt"])
    assert (code, err) == (0, "1 of 1 acked\n")
    code, out, err = penstock("queue", "receive", topic, "workers", "-n", "10", "--ack", "--wait", "5s")
    assert (code, err) == (0, "2 of 2 acked\n")
    assert "key-b" in out
    assert penstock("queue", "receive", topic, "workers") == (0, "", "no messages\n")


def test_a_receipt_of_a_message_that_somebody_else_has_fails(node: NodeProcess, penstock: Penstock) -> None:
    topic = next(_names)
    publish(node, topic, "a")
    (lost,) = told(penstock, "queue", "receive", topic, "workers", "--lease", "1ms")["messages"]
    told(penstock, "queue", "receive", topic, "workers", "--wait", "10s")
    code, _, err = penstock("queue", "ack", topic, "workers", lost["receipt"])
    assert code == 1
    assert "no longer ours" in err


def test_changes_of_queues_are_told_in_json(node: NodeProcess, penstock: Penstock) -> None:
    topic = next(_names)
    publish(node, topic, "a")
    queue = {"topic": topic, "group": "workers"}
    assert told(penstock, "queue", "create", topic, "workers")["group"] == "workers"
    for act in ("pause", "resume"):
        assert told(penstock, "queue", act, topic, "workers") == {**queue, "done": act}
    assert told(penstock, "queue", "purge", topic, "workers", "--yes") == {**queue, "done": "purge"}
    assert told(penstock, "queue", "delete", topic, "workers", "--yes") == {**queue, "is_deleted": True}


def test_a_paused_queue_delivers_nothing_and_a_purged_one_is_empty(node: NodeProcess, penstock: Penstock) -> None:
    topic = next(_names)
    publish(node, topic, "a", "b")
    assert penstock("queue", "create", topic, "workers")[0] == 0
    assert penstock("queue", "pause", topic, "workers") == (0, "", f"queue {topic}/workers paused\n")
    assert told(penstock, "queue", "receive", topic, "workers") == {"messages": []}
    assert penstock("queue", "resume", topic, "workers")[0] == 0
    assert len(told(penstock, "queue", "receive", topic, "workers")["messages"]) == 1
    assert penstock("queue", "purge", topic, "workers", "--yes")[0] == 0
    assert told(penstock, "queue", "receive", topic, "workers") == {"messages": []}


def test_dead_letters_are_shown_counted_and_redriven(node: NodeProcess, penstock: Penstock) -> None:
    topic = die(node, penstock, "a", "b", "c")
    dead = f"{topic}-dlq"
    assert f"{topic}/workers" in penstock("dlq", "list")[1]
    shown = told(penstock, "dlq", "show", dead, "--key", "key-b")["messages"]
    assert [(each["value"], each["error"], each["origin_topic"]) for each in shown] == [("b", "no such article", topic)]
    code, out, _ = penstock("dlq", "show", dead)
    assert code == 0
    assert "no such article" in out
    assert penstock("dlq", "show", dead, "--until", "2001-01-01") == (0, "", "no dead letters\n")
    words = ("--reason", "rejected", "--since", "-1h", "--key", "key-c")
    code, _, err = penstock("dlq", "redrive", dead, *words, "--dry-run")
    assert (code, err) == (0, "1 of 3 dead letters would move, nothing was moved\n")
    code, _, err = penstock("dlq", "redrive", dead, *words)
    assert (code, err) == (0, "1 moved, 2 did not fit\n")
    task = told(penstock, "dlq", "redrive", dead, "--rate", "1000")
    assert (task["state"], task["moved_count"]) == ("completed", 2)
    again = told(penstock, "queue", "receive", topic, "workers", "-n", "10")["messages"]
    assert [message["value"] for message in again] == ["c", "a", "b"]


def test_a_redrive_may_go_elsewhere_and_in_the_background(node: NodeProcess, penstock: Penstock) -> None:
    topic, other = die(node, penstock, "a", "b"), next(_names)
    publish(node, other, "first")
    code, _, err = penstock("dlq", "redrive", f"{topic}-dlq", "--to", other, "--background")
    assert code == 0
    assert err.startswith("redrive ")
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[str] = []
    while len(found) < 3:
        assert time.monotonic() < deadline, found
        words = ("queue", "receive", other, "workers", "-n", "10", "--wait", "5s")
        found += [message["value"] for message in told(penstock, *words)["messages"]]
    assert found == ["first", "a", "b"]


def test_a_redrive_that_leaves_some_behind_fails_with_why(node: NodeProcess, penstock: Penstock) -> None:
    topic = die(node, penstock, "a")
    publish(node, f"{topic}-dlq", "stray")
    code, _, err = penstock("dlq", "redrive", f"{topic}-dlq")
    assert code == 1
    assert err == "penstock: 1 moved, then: 1 message stayed: no topic of origin is told, give a target\n"


def test_control_c_cancels_a_redrive(node: NodeProcess, penstock: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = die(node, penstock, *[str(number) for number in range(20)])

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        code, _, err = penstock("dlq", "redrive", f"{topic}-dlq", "--rate", "1")
    assert (code, err) == (130, "cancelled: what has moved has moved, the rest stays\n")
    with HttpClient(node.http) as client:
        (task,) = client.get(path_of("dead-letters", f"{topic}-dlq", "redrives"), dict)["redrives"]
    assert task["state"] in ("cancelling", "cancelled")
    assert task["moved_count"] < 20


def test_purged_dead_letters_are_gone(node: NodeProcess, penstock: Penstock) -> None:
    topic = die(node, penstock, "a", "b")
    code, _, err = penstock("dlq", "purge", f"{topic}-dlq", "--yes")
    assert (code, err) == (0, "2 dead letters dropped\n")
    assert pending(penstock, f"{topic}-dlq") == 0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("queue", "create", "missing", "workers"), 1, "there is no topic 'missing'"),
        (("queue", "ack", "missing", "workers", "nonsense"), 1, "no receipt"),
        (("queue", "create", "t", "g", "--lease", "soon"), 2, "--lease: 'soon' is not a duration"),
        (("queue", "create", "t", "g", "--ordering", "random"), 1, "ordering"),
        (("queue", "pause", "missing", "workers"), 1, "there is no queue 'workers'"),
        (("dlq", "show", "missing"), 1, "there is no topic 'missing'"),
        (("dlq", "redrive", "missing"), 1, "there is no topic 'missing'"),
        (("dlq", "redrive", "x", "--since", "whenever"), 2, "--since: 'whenever' is not a time"),
    ],
)
def test_what_fails_says_so_in_one_sentence(
    penstock: Penstock, words: tuple[str, ...], code: int, sentence: str
) -> None:
    ended, out, err = penstock(*words)
    assert (ended, out) == (code, ""), err
    assert err.startswith("penstock: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_nobody_there_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert run(app, ["queue", "list", "--http", f"127.0.0.1:{free}"]) == 1
    assert capsys.readouterr().err == f"penstock: cannot reach the HTTP door at 127.0.0.1:{free}: connection refused\n"


def test_the_kafka_door_is_no_http_door(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["queue", "list", "--http", node.kafka]) == 1
    assert capsys.readouterr().err.startswith("penstock: ")
