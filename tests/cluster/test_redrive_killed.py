"""kill -9 in the middle of a redrive, again and again: every dead letter comes back exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.node_process import NodeProcess

LETTERS = 1_500
CYCLES = 4
PATIENCE_SECONDS = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path / "node", has_http=True).start()
    yield running
    running.terminate()


def ask(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    reply = httpx.request(method, f"http://{node.http}/v1/{path}", json=body, timeout=20)
    assert reply.is_success, reply.text
    return reply.json() if reply.content else None


def bury(node: NodeProcess) -> None:
    """Dead letters as a queue of `orders` would have made them."""
    for topic in ("orders", "orders-dlq"):
        ask(node, "POST", f"topics/{topic}/messages", {"value": "first", "headers": {"penstock-origin-topic": "none"}})
    letters = [
        {
            "value": str(number),
            "headers": {"penstock-origin-topic": "orders", "penstock-dead-letter-reason": f"reason-{number % 3}"},
        }
        for number in range(LETTERS)
    ]
    ask(node, "POST", "topics/orders-dlq/messages", {"messages": letters})


def moved(node: NodeProcess) -> list[str]:
    """What is in `orders`, by a queue that looks at it from the beginning and takes nothing."""
    ask(node, "PUT", "queues/orders/lookers", {})
    seen = ask(node, "GET", "queues/orders/lookers/peek?count=10000")["messages"]
    return [message["value"] for message in seen if message["value"] != "first"]


def test_every_letter_comes_back_exactly_once(node: NodeProcess) -> None:
    bury(node)
    body = {"reason": "reason-1", "rate": 400}
    task = ask(node, "POST", "dead-letters/orders-dlq/redrive", body)
    for cycle in range(CYCLES):
        deadline = time.monotonic() + PATIENCE_SECONDS
        wanted = min(len(moved(node)) + 40, LETTERS // 3)
        while len(moved(node)) < wanted:
            assert time.monotonic() < deadline, f"cycle {cycle}: the redrive does not go on"
        node.kill()
        node.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := ask(node, "GET", f"dead-letters/orders-dlq/redrives/{task['id']}"))["ended_ms"]:
        assert time.monotonic() < deadline, found
    assert found["state"] == "completed", found
    expected = [str(number) for number in range(LETTERS) if number % 3 == 1]
    assert sorted(moved(node), key=int) == expected
    (left,) = ask(node, "GET", "dead-letters")["dead_letters"]
    assert left["pending_count"] == LETTERS + 1 - len(expected)
