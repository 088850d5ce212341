"""`penstock schedule …` and `penstock produce --delay` against a real node in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.app import app, run
from penstock.client.http.client import HttpClient, path_of
from support.client.command import Penstock, command
from support.node_process import NodeProcess

HOUR_MS = 3_600_000
_names = iter(f"topic-{number}" for number in range(1_000))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True, has_http=True) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--http", node.http))


def told(penstock: Penstock, *words: str) -> Any:
    code, out, err = penstock("schedule", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def publish(node: NodeProcess, topic: str, *delays_ms: int) -> list[str]:
    messages = [{"value": str(delay_ms), "key": "k", "delay_ms": delay_ms} for delay_ms in delays_ms]
    with HttpClient(node.http) as client:
        reply = client.post(path_of("topics", topic, "messages"), dict, {"messages": messages})
    return [message["id"] for message in reply["messages"]]


def test_a_cron_schedule_from_its_creation_to_its_end(penstock: Penstock) -> None:
    topic = next(_names)
    words = ("--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--topic", topic, "--missed", "skip")
    code, out, err = penstock("schedule", "create", "nightly", *words, "--value", "go", "--key", "k", "-H", "a=b")
    assert (code, err) == (0, f"schedule nightly sends to {topic}\n")
    assert "next, in Europe/Berlin" in out
    assert out.count(" 02:30:00 +0") == 5
    found = told(penstock, "show", "nightly")
    assert (found["cron"], found["timezone"], found["missed"]) == ("30 2 * * *", "Europe/Berlin", "skip")
    assert (found["value"], found["key"], found["headers"]) == ("go", "k", {"a": "b"})
    (listed,) = told(penstock, "list")["crons"]
    assert (listed["name"], listed["topic"]) == ("nightly", topic)
    assert "nightly" in penstock("schedule", "list")[1]
    assert penstock("schedule", "delete", "nightly", "--yes")[2] == "schedule nightly deleted\n"
    assert penstock("schedule", "list")[2] == "there are no schedules\n"
    assert penstock("schedule", "show", "nightly")[::2] == (1, "penstock: there is no schedule 'nightly'\n")


def test_a_name_that_two_topics_have_needs_its_topic(penstock: Penstock) -> None:
    first, second = next(_names), next(_names)
    for topic in (first, second):
        assert penstock("schedule", "create", "twice", "--cron", "0 0 1 1 *", "-t", topic)[0] == 0
    code, _, err = penstock("schedule", "delete", "twice", "--yes")
    assert code == 2
    assert "--topic" in err
    assert penstock("schedule", "delete", "twice", "--yes", "-t", first)[0] == 0
    assert told(penstock, "show", "twice")["topic"] == second
    assert told(penstock, "delete", "twice", "--yes") == {"name": "twice", "topic": second, "is_deleted": True}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--cron", "every day"), "no cron expression"),
        (("--cron", "* * * * *", "--timezone", "Europe/Berln"), "no such time zone (Europe/Berln)"),
        (("--cron", "0 0 30 2 *"), "Bad day-of-month"),
        (("--cron", "* * * * *", "--header", "x"), "NAME=VALUE"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_in_one_sentence(
    penstock: Penstock, words: tuple[str, ...], text: str
) -> None:
    code, _, err = penstock("schedule", "create", "odd", "--topic", "odd", *words)
    assert code != 0
    assert text in err
    assert err.count("\n") == 1


def test_delayed_messages_are_listed_shown_cancelled_and_given_another_time(
    node: NodeProcess, penstock: Penstock
) -> None:
    topic = next(_names)
    late, early = publish(node, topic, 2 * HOUR_MS, HOUR_MS)
    found = told(penstock, "pending", "--topic", topic)["messages"]
    assert [message["id"] for message in found] == [early, late]
    assert len(told(penstock, "pending", "--topic", topic, "-n", "1")["messages"]) == 1
    assert {"topic": topic, "pending_count": 2} in told(penstock, "pending")["topics"]
    code, out, _ = penstock("schedule", "pending", "--topic", topic)
    assert (code, early in out, "59m" in out) == (0, True, True)
    assert topic in penstock("schedule", "pending")[1]
    assert told(penstock, "show", early)["value"] == str(HOUR_MS)
    assert str(2 * HOUR_MS) in penstock("schedule", "show", late)[1]

    moved = told(penstock, "reschedule", early, "--in", "3 hours")
    assert abs(moved["due_ms"] - time.time() * 1000 - 3 * HOUR_MS) < 60_000
    assert [message["id"] for message in told(penstock, "pending", "--topic", topic)["messages"]] == [late, early]
    assert told(penstock, "reschedule", early, "--at", "2100-01-01T00:00:00Z")["due_ms"] == 4_102_444_800_000
    assert penstock("schedule", "cancel", early)[2] == f"message {early} is cancelled\n"
    code, _, err = penstock("schedule", "cancel", early)
    assert (code, "released or cancelled" in err) == (1, True)
    assert told(penstock, "cancel", late) == {"id": late, "is_cancelled": True}
    assert penstock("schedule", "pending", "--topic", topic)[2] == f"nothing is delayed in {topic}\n"


@pytest.mark.parametrize("words", [(), ("--in", "5m", "--at", "10:00"), ("--in", "soon"), ("--at", "2001-01-01")])
def test_another_time_must_be_one(penstock: Penstock, words: tuple[str, ...]) -> None:
    code, _, err = penstock("schedule", "reschedule", "x" * 39, *words)
    assert code == 2
    assert err.count("\n") == 1


def test_produce_delays_lines(node: NodeProcess, penstock: Penstock, tmp_path: Path) -> None:
    topic = next(_names)
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    for words in (("--delay", "1h"), ("--deliver-at", "in 2 hours")):
        assert run(app, ["produce", topic, "--file", str(lines), "--bootstrap", node.kafka, *words]) == 0
    found = told(penstock, "pending", "--topic", topic)["messages"]
    assert [message["value"] for message in found] == ["a", "b", "a", "b"]
    assert "penstock-delay-ms" in found[0]["headers"]
    assert run(app, ["produce", topic, "--delay", "1h", "--deliver-at", "in 1h"]) == 2


def test_a_queue_shows_how_many_are_delayed(node: NodeProcess, penstock: Penstock) -> None:
    topic = next(_names)
    publish(node, topic, HOUR_MS, HOUR_MS)
    assert penstock("queue", "create", topic, "workers")[0] == 0
    code, out, _ = penstock("queue", "describe", topic, "workers", "--json")
    assert (code, json.loads(out)["delayed_count"]) == (0, 2)
    assert "delayed" in penstock("queue", "list")[1]
