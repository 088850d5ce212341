"""franz-go, where Go and its module proxy are at hand: which release of Kafka it takes a node for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.node_process import NodeProcess
from support.programs.franz import BUILD_SECONDS_MAX, franz_program

ANSWER_SECONDS_MAX: Final = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * BUILD_SECONDS_MAX)]


def test_franz_go_takes_a_node_for_the_kafka_it_is_like(node: NodeProcess) -> None:
    program = franz_program(Path(__file__).with_name("franz_guess.go"))
    done = subprocess.run([program, node.kafka], check=True, capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX)
    told = json.loads(done.stdout)
    assert told["guess"] == "v4.3"
    assert told["tokens"].startswith("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED")
    assert told["limit"].startswith("UNSUPPORTED_VERSION")
    assert "does not limit clients" in told["limit_message"]
    assert told["no_limit"] == ""
