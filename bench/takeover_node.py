"""A whole node for `bench.takeover`, with one door more: by it the node gives itself work, as fast as it takes it.

A million journal records by HTTP would take an hour. What is written here goes through the same logs, shells and
journals, is replicated and committed like everything else, and only does not come by wire.

    prepare                            the topic of groups anew, led by this node, if others are there
    delays, records, queues, offsets   old rows and records, then some traffic of every queue, and commits
    tail                               so much more of each, by the shells
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from penstock.assembly import Assembly, client_doors
from penstock.base import garbage, log_events
from penstock.base.process_memory import keep_freed_memory
from penstock.broker.group.node import OVERRIDES
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.parts import Parts
from penstock.broker.queue.shell import QueueShell
from penstock.broker.schedule.journal import BATCH_BYTES_MAX
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, Scheduled
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.catalog.topics import Created, NewTopic
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.batch.rewrite import header_of
from penstock.codec.columns.frame import build_batches_from_columns
from penstock.config import Config, load_config
from penstock.domain.group.commands import CommitOffsets, OffsetsWritten, OffsetToCommit
from penstock.domain.queue.commands import Act, Found, Receive, Received, Settle, Settlement
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.ledger import RECORDS_MIN
from penstock.domain.queue.records import Finished, Leased, QueueRecord, Take, write_record
from penstock.domain.queue.values import Cause
from penstock.domain.schedule.records import Scheduled as ScheduledRow
from penstock.domain.schedule.records import entry_key
from penstock.domain.schedule.rows import Message, write_row
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.gateways.door import Door
from penstock.main import SWITCH_INTERVAL_SECONDS, ready_line
from penstock.node import Node

TOPIC: Final = "orders"
PORT_FILE: Final = "fill-port"
GROUP_PARTITIONS: Final = 8
POSITIONS_PER_GROUP: Final = 1_000
FAR_MS: Final = 30 * 24 * 3_600_000
VALUE: Final = bytes(100)
ROWS_AT_ONCE: Final = 20_000
OLD_BATCH: Final = 2_000
MESSAGES: Final = 30_000
# Of each queue, by real traffic; one message more is with a consumer when the node is killed.
ACKED: Final = RECORDS_MIN // 2 - 1
COMMITS_AT_ONCE: Final = 8
LINE_BYTES_MAX: Final = 4_096
JOINING_SECONDS_MAX: Final = 30.0


def queue_name(number: int) -> QueueName:
    return QueueName(TOPIC, f"workers-{number:04}")


def group_name(number: int) -> str:
    return f"group-{number:05}"


class Filler:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._group_count = 0

    async def obey(self, order: dict[str, Any]) -> None:
        if order.get("prepare"):
            await self._prepare(order["prepare"])
        if "delays" in order:
            await self._delay_old(order["delays"])
            await self._work_of_queues(order["records"], order["queues"])
            await self._commit(order["offsets"] // POSITIONS_PER_GROUP)
        if "tail" in order:
            await self._add(order["tail"])

    async def _prepare(self, nodes: int) -> None:
        """As it is where all nodes were there when the internal topic was made: here they come one by one."""
        topics, everybody = self._parts.topics, tuple(range(1, nodes + 1))
        async with asyncio.timeout(JOINING_SECONDS_MAX):
            while len(self._parts.nodes.view()) < nodes:  # noqa: ASYNC110  it only happens here
                await asyncio.sleep(0.1)
        await self._parts.groups.ready()
        new = [NewTopic(TOPIC, 1, {}, assignment=(everybody,))]
        if nodes > 1:
            await topics.delete_topic(CONSUMER_OFFSETS)
            spread = (everybody,) * GROUP_PARTITIONS
            new.append(NewTopic(CONSUMER_OFFSETS, GROUP_PARTITIONS, dict(OVERRIDES), assignment=spread))
        made = await topics.create_topics(new)
        assert all(isinstance(each, Created) for each in made), made
        await self._parts.groups.ready()

    def _partition(self) -> PartitionShell:
        served = self._parts.broker.topic(TOPIC)
        shell = None if served is None else served.shell(0)
        assert shell is not None
        return shell

    # Delays

    async def _delay_old(self, count: int) -> None:
        partition = self._partition()
        companion = await self._parts.broker.companion(partition, CompanionKind.SCHEDULE)
        chance, now_ms = random.Random(0), partition.now_ms()
        dues_ms = array("q", (now_ms + FAR_MS + int(chance.random() * FAR_MS) for _ in range(count)))
        for first in range(0, count, ROWS_AT_ONCE):
            _write_rows(companion, dues_ms[first : first + ROWS_AT_ONCE], first, now_ms)
            assert await companion.commit().kept()
        shell = await self._parts.schedules.shell_of(partition)
        assert isinstance(shell, ScheduleShell), shell
        assert shell.pending_count == count

    # Queues

    async def _work_of_queues(self, records: int, queues: int) -> None:
        partition = self._partition()
        for _ in range(MESSAGES // OLD_BATCH):
            _append_batch(partition, build_batch([Record(b"message", timestamp_ms=partition.now_ms())] * OLD_BATCH))
        companion = await self._parts.broker.companion(partition, CompanionKind.QUEUES)
        await self._write_old(companion, records - queues * RECORDS_MIN)
        for first in range(0, queues, 50):
            some = [queue_name(number) for number in range(first, min(first + 50, queues))]
            definitions = QueueOptions(lease_ms=12 * 3_600_000)
            await asyncio.gather(*(self._parts.queues.define(name, definitions) for name in some))
        shell = await self._parts.queues.shell(partition)
        for number in range(queues):
            _work(shell, queue_name(number).group, range(ACKED + 1))
            if number % 20 == 0:
                assert await shell.is_durable()
        assert await shell.is_durable()

    async def _write_old(self, companion: PartitionShell, count: int) -> None:
        """What was written long ago: of the same kinds and sizes."""
        now_ms = companion.now_ms()
        kinds: tuple[QueueRecord, ...] = (
            Leased(now_ms << 10, "bench", now_ms, now_ms, (Take(DEFAULT_LANE, 10_000, ((9_999, 9_999),)),)),
            Finished(((9_999, 9_999),), Cause.ACCEPTED, now_ms),
        )
        pair = [Record(write_record(kind), queue_name(0).group.encode(), timestamp_ms=now_ms) for kind in kinds]
        batch = build_batch(pair * (OLD_BATCH // 2))
        for number in range(max(0, count) // OLD_BATCH):
            _append_batch(companion, bytearray(batch))
            if number % 20 == 0:
                assert await companion.commit().kept()
        assert await companion.commit().kept()

    # Groups

    async def _commit(self, groups: int) -> None:
        numbers = iter(range(self._group_count, self._group_count + groups))
        self._group_count += groups

        async def commit() -> None:
            for number in numbers:
                offsets = tuple(
                    OffsetToCommit(TOPIC, place, number * POSITIONS_PER_GROUP + place)
                    for place in range(POSITIONS_PER_GROUP)
                )
                reply = await self._parts.groups.submit(group_name(number), CommitOffsets(offsets))
                assert isinstance(reply, OffsetsWritten), reply

        await asyncio.gather(*(commit() for _ in range(COMMITS_AT_ONCE)))

    # The last of it

    async def _add(self, count: int) -> None:
        partition = self._partition()
        schedule = await self._parts.schedules.shell_of(partition)
        assert isinstance(schedule, ScheduleShell), schedule
        due_ms = partition.now_ms() + FAR_MS
        for _ in range(count // 500):
            outcome = await schedule.schedule([DelayedMessage(due_ms, None, VALUE)] * 500)
            assert isinstance(outcome, Scheduled), outcome
        queues = await self._parts.queues.shell(partition)
        for first in range(ACKED + 1, ACKED + 1 + count // 2, 50):
            _work(queues, queue_name(0).group, range(first, first + 50))
            assert await queues.is_durable()
        await self._commit(count // POSITIONS_PER_GROUP)


def _write_rows(companion: PartitionShell, dues_ms: Sequence[int], first: int, now_ms: int) -> None:
    message = Message(None, VALUE, (), now_ms)
    rows = [
        write_row(ScheduledRow(position, due_ms, now_ms), entry=entry_key(position), message=message)
        for position, due_ms in enumerate(dues_ms, first)
    ]
    batches = build_batches_from_columns(
        [row.key for row in rows],
        [row.value for row in rows],
        now_ms,
        batch_bytes_max=BATCH_BYTES_MAX,
        base_offset=first,
        leader_epoch=companion.role.epoch,
    )
    companion.log.append(memoryview(b"".join(batches)), [header_of(batch) for batch in batches])


def _append_batch(partition: PartitionShell, batch: bytearray) -> None:
    outcome = partition.append(memoryview(batch))
    assert isinstance(outcome, Appended), outcome


def _work(shell: QueueShell, group: str, offsets: range) -> None:
    """Messages one by one; the last stays with its consumer."""
    for offset in offsets:
        found = Found(DEFAULT_LANE, offset, offset + 1, ((offset, offset),))
        reply = shell.decide(group, Receive("bench", 1, (found,)))
        assert isinstance(reply, Received), reply
        assert reply.deliveries, "there is a message behind the last one"
        if offset != offsets[-1]:
            shell.decide(group, Settle((Settlement(offset, offset, Act.ACCEPT, reply.number),)))


class FillDoor:
    """One order a connection, as a line of JSON; answered with a line when it is done."""

    name = "fill"

    def __init__(self, parts: Parts, directory: Path) -> None:
        self._filler = Filler(parts)
        self._path = directory / PORT_FILE
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LINE_BYTES_MAX)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._path.write_text(str(port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._filler.obey(msgspec.json.decode(await reader.readline()))
            writer.write(b"done\n")
        except Exception as error:  # noqa: BLE001  edge of a connection
            writer.write(f"failed: {error!r}\n".encode())
        await writer.drain()
        writer.close()

    async def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def drain(self) -> None:
        return None


async def run(config: Config) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def doors(config: Config, parts: Parts, cluster_id: str) -> list[Door]:
        return [*client_doors(config, parts, cluster_id), FillDoor(parts, Path(config.node.data_dir))]

    node = Node(config, Assembly(doors=doors))
    await node.start()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    garbage.begin_serving()
    print(ready_line(node.addresses, data_dir=config.node.data_dir, as_json=False), flush=True)
    await stop.wait()
    await node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("serve")
    for name in ("--data-dir", "--kafka", "--http", "--metrics"):
        parser.add_argument(name)
    told = parser.parse_args()
    garbage.begin_start()
    flags = {
        "node": {"data_dir": told.data_dir},
        "kafka": {"listen": told.kafka},
        "http": {"listen": told.http},
        "metrics": {"listen": told.metrics},
    }
    config = load_config(None, os.environ, flags)
    log_events.configure(config.log.format, config.log.level)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(config))


if __name__ == "__main__":
    main()
