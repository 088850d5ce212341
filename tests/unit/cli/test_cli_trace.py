"""`penstock trace` and `penstock why` against a real node in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.client.http.client import HttpClient, path_of
from support.client.command import Penstock, command
from support.node_process import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True, has_http=True) as running:
        yield running


@pytest.fixture
def penstock(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return command(capsys, last=("--http", node.http))


@pytest.fixture(scope="module")
def message_id(node: NodeProcess) -> str:
    with HttpClient(node.http) as client:
        body = {"messages": [{"value": "v", "key": "k"}, {"value": "w", "key": "k"}, {"value": "x", "key": "other"}]}
        reply = client.post(path_of("topics", "orders", "messages"), dict, body)
        client.post(path_of("queues", "orders", "workers", "receive"), dict, {"count": 1, "consumer": "ann"})
    return str(reply["messages"][0]["id"])


def test_a_journey_is_told_by_id_and_by_place(penstock: Penstock, message_id: str) -> None:
    code, by_id, err = penstock("trace", message_id)
    assert code == 0, err
    assert "leased to ann until" in by_id
    assert penstock("trace", "--topic", "orders", "--partition", "0", "--offset", "0") == (0, by_id, "")
    document = json.loads(penstock("trace", message_id, "--json")[1])
    assert [event["kind"] for event in document["events"]] == ["appended", "leased"]
    assert penstock("trace", message_id, "--format", "svg")[1].startswith("<svg ")
    assert penstock("trace", message_id, "--format", "mermaid")[1].startswith("sequenceDiagram")


@pytest.mark.usefixtures("message_id")
def test_messages_of_a_key_are_traced_one_after_the_other(penstock: Penstock) -> None:
    code, out, err = penstock("trace", "--topic", "orders", "--key", "k", "--since", "10 minutes ago", "--until", "now")
    assert code == 0, err
    assert out.count("message ") == 2
    document = json.loads(penstock("trace", "--topic", "orders", "--key", "k", "--json")[1])
    assert len(document["journeys"]) == 2
    code, _, err = penstock("trace", "--topic", "orders", "--key", "nobody's")
    assert (code, "no message of key" in err) == (1, True)


def test_why_has_a_row_for_each_queue(penstock: Penstock, message_id: str) -> None:
    code, out, err = penstock("why", message_id)
    assert code == 0, err
    assert "queue workers" in out
    assert "ann has it until" in " ".join(out.split())
    (reason,) = json.loads(penstock("why", "--topic", "orders", "--offset", "2", "--json")[1])["reasons"]
    assert reason["standing"] == "not-there-yet"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("trace",), 2, "which message?"),
        (("why", "--topic", "orders"), 2, "which message?"),
        (("trace", "an-id", "--topic", "orders", "--offset", "0"), 2, "one of them is meant"),
        (("trace", "--key", "k"), 2, "--key needs --topic"),
        (
            ("trace", "--topic", "orders", "--key", "k", "--since", "the other day"),
            2,
            "--since: 'the other day' is not a time",
        ),
        (("trace", "nonsense"), 1, "no message id"),
        (("why", "--topic", "nowhere", "--offset", "0"), 1, "no topic"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    penstock: Penstock, words: tuple[str, ...], code: int, sentence: str
) -> None:
    outcome, out, err = penstock(*words)
    assert (outcome, out) == (code, "")
    assert err.count("\n") == 1
    assert sentence in err
