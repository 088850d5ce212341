"""FIFO queues: a message whose deduplication id was sent within five minutes is not stored again.

The window of a queue is memory. It is rebuilt from the headers of the log's last five minutes when the queue is first
sent to after a start, before anything is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.base.clock import Clock
from penstock.broker.append_outcome import Refusal
from penstock.broker.node_queues import NodeQueues
from penstock.broker.partition_read import ReadProblem
from penstock.broker.publisher import NotPublished, Placed, Published, Publisher, PublishOutcome
from penstock.broker.queue_shell import QueueShell
from penstock.broker.served_topic import ServedTopic
from penstock.codec.records import Record, StoredRecord
from penstock.codec.sqs.errors import SqsError
from penstock.domain.queue_deduplication import WINDOW_MS, DeduplicationWindow, Sent
from penstock.domain.queue_definition import QueueDefinition
from penstock.gateways.sqs_attributes import attributes_of
from penstock.gateways.sqs_context import SqsRefusal
from penstock.gateways.sqs_records import DEDUPLICATION_HEADER, header_text


class FifoGate:
    def __init__(self, queues: NodeQueues, publisher: Publisher, clock: Clock) -> None:
        self._queues = queues
        self._publisher = publisher
        self._clock = clock
        # By topic id: a queue that is made again knows nothing of its predecessor's messages. One for each partition.
        self._windows: dict[bytes, list[DeduplicationWindow]] = {}
        self._locks: dict[bytes, asyncio.Lock] = {}

    async def send(
        self, definition: QueueDefinition, topic: ServedTopic, records: Sequence[Record]
    ) -> list[PublishOutcome]:
        windows = await self._windows_of(topic)
        is_by_group = attributes_of(definition.options).get("DeduplicationScope") == "messageGroup"
        # No await from here to the append: nobody else's message comes between looking and writing.
        now_ms = self._clock.now_ms()
        placed: list[Placed] = []
        for record in records:
            token = _token(record)
            scope = (record.key or b"").decode() if is_by_group else ""
            partition = self._publisher.partition_of(topic, record, None)
            window = windows[partition]
            before = window.find(token, now_ms, scope=scope)
            shell = topic.partitions[partition]
            if before is not None:
                # Answered as the first one was, and not before that one is durable.
                turn = None if before.offset < shell.readable_end else shell.join_turn()
                placed.append(Placed(Published(partition, before.offset), shell, turn))
                continue
            if window.is_full(now_ms):
                placed.append(Placed(NotPublished(Refusal.DISK_FULL, "too many messages within five minutes")))
                continue
            (one,) = self._publisher.place(topic, [record], [partition])
            if isinstance(one.outcome, Published):
                window.note(token, Sent(one.outcome.offset, now_ms), scope=scope)
            placed.append(one)
        outcomes = await self._publisher.settle(placed)
        if any(
            isinstance(outcome, NotPublished) and isinstance(each.outcome, Published)
            for outcome, each in zip(outcomes, placed, strict=True)
        ):
            # The disk did not take what was noted. Whoever sends it again must not be told that it is there.
            self._windows.pop(topic.topic_id, None)
        return outcomes

    async def _windows_of(self, topic: ServedTopic) -> list[DeduplicationWindow]:
        lock = self._locks.setdefault(topic.topic_id, asyncio.Lock())
        async with lock:
            windows = self._windows.setdefault(topic.topic_id, [])
            while len(windows) < len(topic.partitions):
                shell = await self._queues.shell(topic.partitions[len(windows)])
                windows.append(await self._rebuilt(shell))
            return windows

    async def _rebuilt(self, shell: QueueShell) -> DeduplicationWindow:
        window = DeduplicationWindow()
        since_ms = self._clock.now_ms() - WINDOW_MS
        partition = shell.partition
        found = await asyncio.to_thread(partition.offset_for_timestamp, since_ms)
        if isinstance(found, ReadProblem):
            raise SqsRefusal(SqsError.SERVICE_UNAVAILABLE, f"the log of the queue is {found.value}")
        offset = partition.readable_end if found is None else found.offset
        while offset < partition.readable_end:
            batch = await shell.reader.batch_at(offset, is_committed_only=False)
            if isinstance(batch, ReadProblem):
                raise SqsRefusal(SqsError.SERVICE_UNAVAILABLE, f"the log of the queue is {batch.value}")
            if batch is None:
                break
            for record in batch.records:
                _note(window, record)
            offset = batch.next_offset
        return window


def _note(window: DeduplicationWindow, record: StoredRecord) -> None:
    token = header_text(record, DEDUPLICATION_HEADER)
    if token is not None:
        sent = Sent(record.offset, record.timestamp_ms)
        # Both ways of counting: which one the queue uses may have changed since.
        window.note(token, sent)
        window.note(token, sent, scope=(record.key or b"").decode(errors="replace"))


def _token(record: Record) -> str:
    token = next((value for name, value in record.headers if name == DEDUPLICATION_HEADER), None)
    assert token is not None, "the door gives every message of a FIFO queue an id"
    return token.decode()
