"""`make bench-trace`: how long `trace` takes on a topic of 100 million messages with 10 million journal records, and
with millions of commits by many groups beside it.

The logs are written directly, as a node would have written them in a day: large batches of small messages; a journal in
which queues go through the topic in order, with retries, expired leases and dead letters on the way; commits of many
groups, each of them with its own lag. Then a node is started on them, which first reads each of them once, in the
background, and traces are asked for over HTTP: of messages anywhere in the topic, of which it is known what became of
them, so that a quick answer that has forgotten something is none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import machine, report, result_files
from bench.targets import Target, penstock
from penstock.base.clock import SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.group.node import MINIMUM_LAG, OVERRIDES, PARTITION_COUNT
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.replay_start import write_start
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.group.records import OffsetStored
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.records import Finished, Leased, Opened, QueueRecord, Returned, Take, write_record
from penstock.domain.queue.values import Cause
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.storage.config import StorageConfig
from penstock.storage.files import DirectoryFiles
from penstock.storage.store import LogStore

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "trace"
TOPIC: Final = "orders"
QUEUE: Final = "workers"
SECONDS_GOAL: Final = 1.0
TRACES: Final = 40
DATA_BATCH: Final = 10_000
# Of a journal: what one turn of the loop writes.
JOURNAL_BATCH: Final = 64
COMMIT_BATCH: Final = 256
# Every so many deliveries one lease runs out and the message comes again much later.
RETRY_EVERY: Final = 50
RETRY_BEHIND: Final = 100_000
INDEXED_SECONDS_MAX: Final = 600.0

_encode = msgspec.msgpack.Encoder().encode


class Plan(msgspec.Struct, frozen=True):
    messages: int
    records: int
    commits: int
    groups: int

    @property
    def step(self) -> int:
        """Messages of one delivery: a lease and an ack for each."""
        return max(self.messages * 2 // self.records, 1)


class Builder:
    """The layers of a node below its doors, in this process, which kills itself at the end."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory = directory
        self._plan = plan

    async def run(self) -> None:
        clock, keys, tasks = SystemClock(), KeySpace(), TaskSupervisor(get_logger("bench"))
        metadata = await SqliteStore.open(str(self._directory / "metadata.sqlite"), clock=clock)
        store = LogStore.open(DirectoryFiles(), str(self._directory), StorageConfig(), clock)
        watch = MetadataWatch(metadata, keys)
        catalog = TopicCatalog(watch, clock=clock, new_topic_id=lambda: uuid.uuid4().bytes)
        site = Site(clock=clock, tasks=tasks, readers=ThreadPoolExecutor(1))
        broker = Broker(site, catalog=catalog, store=store)
        await broker.start()
        await catalog.create_topic(TOPIC, 1, {"durability": "interval", "max.message.bytes": str(64 << 20)})
        overrides = {**OVERRIDES, MINIMUM_LAG: str(broker.config.trace_horizon_ms), "durability": "interval"}
        await catalog.create_topic(CONSUMER_OFFSETS, PARTITION_COUNT, overrides)
        served, offsets = broker.topic(TOPIC), broker.topic(CONSUMER_OFFSETS)
        assert served is not None
        assert offsets is not None
        partition = served.shells[0]
        begin_ms = clock.now_ms() - 20 * 3_600_000
        await self._write_messages(partition, begin_ms)
        companion = await broker.companion(partition, CompanionKind.QUEUES)
        await self._write_journal(companion, begin_ms)
        await self._write_commits(offsets.shells, served.topic_id, begin_ms)
        for shell in (partition, companion, *offsets.shells):
            await shell.commit().kept()
        assert write_start(companion.log, companion.log.log_end)
        await store.checkpoint()
        os.kill(os.getpid(), signal.SIGKILL)

    def _at_ms(self, begin_ms: int, offset: int) -> int:
        """The day goes by as the topic does."""
        return begin_ms + offset * 19 * 3_600_000 // self._plan.messages

    async def _write_messages(self, partition: PartitionShell, begin_ms: int) -> None:
        batch = build_batch([Record(b"%09d" % 7, timestamp_ms=begin_ms)] * DATA_BATCH)
        for _first in range(0, self._plan.messages, DATA_BATCH):
            _append(partition, bytearray(batch))
            await asyncio.sleep(0)

    async def _write_journal(self, companion: PartitionShell, begin_ms: int) -> None:
        step, number = self._plan.step, begin_ms << 10
        writer = _Writer(companion, JOURNAL_BATCH)
        writer.write(QUEUE, write_record(Opened(0, number, begin_ms)), begin_ms)
        for turn, first in enumerate(range(0, self._plan.messages, step)):
            at_ms = self._at_ms(begin_ms, first)
            number += 1
            for record in _turn(turn, first, step, number, at_ms):
                writer.write(QUEUE, write_record(record), at_ms)
            if turn % 10_000 == 0:
                await asyncio.sleep(0)
        writer.flush()

    async def _write_commits(self, partitions: list[PartitionShell], topic_id: bytes, begin_ms: int) -> None:
        """Every group commits as often as any other, each behind the end by its own lag."""
        plan = self._plan
        writers = [_Writer(partition, COMMIT_BATCH) for partition in partitions]
        rounds = plan.commits // plan.groups
        for round_number in range(rounds):
            head = plan.messages * (round_number + 1) // rounds
            at_ms = self._at_ms(begin_ms, head)
            for group_number in range(plan.groups):
                group = f"group-{group_number:04}"
                position = max(head - lag_of(group_number), 0)
                stored = OffsetStored(TOPIC, 0, position, 0, "", at_ms, topic_id=topic_id)
                key = _encode((group, stored.key))
                writers[partition_of(group, len(partitions))].write_raw(key, _encode(stored), at_ms)
            await asyncio.sleep(0)
        for writer in writers:
            writer.flush()


