"""`make bench-schedule`: ten million delayed messages that wait, and ten thousand of them due in every second.

The rows of the schedule's log are written directly, with the bucket files and the checkpoint that go with them; then
real nodes:

    checkpoint    a start
    release       messages come due, at a steady rate, scattered over all of the log; a Kafka client reads them and
                  says how late each was. The node says so itself, too, on its metrics page.
    killed        a start after kill -9 at the end of that
    whole log     a start without a checkpoint: everything is read

Memory is the whole process's. What is late is told from the due time to when the client has the message.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from array import array
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench import machine, report, result_files
from bench.targets import Target, penstock
from penstock.base.clock import SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.journal import BATCH_BYTES_MAX
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.rewrite import header_of
from penstock.codec.columns.frame import build_batches_from_columns
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import Scheduled, entry_key, write_record
from penstock.domain.schedule.rows import Message, write_row
from penstock.storage.config import StorageConfig
from penstock.storage.files import DirectoryFiles
from penstock.storage.files.buckets import CHECKPOINT_FILE, BucketFiles
from penstock.storage.store import LogStore

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "schedule"
TOPIC: Final = "orders"
VALUE_BYTES: Final = 100
ROWS_AT_ONCE: Final = 20_000
FAR_MS: Final = 30 * 24 * 3_600_000
# Between the last message that is measured and the first of the others.
GAP_MS: Final = 10 * 60_000
START_SECONDS_GOAL: Final = 10.0
RESIDENT_BYTES_GOAL: Final = 500_000_000
LATE_MS_GOAL: Final = 50.0
LOAD_SECONDS_MAX: Final = 600.0
# Of the last messages, before the reader gives up.
SILENCE_SECONDS_MAX: Final = 20.0
# From the beginning until the first message is due: for the rows, and for a start. A loaded machine needs more.
LEAD_SECONDS: Final = 30
LEAD_SECONDS_EACH: Final = 25e-6


class Plan:
    """How many messages wait in how many partitions, and when they are due."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.pending: int = arguments.pending
        self.partitions: int = arguments.partitions
        self.rate: int = arguments.rate
        self.seconds: int = arguments.seconds
        self.start_ms: int = arguments.start_ms

    @property
    def measured_count(self) -> int:
        return self.rate * self.seconds

    def dues_of(self, partition: int) -> array[int]:
        """In the order of the rows: those that are measured lie anywhere among the others."""
        chance = random.Random(partition)
        measured = range(partition, self.measured_count, self.partitions)
        end_ms = self.start_ms + self.seconds * 1000 + GAP_MS
        count = self.pending // self.partitions
        dues = array("q", (end_ms + int(chance.random() * FAR_MS) for _ in range(count)))
        places = chance.sample(range(count), len(measured))
        for place, number in zip(places, measured, strict=True):
            dues[place] = self.start_ms + number * 1000 // self.rate
        return dues


# The rows


async def build(directory: Path, plan: Plan) -> None:
    """The layers of a node below its doors, in this process, which kills itself at the end."""
    clock, keys, tasks = SystemClock(), KeySpace(), TaskSupervisor(get_logger("bench"))
    metadata = await SqliteStore.open(str(directory / "metadata.sqlite"), clock=clock)
    store = LogStore.open(DirectoryFiles(), str(directory), StorageConfig(), clock)
    watch = MetadataWatch(metadata, keys)
    catalog = TopicCatalog(watch, clock=clock, new_topic_id=lambda: uuid.uuid4().bytes)
    site = Site(clock=clock, tasks=tasks, readers=ThreadPoolExecutor(1))
    broker = Broker(site, catalog=catalog, store=store)
    await broker.start()
    await catalog.create_topic(TOPIC, plan.partitions, {})
    served = broker.topic(TOPIC)
    assert served is not None
    for partition in served.shells:
        companion = await broker.companion(partition, CompanionKind.SCHEDULE)
        machine = PartitionSchedule()
        files = BucketFiles(store.context.files, companion.log.home.directory)
        write_rows(companion, plan.dues_of(partition.index), clock.now_ms(), machine, files)
        await companion.commit().kept()
        checkpoint = machine.checkpoint(companion.log.log_end)
        files.append(checkpoint.writes)
        files.save_checkpoint(write_record(checkpoint.stored))
    # As a node does every few seconds, and this one's upkeep may be at it: else the start checks every byte of the log.
    while any(log.unsaved_batches for log in store.logs):
        await store.checkpoint()
        await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def write_rows(
    companion: PartitionShell, dues_ms: array[int], now_ms: int, machine: PartitionSchedule, files: BucketFiles
) -> None:
    message = Message(None, bytes(VALUE_BYTES), (), now_ms)
    for first in range(0, len(dues_ms), ROWS_AT_ONCE):
        records = [
            Scheduled(position, due_ms, now_ms)
            for position, due_ms in enumerate(dues_ms[first : first + ROWS_AT_ONCE], first)
        ]
        rows = [write_row(record, entry=entry_key(record.position), message=message) for record in records]
        batches = build_batches_from_columns(
            [row.key for row in rows],
            [row.value for row in rows],
            now_ms,
            batch_bytes_max=BATCH_BYTES_MAX,
            base_offset=first,
            leader_epoch=0,
        )
        companion.log.append(memoryview(b"".join(batches)), [header_of(batch) for batch in batches])
        for record in records:
            machine.apply(record)
        files.append(machine.take_spill())


