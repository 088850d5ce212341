"""`penstock dlq redrive --spark` against a real node, with somebody in Spark's place: what becomes of its picks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from penstock.cli.app import app, run
from penstock.cli.work.dlq import watch
from penstock.cli.work.dlq_spark import Choices, Means, Selection, redrive
from penstock.client.http.client import HttpClient, path_of
from penstock.client.http.queues import LetterFilter
from penstock.client.http.settlements import settlements_of
from penstock.codec.http.dead_letters import Redrive
from penstock.domain.queue.redrive import Choice
from support.node_process import NodeProcess

PATIENCE_SECONDS = 15
LETTERS = 6
Redriven = Callable[..., tuple[Any, str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True, has_http=True) as running:
        yield running


@pytest.fixture
def redriven(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Redriven:
    """The command's work, with these picks in the place of Spark's: what it prints, and what it says."""

    def call(topic: str, picks: list[Choice], *, piece_max: int = 100, watch: Any = watch, **how: bool) -> Any:
        means = Means(lambda _: Choices(picks, piece_max), watch)
        selection = Selection(node.http, node.kafka, topic, "true", None, is_by_spark=True)
        how = {"is_dry": False, "is_awaited": True, **how}
        redrive(selection, LetterFilter(), target=None, rate=0, as_json=True, means=means, **how)
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    return call


@pytest.fixture
def dead(node: NodeProcess, topic: str) -> str:
    """A topic of so many dead letters."""
    with HttpClient(node.http) as client:
        messages = [{"value": str(number), "partition": 0} for number in range(LETTERS)]
        client.post(path_of("topics", topic, "messages"), dict, {"messages": messages})
        queue = ("queues", topic, "workers")
        received = client.post(path_of(*queue, "receive"), dict[str, Any], {"count": LETTERS, "wait_ms": 1000})
        receipts = [message["receipt"] for message in received["messages"]]
        client.post(path_of(*queue, "nack"), dict, {"receipts": receipts, "reject": True})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pending(node, f"{topic}-dlq") != LETTERS:
        assert time.monotonic() < deadline, "not all of them are dead letters"
    return f"{topic}-dlq"


def pending(node: NodeProcess, topic: str) -> int | None:
    with HttpClient(node.http) as client:
        found = client.get(path_of("dead-letters"), dict[str, Any])["dead_letters"]
    return next((int(each["pending_count"]) for each in found if each["topic"] == topic), None)


def test_a_condition_that_is_empty_moves_nothing(
    node: NodeProcess, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["dlq", "redrive", dead, "--where", " ", "--spark", "--json", "--http", node.http]) == 2
    assert "no condition" in capsys.readouterr().err
    assert pending(node, dead) == LETTERS


def test_a_dry_run_that_picks_nothing_tells_how_many_there_are(redriven: Redriven, dead: str) -> None:
    out, err = redriven(dead, [], is_dry=True)
    assert out == {"topic": dead, "chosen_count": 0, "pending_count": LETTERS, "fitting_count": 0}
    assert err == f"0 of {LETTERS} dead letters would move, nothing was moved\n"


def test_who_cancels_one_task_gets_no_other(node: NodeProcess, redriven: Redriven, dead: str) -> None:
    tasks: list[Redrive] = []

    def watch_until_cancelled(http: str, client: HttpClient, task: Redrive) -> Redrive:
        tasks.append(watch(http, client, task))
        return msgspec.structs.replace(tasks[-1], state="cancelled") if len(tasks) == 2 else tasks[-1]

    picks = [(0, 0, 0), (0, 2, 2), (0, 4, 4)]
    out, err = redriven(dead, picks, piece_max=1, watch=watch_until_cancelled)
    assert (out["moved_count"], out["state"]) == (2, "cancelled")
    assert "(cancelled)" in err
    assert pending(node, dead) == LETTERS - 2


def test_in_the_background_nobody_waits(node: NodeProcess, redriven: Redriven, dead: str) -> None:
    def nobody_watches(*_: object) -> Redrive:
        raise AssertionError("somebody waits")

    out, _ = redriven(dead, [(0, 1, 3)], watch=nobody_watches, is_awaited=False)
    assert out["chosen_count"] == 3
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pending(node, dead) != LETTERS - 3:
        assert time.monotonic() < deadline


def test_choices_are_cut_into_pieces() -> None:
    found = [(0, 5, 9), (0, 11, 11), (3, 2, 4)]
    choices = Choices(iter(found), 2)
    assert list(choices.pieces()) == [found[:2], found[2:]]
    assert (choices.letter_count(), choices.piece_count) == (9, 2)
    assert (Choices(()).letter_count(), Choices(()).piece_count, list(Choices(()).pieces())) == (0, 0, [])


def test_a_report_takes_messages_that_died_for_finished(node: NodeProcess, dead: str) -> None:
    with HttpClient(node.http) as client:
        found = settlements_of(client, dead.removesuffix("-dlq"), "workers")
    assert sum(last - first + 1 for ranges in found.values() for first, last, _at_ms in ranges) == LETTERS