def lag_of(group: int) -> int:
    return group * 1_000


def partition_of(group: str, count: int) -> int:
    import zlib

    return zlib.crc32(group.encode()) % count


def _turn(turn: int, first: int, step: int, number: int, at_ms: int) -> list[QueueRecord]:
    """A delivery and its ack. Now and then one of its messages comes back, to be delivered again long after."""
    last = first + step - 1
    again: tuple[tuple[int, int], ...] = ()
    old = retried_by(turn, step)
    if old is not None:
        again = ((old, old),)
    lost = first if turn % RETRY_EVERY == 0 else None
    leased = Leased(number, "bench", at_ms + 30_000, at_ms, (Take(DEFAULT_LANE, last + 1, ((first, last),)),), again)
    acked = (first, last) if lost is None else (first + 1, last)
    finished = (*again, acked) if acked[0] <= last else again
    records: list[QueueRecord] = [leased, Finished(finished, Cause.ACCEPTED, at_ms + 1)]
    if lost is not None:
        records.append(Returned(((lost, lost),), 0, Cause.LEASE_EXPIRED, at_ms + 2))
    return records


def retried_by(turn: int, step: int) -> int | None:
    """The message that a turn delivers again."""
    earlier = turn - RETRY_BEHIND // step
    return earlier * step if earlier >= 0 and earlier % RETRY_EVERY == 0 else None


class _Writer:
    """Records gathered into batches."""

    def __init__(self, partition: PartitionShell, size: int) -> None:
        self._partition = partition
        self._size = size
        self._records: list[Record] = []
        self.count = 0

    def write(self, key: str, value: bytes, at_ms: int) -> None:
        self.write_raw(key.encode(), value, at_ms)

    def write_raw(self, key: bytes, value: bytes, at_ms: int) -> None:
        self._records.append(Record(value, key, timestamp_ms=at_ms))
        if len(self._records) >= self._size:
            self.flush()

    def flush(self) -> None:
        if self._records:
            self.count += len(self._records)
            _append(self._partition, build_batch(self._records))
            self._records = []


def _append(partition: PartitionShell, batch: bytearray) -> None:
    outcome = partition.append(memoryview(batch))
    assert isinstance(outcome, Appended), outcome


