"""A consumer of a queue in a process of its own, over HTTP or SQS; it acks, rejects, gives back, forgets by chance.

    python -m support.queue.worker http HOST:PORT TOPIC GROUP LOG SEED
    python -m support.queue.worker sqs  HOST:PORT TOPIC -     LOG SEED

Every fact is one line of JSON in LOG, written when it is known: what was delivered and when, and what the node has
confirmed. A node that is gone is waited for. SIGTERM ends it between two requests.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

LEASE_MS: Final = 2_000
# SQS calls a delete with an expired receipt a success: only what is well within its lease is known to be deleted.
SURE_MS: Final = 1_500
COUNT: Final = 20
SQS_COUNT: Final = 10
WAIT_MS: Final = 100


class Door:
    """Requests to a node that may be killed at any time; None: no answer came, and nobody knows what was done."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: object, *, method: str = "POST", headers: dict[str, str] | None = None) -> Any:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            self._connection.request(method, path, json.dumps(body), headers or {"Content-Type": "application/json"})
            reply = self._connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            return None
        if reply.status >= 300:
            return None
        return json.loads(data) if data else {}

    def sqs(self, action: str, body: object) -> Any:
        headers = {"Content-Type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
        return self.post("/", body, headers=headers)


class Worker:
    def __init__(self, door: Door, log_path: Path, seed: int) -> None:
        self._door = door
        self._log = log_path.open("a")
        self._chance = random.Random(seed)
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            if not self.work():
                # The node is down, or has nothing: neither is a reason to burn a core.
                time.sleep(0.01)
        self._log.close()

    def work(self) -> bool:
        raise NotImplementedError

    def note(self, what: str, values: Sequence[str], **more: object) -> None:
        self._log.write(json.dumps({"what": what, "values": list(values), "at": time.monotonic(), **more}) + "\n")
        self._log.flush()

    def choose(self) -> str:
        return self._chance.choices(("ack", "reject", "nack", "forget"), (75, 10, 10, 5))[0]


class HttpWorker(Worker):
    def __init__(self, door: Door, log_path: Path, seed: int, topic: str, group: str) -> None:
        super().__init__(door, log_path, seed)
        self._path = f"/v1/queues/{topic}/{group}"

    def work(self) -> bool:
        asked_at = time.monotonic()
        asked = {"count": COUNT, "wait_ms": WAIT_MS, "lease_ms": LEASE_MS, "consumer": f"worker-{id(self)}"}
        reply = self._door.post(f"{self._path}/receive", asked)
        if not reply or not reply["messages"]:
            return False
        messages = reply["messages"]
        self.note("delivered", [message["value"] for message in messages], asked_at=asked_at)
        fates: dict[str, list[Any]] = {}
        for message in messages:
            fates.setdefault(self.choose(), []).append(message)
        for fate, chosen in fates.items():
            self._settle(fate, chosen)
        return True

    def _settle(self, fate: str, messages: list[Any]) -> None:
        if fate == "forget":
            return
        values = {message["receipt"]: message["value"] for message in messages}
        # Before it is sent: without an answer, it may have been done.
        self.note(f"{fate}?", list(values.values()))
        body: dict[str, object] = {"receipts": list(values)}
        if fate == "reject":
            body |= {"reject": True, "error": "by chance"}
        elif fate == "nack":
            body |= {"delay_ms": 0}
        reply = self._door.post(f"{self._path}/{'ack' if fate == 'ack' else 'nack'}", body)
        if reply is not None:
            done = [values[result["receipt"]] for result in reply["results"] if result["outcome"] == "done"]
            self.note(fate, done)


class SqsWorker(Worker):
    def __init__(self, door: Door, log_path: Path, seed: int, topic: str) -> None:
        super().__init__(door, log_path, seed)
        self._url = f"http://localhost/000000000000/{topic}"

    def work(self) -> bool:
        asked_at = time.monotonic()
        asked = {"QueueUrl": self._url, "MaxNumberOfMessages": SQS_COUNT, "VisibilityTimeout": LEASE_MS // 1000}
        reply = self._door.sqs("ReceiveMessage", asked)
        if not reply or not reply.get("Messages"):
            return False
        messages = reply["Messages"]
        self.note("delivered", [message["Body"] for message in messages], asked_at=asked_at)
        chosen = {str(place): message for place, message in enumerate(messages) if self.choose() == "ack"}
        if not chosen:
            return True
        self.note("ack?", [message["Body"] for message in chosen.values()])
        entries = [{"Id": place, "ReceiptHandle": message["ReceiptHandle"]} for place, message in chosen.items()]
        reply = self._door.sqs("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries})
        if reply is not None and (time.monotonic() - asked_at) * 1000 < SURE_MS:
            self.note("ack", [chosen[entry["Id"]]["Body"] for entry in reply["Successful"]])
        return True


def main() -> None:
    kind, address, topic, group, log_path, seed = sys.argv[1:]
    door = Door(address)
    worker: Worker
    if kind == "http":
        worker = HttpWorker(door, Path(log_path), int(seed), topic, group)
    else:
        worker = SqsWorker(door, Path(log_path), int(seed), topic)

    def end(_number: int, _frame: object) -> None:
        worker.is_over = True

    signal.signal(signal.SIGTERM, end)
    worker.run()


if __name__ == "__main__":
    main()
