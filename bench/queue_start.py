"""`make bench-queue-start`: how long a killed node needs to be ready again with a thousand queues and their journals.

Two shapes: a thousand topics with a queue each, and one topic with a thousand queues, whose journal is then one. Each
is given ten million records: nearly all of them written as an old journal, before the point from which a start reads,
and then real traffic through the shells until every queue is a record short of its next snapshot, which is the worst
that a node can be killed with. Then kill -9, a start, and a look at some queues: a quick start that has forgotten
something is none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
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
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.replay_start import write_start
from penstock.broker.queue.shell import SAVED_BEHIND_MAX, QueueShell
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.catalog.queues import QueueCatalog
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.queue.commands import Act, Found, Receive, Received, Settle, Settlement
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.ledger import RECORDS_MIN
from penstock.domain.queue.records import Finished, Leased, QueueRecord, Take, write_record
from penstock.domain.queue.values import Cause
from penstock.domain.security.access import AllowAll
from penstock.storage.config import StorageConfig
from penstock.storage.files import DirectoryFiles
from penstock.storage.store import LogStore

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "queue-start"
READY_SECONDS_GOAL: Final = 5.0
STARTS: Final = 3
QUEUES_CHECKED: Final = 5
SHAPES: Final = ("topics", "groups")
OLD_BATCH: Final = 2_000
MESSAGES: Final = 200
# Of each queue; one message more is leased when the node is killed.
ACKED: Final = RECORDS_MIN // 2 - 1


def names_of(shape: str, count: int) -> list[QueueName]:
    if shape == "topics":
        return [QueueName(f"topic-{number:04}", "workers") for number in range(count)]
    return [QueueName("topic-0000", f"workers-{number:04}") for number in range(count)]


class Builder:
    """The layers of a node below its doors, in this process, which kills itself at the end."""

    def __init__(self, directory: Path, *, records: int, names: list[QueueName]) -> None:
        self._directory = directory
        self._names = names
        self._topics = sorted({name.topic for name in names})
        self._records_per_topic = records // len(self._topics)

    async def run(self) -> None:
        clock, keys, tasks = SystemClock(), KeySpace(), TaskSupervisor(get_logger("bench"))
        metadata = await SqliteStore.open(str(self._directory / "metadata.sqlite"), clock=clock)
        store = LogStore.open(DirectoryFiles(), str(self._directory), StorageConfig(), clock)
        watch = MetadataWatch(metadata, keys)
        catalog = TopicCatalog(watch, clock=clock, new_topic_id=lambda: uuid.uuid4().bytes)
        site = Site(clock=clock, tasks=tasks, readers=ThreadPoolExecutor(2))
        broker = Broker(site, catalog=catalog, store=store)
        await broker.start()
        queues = NodeQueues(
            site,
            broker,
            catalog,
            QueueCatalog(watch, clock=clock),
            ProducerIds(metadata, keys),
            authorizer=AllowAll(),
        )
        await queues.start()
        for topic in self._topics:
            await catalog.create_topic(topic, 1, {"durability": "interval"})
            served = broker.topic(topic)
            assert served is not None
            _append_batch(served.shells[0], build_batch([Record(b"message", timestamp_ms=clock.now_ms())] * MESSAGES))
            companion = await broker.companion(served.shells[0], CompanionKind.QUEUES)
            await self._write_old(companion, clock.now_ms())
        for name in self._names:
            await queues.define(name, QueueOptions(lease_ms=12 * 3_600_000))
            (shell,) = await queues.shells(name)
            _work(shell, name.group)
        for shell in list(queues.loaded_shells()):
            while await _is_behind(shell):
                pass
            assert await shell.is_durable()
        os.kill(os.getpid(), signal.SIGKILL)

    async def _write_old(self, companion: PartitionShell, now_ms: int) -> None:
        """What a node has written long ago: of the same kinds and sizes, and never read again but for its end."""
        number = now_ms << 10
        kinds: tuple[QueueRecord, ...] = (
            Leased(number, "bench", now_ms + 30_000, now_ms, (Take(DEFAULT_LANE, 10_000, ((9_999, 9_999),)),)),
            Finished(((9_999, 9_999),), Cause.ACCEPTED, now_ms),
        )
        pair = [Record(write_record(kind), self._names[0].group.encode(), timestamp_ms=now_ms) for kind in kinds]
        size = min(self._records_per_topic, OLD_BATCH)
        batch = build_batch(pair * (size // 2))
        for _ in range(self._records_per_topic // size):
            _append_batch(companion, bytearray(batch))
        await companion.commit().kept()
        assert write_start(companion.log, companion.log.log_end - SAVED_BEHIND_MAX)


def _append_batch(partition: PartitionShell, batch: bytearray) -> None:
    outcome = partition.append(memoryview(batch))
    assert isinstance(outcome, Appended), outcome


def _work(shell: QueueShell, group: str) -> None:
    """Messages one by one, up to the last record before the next snapshot."""
    for offset in range(ACKED + 1):
        found = Found(DEFAULT_LANE, offset, MESSAGES, ((offset, MESSAGES - 1),))
        reply = shell.decide(group, Receive("bench", 1, (found,)))
        assert isinstance(reply, Received)
        assert reply.deliveries, "there is a message behind the last one"
        if offset < ACKED:
            shell.decide(group, Settle((Settlement(offset, offset, Act.ACCEPT, reply.number),)))


async def _is_behind(shell: QueueShell) -> bool:
    """What the node does every five seconds; True while there is more of it to do."""
    before = shell.replay_start
    await shell.tidy()
    return shell.replay_start != before


def build(directory: Path, *, shape: str, records: int, queues: int) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "bench.queue_start", "--build", str(directory / "data"), "--shapes", shape]
    command += ["--records", str(records), "--queues", str(queues)]
    done = subprocess.run(command, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, f"the data could not be built: {done.returncode}"
    return time.monotonic() - began


def check(node: Target, names: list[QueueName]) -> None:
    """Each has one message in flight and goes on behind it."""
    for name in names[:: max(1, len(names) // QUEUES_CHECKED)]:
        with urllib.request.urlopen(f"http://{node.http}/v1/queues/{name.topic}/{name.group}/stats") as reply:
            stats = msgspec.json.decode(reply.read())
        expected = {"leased_count": 1, "backlog_count": MESSAGES - ACKED - 1}
        assert expected.items() <= stats.items(), f"{name}: {stats}"


def measure(directory: Path, names: list[QueueName]) -> dict[str, Any]:
    with penstock(directory, has_http=True) as node:
        start = {
            "seconds": round(node.ready_seconds, 3),
            "cpu_seconds": round(node.cpu_seconds(), 2),
            "resident_bytes": node.resident_bytes(),
        }
        check(node, names)
        node.kill()
    print(
        f"ready after {start['seconds']} s, {start['cpu_seconds']} s of processor time, "
        f"{start['resident_bytes'] / 1e6:.0f} MB resident",
        flush=True,
    )
    return start


def run(shape: str, *, records: int, queues: int) -> dict[str, Any]:
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="queue-start-", dir=parent))
    try:
        (directory / "data").mkdir()
        seconds = build(directory, shape=shape, records=records, queues=queues)
        print(f"{shape}: {records:,} journal records of {queues:,} queues written in {seconds:.1f} s", flush=True)
        starts = [measure(directory, names_of(shape, queues)) for _ in range(STARTS)]
    finally:
        shutil.rmtree(directory)
    return {"shape": shape, "records": records, "queues": queues, "starts": starts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--build", type=Path, help="used by itself: build the data here, and die")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    if arguments.build is not None:
        names = names_of(arguments.shapes[0], arguments.queues)
        asyncio.run(Builder(arguments.build, records=arguments.records, names=names).run())
    facts = machine.facts(ROOT)
    print(report.headline(facts))
    results = [run(shape, records=arguments.records, queues=arguments.queues) for shape in arguments.shapes]
    slowest = max(start["seconds"] for result in results for start in result["starts"])
    verdict = "met" if slowest <= READY_SECONDS_GOAL else "missed"
    print(f"slowest start {slowest} s, goal {READY_SECONDS_GOAL} s {verdict}")
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, "results": results})


if __name__ == "__main__":
    main()