def build(directory: Path, plan: Plan) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "bench.trace_journeys", "--build", str(directory / "data")]
    command += ["--messages", str(plan.messages), "--records", str(plan.records)]
    command += ["--commits", str(plan.commits), "--groups", str(plan.groups)]
    done = subprocess.run(command, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, f"the data could not be built: {done.returncode}"
    return time.monotonic() - began


# Asking


def get(node: Target, path: str) -> tuple[Any, float]:
    began = time.monotonic()
    with urllib.request.urlopen(f"http://{node.http}{path}", timeout=INDEXED_SECONDS_MAX) as reply:
        found = msgspec.json.decode(reply.read())
    return found, time.monotonic() - began


def check(journey: Any, plan: Plan, offset: int) -> None:
    """What the builder has written about that message, and nothing else."""
    turn, place = divmod(offset, plan.step)
    is_retried = place == 0 and turn % RETRY_EVERY == 0
    comes_again = is_retried and (turn + RETRY_BEHIND // plan.step) * plan.step < plan.messages
    expected = ["leased", "acked"]
    if is_retried:
        expected = ["leased", "lease-expired", *(["leased", "acked"] if comes_again else [])]
    told = [event["kind"] for event in journey["events"] if event.get("group") == QUEUE]
    assert told == expected, f"{offset}: {told}, expected {expected}"
    passed = {event["group"] for event in journey["events"] if event["kind"] == "passed"}
    behind = {f"group-{group:04}" for group in range(plan.groups) if plan.messages - lag_of(group) > offset}
    assert passed == behind, f"{offset}: passed by {len(passed)} groups, expected {len(behind)}"


def measure(directory: Path, plan: Plan) -> dict[str, Any]:
    chance = random.Random(7)
    offsets = [chance.randrange(plan.messages) for _ in range(TRACES // 2)]
    retried = plan.messages // plan.step // RETRY_EVERY
    offsets += [chance.randrange(retried) * RETRY_EVERY * plan.step for _ in range(TRACES // 2)]
    with penstock(directory, has_http=True) as node:
        began = time.monotonic()
        # Whoever comes before the background has looked through everything waits for it, and asks again.
        journey, _ = get(node, f"/v1/trace/{TOPIC}/0/{offsets[0]}")
        while journey.get("notes"):
            journey, _ = get(node, f"/v1/trace/{TOPIC}/0/{offsets[0]}")
        check(journey, plan, offsets[0])
        indexed_seconds = time.monotonic() - began
        print(f"looked through once in {indexed_seconds:.1f} s, while somebody waited for it", flush=True)
        first = ask(node, plan, offsets)
        resident = node.resident_bytes()
        node.kill()
    with penstock(directory, has_http=True) as node:
        # Side files only: nothing is in this node's memory.
        restarted = ask(node, plan, offsets)
        node.kill()
    side_bytes = sum(path.stat().st_size for path in directory.rglob("*.zones"))
    return {
        "indexed_seconds": round(indexed_seconds, 2),
        "traces": first,
        "traces_after_restart": restarted,
        "resident_bytes": resident,
        "side_file_bytes": side_bytes,
    }


def ask(node: Target, plan: Plan, offsets: list[int]) -> dict[str, float]:
    seconds: list[float] = []
    cpu_before = node.cpu_seconds()
    for offset in offsets:
        journey, took = get(node, f"/v1/trace/{TOPIC}/0/{offset}")
        check(journey, plan, offset)
        seconds.append(took)
    told = {
        "first": round(seconds[0], 4),
        "median": round(statistics.median(seconds), 4),
        "slowest": round(max(seconds), 4),
        "cpu_each": round((node.cpu_seconds() - cpu_before) / len(seconds), 4),
    }
    print(
        f"{len(seconds)} traces, seconds: " + ", ".join(f"{name} {value}" for name, value in told.items()), flush=True
    )
    return told


def run(plan: Plan) -> dict[str, Any]:
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="trace-", dir=parent))
    try:
        (directory / "data").mkdir()
        seconds = build(directory, plan)
        size = sum(path.stat().st_size for path in directory.rglob("*.log"))
        print(
            f"{plan.messages:,} messages, {plan.records:,} journal records, {plan.commits:,} commits of "
            f"{plan.groups:,} groups: {size / 1e9:.1f} GB of logs written in {seconds:.0f} s",
            flush=True,
        )
        return {**msgspec.structs.asdict(plan), "log_bytes": size, **measure(directory, plan)}
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000_000)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--commits", type=int, default=2_000_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--build", type=Path, help="used by itself: build the data here, and die")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    plan = Plan(arguments.messages, arguments.records, arguments.commits, arguments.groups)
    if arguments.build is not None:
        asyncio.run(Builder(arguments.build, plan).run())
    facts = machine.facts(ROOT)
    print(report.headline(facts))
    result = run(plan)
    slowest = max(result["traces"]["slowest"], result["traces_after_restart"]["slowest"])
    print(f"slowest trace {slowest} s, goal {SECONDS_GOAL} s {'met' if slowest <= SECONDS_GOAL else 'missed'}")
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, "results": [result]})


if __name__ == "__main__":
    main()