def run_build(directory: Path, arguments: argparse.Namespace) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "bench.schedule", "--build", str(directory / "data")]
    for name in ("pending", "partitions", "rate", "seconds", "start_ms"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    done = subprocess.run(command, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, f"the rows could not be written: {done.returncode}"
    return time.monotonic() - began


# Nodes


def read_page(node: Target) -> str:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics") as reply:
        text: str = reply.read().decode()
    return text


def pending_of(node: Target) -> int:
    found = re.search(rf'^penstock_schedule_pending{{topic="{TOPIC}"}} (\S+)$', read_page(node), re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


def wait_until_loaded(node: Target, *, count_min: int) -> dict[str, Any]:
    """From the start of the process."""
    began = time.monotonic()
    while pending_of(node) < count_min:
        assert time.monotonic() < began + LOAD_SECONDS_MAX, f"{pending_of(node)} of {count_min} messages"
        time.sleep(0.05)
    found = {
        "ready_seconds": round(node.ready_seconds, 3),
        "loaded_seconds": round(node.ready_seconds + time.monotonic() - began, 3),
        "cpu_seconds": round(node.cpu_seconds(), 2),
        "resident_bytes": node.resident_bytes(),
        "pending": pending_of(node),
    }
    print(
        f"  ready after {found['ready_seconds']} s, {found['pending']:,} messages known after "
        f"{found['loaded_seconds']} s, {found['resident_bytes'] / 1e6:.0f} MB resident",
        flush=True,
    )
    return found


def read_messages(bootstrap: str, partitions: int, count: int, results: Connection) -> None:
    """In a process of its own: when each message was due, and when it was here."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.wait.max.ms": 500, "check.crcs": False}
    )
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    dues, lateness = array("q"), array("d")
    deadline: float | None = None
    while len(dues) < count and (deadline is None or time.monotonic() < deadline):
        messages = consumer.consume(1_000, 0.005)
        now_ms = time.time() * 1000
        for message in messages:
            assert message.error() is None, message.error()
            due_ms = message.timestamp()[1]
            dues.append(due_ms)
            lateness.append(now_ms - due_ms)
        if messages:
            deadline = time.monotonic() + SILENCE_SECONDS_MAX
    consumer.close()
    results.send_bytes(dues.tobytes())
    results.send_bytes(lateness.tobytes())


def measure_release(node: Target, plan: Plan) -> dict[str, Any]:
    wait_seconds = plan.start_ms / 1000 - time.time()
    assert wait_seconds > 0, f"the first message was due {-wait_seconds:.0f} s ago: more time is needed (--lead)"
    receiving, sending = multiprocessing.Pipe(duplex=False)
    reader = multiprocessing.Process(
        target=read_messages, args=(node.bootstrap, plan.partitions, plan.measured_count, sending), daemon=True
    )
    reader.start()
    print(f"  the first message is due in {wait_seconds:.0f} s", flush=True)
    time.sleep(wait_seconds)
    cpu_before = node.cpu_seconds()
    resident: list[int] = []
    while time.time() < plan.start_ms / 1000 + plan.seconds:
        resident.append(node.resident_bytes())
        time.sleep(0.5)
    cpu_seconds = node.cpu_seconds() - cpu_before
    dues, lateness = array("q"), array("d")
    dues.frombytes(receiving.recv_bytes())
    lateness.frombytes(receiving.recv_bytes())
    reader.join()
    return _summary(plan, dues, lateness) | {
        "cpu_share": round(cpu_seconds / plan.seconds, 2),
        "resident_bytes_max": max(resident),
        "node_lateness": node_lateness(node),
        # What the disk took for each sync: two of them are in every release.
        "syncs": histogram_of(node, "penstock_sync_seconds"),
    }


def _summary(plan: Plan, dues: array[int], lateness: array[float]) -> dict[str, Any]:
    ordered = sorted(lateness)
    assert ordered, "nothing was released"
    at = {name: round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 1) for name, share in _SHARES.items()}
    facts = {"released": len(dues), "expected": plan.measured_count, "early": sum(late < 0 for late in lateness), **at}
    print(
        f"  {len(dues):,} of {plan.measured_count:,} messages at {plan.rate:,}/s: late by {at['p50']} ms (p50), "
        f"{at['p99']} ms (p99), {at['max']} ms (most); {facts['early']} early",
        flush=True,
    )
    return facts


_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


def node_lateness(node: Target) -> dict[str, float]:
    """Seconds, and how many messages were as late as that at the most; durable in the topic, as the node sees it."""
    return histogram_of(node, "penstock_schedule_lateness_seconds")


def histogram_of(node: Target, name: str) -> dict[str, float]:
    found = re.findall(rf'^{name}_bucket{{(?:.*,)?le="([^"]+)".*}} (\S+)$', read_page(node), re.MULTILINE)
    return {bound: float(count) for bound, count in found}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="schedule-", dir=parent))
    lead = arguments.lead or LEAD_SECONDS + arguments.pending * LEAD_SECONDS_EACH
    arguments.start_ms = int((time.time() + lead) * 1000)
    plan = Plan(arguments)
    try:
        (directory / "data").mkdir()
        seconds = run_build(directory, arguments)
        print(f"{plan.pending:,} rows in {plan.partitions} partitions written in {seconds:.1f} s", flush=True)
        result: dict[str, Any] = {"pending": plan.pending, "partitions": plan.partitions, "rate": plan.rate}
        print("a start from a checkpoint", flush=True)
        with penstock(directory) as node:
            result["checkpoint"] = wait_until_loaded(node, count_min=plan.pending)
            result["release"] = measure_release(node, plan)
            node.kill()
        print("a start after kill -9", flush=True)
        with penstock(directory) as node:
            left = plan.pending - plan.measured_count
            result["killed"] = wait_until_loaded(node, count_min=left)
            node.kill()
        print("a start that reads the whole log", flush=True)
        for path in directory.rglob(CHECKPOINT_FILE):
            path.unlink()
        with penstock(directory) as node:
            result["whole_log"] = wait_until_loaded(node, count_min=left)
            node.kill()
    finally:
        if not arguments.keep:
            shutil.rmtree(directory)
    return result


def verdict(result: dict[str, Any]) -> list[str]:
    slowest = max(result[name]["loaded_seconds"] for name in ("checkpoint", "killed"))
    largest = max(result["release"]["resident_bytes_max"], result["checkpoint"]["resident_bytes"])
    late_ms = result["release"]["p99"]
    rows = [
        ("start", f"{slowest} s", f"{START_SECONDS_GOAL} s", slowest <= START_SECONDS_GOAL),
        ("memory", f"{largest / 1e6:.0f} MB", f"{RESIDENT_BYTES_GOAL / 1e6:.0f} MB", largest <= RESIDENT_BYTES_GOAL),
        ("late, p99", f"{late_ms} ms", f"{LATE_MS_GOAL} ms", late_ms <= LATE_MS_GOAL),
    ]
    return [f"{name}: {found}, goal {goal} {'met' if is_met else 'missed'}" for name, found, goal, is_met in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rate", type=int, default=10_000, help="messages that come due in a second")
    parser.add_argument("--seconds", type=int, default=30, help="for so long")
    parser.add_argument("--lead", type=int, default=0, help="seconds until the first is due: rows are to be written")
    parser.add_argument("--start-ms", type=int, default=0, help="used by itself")
    parser.add_argument("--build", type=Path, help="used by itself: write the rows here, and die")
    parser.add_argument("--keep", action="store_true", help="leave the data where it is")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    if arguments.build is not None:
        asyncio.run(build(arguments.build, Plan(arguments)))
    facts = machine.facts(ROOT)
    print(report.headline(facts))
    result = run(arguments)
    print("\n".join(verdict(result)))
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, "result": result})


if __name__ == "__main__":
    main()
