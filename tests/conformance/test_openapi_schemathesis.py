"""schemathesis reads /openapi.json and tries whatever it allows, and what it does not: the door must keep its word.

It is no package of ours to import, so it may live in an environment of its own, build/schemathesis.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.node_process import NodeProcess

ROOT: Final = Path(__file__).parents[2]
PLACES: Final = (Path(sys.executable).parent, ROOT / "build" / "schemathesis" / "bin")
PROGRAM: Final = shutil.which("st", path=os.pathsep.join(map(str, PLACES)))
SECONDS_MAX: Final = 120
# Where messages are, and where none are.
FULL: Final = """
[parameters]
"path.topic" = "orders-dlq"
"path.group" = "workers"
"path.name" = "nightly"
"path.message_id" = "{delayed}"
"path.partition" = 0
"path.offset" = 0
"""
ANYTHING: Final = ""
# As it expects by itself, and 422: what is right by the document may still be wrong for a topic, such as a message
# from a far future.
CHECKS: Final = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 422, 429, "5xx"]
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed (pip install schemathesis)"),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node", memory=True, has_http=True) as running:
        yield running


def fill(node: NodeProcess) -> str:
    """Topics with messages, a queue with leases, dead letters with a redrive behind them, a schedule, delayed messages.
    The id of one of those."""

    def send(method: str, path: str, body: Any = None) -> Any:
        reply = httpx.request(method, f"http://{node.http}/v1/{path}", json=body, timeout=20)
        assert reply.is_success, reply.text
        return reply

    for topic in ("orders", "orders-dlq"):
        send("POST", f"topics/{topic}/messages", {"messages": [{"value": str(number)} for number in range(50)]})
    send("PUT", "queues/orders-dlq/workers", {"deliveries_max": 0})
    send("POST", "queues/orders-dlq/workers/receive", {"count": 10})
    send("POST", "dead-letters/orders-dlq/redrive", {"target": "orders", "rate": 10})
    send("PUT", "crons/orders-dlq/nightly", {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "value": "x"})
    delayed = [{"value": str(number), "delay_ms": 3_600_000 + number} for number in range(50)]
    reply = send("POST", "topics/orders-dlq/messages", {"messages": delayed})
    return str(reply.json()["messages"][0]["id"])


@pytest.mark.parametrize("parameters", [ANYTHING, FULL], ids=["anything", "where there are messages"])
def test_the_document_holds(node: NodeProcess, tmp_path: Path, parameters: str) -> None:
    assert PROGRAM is not None
    delayed = fill(node)
    config = tmp_path / "schemathesis.toml"
    config.write_text(f'hooks = "schemathesis_hooks"\n{parameters.replace("{delayed}", delayed)}{CHECKS}')
    words = ["run", f"http://{node.http}/openapi.json", "--max-examples", "30", "--suppress-health-check", "all"]
    done = subprocess.run(
        [PROGRAM, "--config-file", str(config), *words, "--request-timeout", "20", "--no-color"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert "request failed" not in node.log_path.read_text()
