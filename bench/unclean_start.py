"""`make bench-start`: how long a killed node needs to be ready again, with 10 GB of log in 200 partitions.

The logs are made by producing to a real node; it is killed with -9 in the middle of that load, so that what lies past
the last checkpoint is as much as it ever is. Printed: seconds to the ready line, and the bytes that recovery read.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench import machine, report, result_files
from bench.targets import Target, penstock

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "unclean-start"
TOPIC: Final = "large"
VALUE_BYTES: Final = 1_024
MESSAGES_PER_CALL: Final = 1_000
READY_SECONDS_GOAL: Final = 5.0
STARTS: Final = 3
QUEUED_MESSAGES_MAX: Final = 100_000


def fill(node: Target, *, partitions: int, total_bytes: int) -> None:
    """Produces until so many bytes are acknowledged, and leaves more in flight."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    new_topic = NewTopic(TOPIC, partitions, config={"durability": "interval"})
    admin.create_topics([new_topic])[TOPIC].result(60)
    produce_more(node, partitions=partitions, total_bytes=total_bytes)


def produce_more(node: Target, *, partitions: int, total_bytes: int) -> None:
    settings = {"queue.buffering.max.messages": QUEUED_MESSAGES_MAX, "linger.ms": 50, "log_level": 0}
    producer = Producer({"bootstrap.servers": node.bootstrap, **settings})
    messages = [{"value": os.urandom(VALUE_BYTES)}] * MESSAGES_PER_CALL
    sent, partition = 0, 0
    while sent < total_bytes:
        sent += producer.produce_batch(TOPIC, messages, partition) * VALUE_BYTES
        partition = (partition + 1) % partitions
        while len(producer) > QUEUED_MESSAGES_MAX - MESSAGES_PER_CALL:
            producer.poll(0.01)


def scanned_bytes(node: Target) -> int:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=10) as page:
        found = re.search(r"^penstock_recovery_scanned_bytes_total (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None, "the node does not tell what recovery read"
    return int(float(found[1]))


def drop_page_cache() -> bool:
    """A crashed machine starts with cold memory. Needs root; without it the start is warm, and the result says so."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def run(directory: Path, *, partitions: int, total_bytes: int) -> dict[str, Any]:
    print(f"producing {total_bytes / 1e9:.1f} GB into {partitions} partitions", flush=True)
    with penstock(directory) as node:
        fill(node, partitions=partitions, total_bytes=total_bytes)
        node.kill()
    starts = []
    for _ in range(STARTS):
        is_cold = drop_page_cache()
        with penstock(directory) as node:
            start = {"seconds": round(node.ready_seconds, 3), "scanned_bytes": scanned_bytes(node), "cold": is_cold}
            starts.append(start)
            temperature = "cold" if is_cold else "warm"
            print(
                f"ready after {start['seconds']} s, {start['scanned_bytes']:,} bytes scanned, page cache {temperature}"
            )
            # More load, and the same end again: the next start is as unclean as this one.
            produce_more(node, partitions=partitions, total_bytes=total_bytes // 50)
            node.kill()
    stored = sum(path.stat().st_size for path in directory.rglob("*.log") if path.parent != directory)
    return {"partitions": partitions, "stored_bytes": stored, "starts": starts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="start-", dir=build))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts))
        result = run(directory, partitions=arguments.partitions, total_bytes=int(arguments.gigabytes * 1e9))
    finally:
        shutil.rmtree(directory)
    slowest = max(start["seconds"] for start in result["starts"])
    verdict = "met" if slowest < READY_SECONDS_GOAL else "missed"
    print(f"{result['stored_bytes'] / 1e9:.1f} GB in {result['partitions']} partitions: slowest start {slowest} s, "
          f"goal {READY_SECONDS_GOAL} s {verdict}")  # fmt: skip
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, **result})


if __name__ == "__main__":
    main()
