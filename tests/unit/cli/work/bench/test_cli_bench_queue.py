"""`penstock bench queue` against a real node in memory, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.app import app, run
from penstock.cli.work.bench.processor import BrokerProcessor, together
from support.node_process import NodeProcess

SMALL = ("--messages", "1000", "--machine-messages", "1000", "--sqs-messages", "200", "--connections", "2")


@pytest.mark.heavy
def test_every_part_is_measured_and_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with NodeProcess(tmp_path, memory=True, has_http=True) as node:
        where = ("--bootstrap", node.kafka, "--http", node.http)
        assert run(app, ["bench", "queue", *SMALL, *where, "--json"]) == 0
        outcome = json.loads(capsys.readouterr().out)
        assert outcome["machine_messages_per_second"] > 0
        assert outcome["http_messages_per_second"] > 0
        assert outcome["http_send_messages_per_second"] > 0
        for part in ("share_processor", "http_processor"):
            spent = outcome[part]
            assert spent["whole_us"] == pytest.approx(spent["send_us"] + spent["receive_ack_us"], abs=0.2)
            assert 0 < spent["send_us"] < 100_000
            assert 0 < spent["receive_ack_us"] < 100_000
        assert outcome["sqs_single_receive_us"] > 0
        assert outcome["sqs_large_receive_us"] > 0
        assert outcome["sqs_ratio"] == pytest.approx(
            outcome["sqs_large_messages_per_second"] / outcome["sqs_single_messages_per_second"], rel=0.01
        )
        assert run(app, ["topic", "list", "--bootstrap", node.kafka]) == 0
        assert "penstock-bench" not in capsys.readouterr().out
        assert run(app, ["bench", "queue", *SMALL, *where, "--part", "machine"]) == 0
        assert "of the goal of 200,000" in capsys.readouterr().out
        assert run(app, ["bench", "queue", *SMALL, *where, "--part", "http", "--batch", "300"]) == 0
        assert "broker CPU per message" in capsys.readouterr().out


async def test_processor_time_of_a_node_that_does_not_tell_is_not_known() -> None:
    async def load() -> str:
        return "done"

    assert await BrokerProcessor("127.0.0.1:1").measure(1, load) == ("done", None)
    assert together(None, 1.0) is None


def test_a_node_that_is_not_there_is_told_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["bench", "queue", "--part", "http", "--bootstrap", "127.0.0.1:1", "--http", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("penstock: ")
