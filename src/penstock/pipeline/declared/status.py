"""How pipelines are doing, for everybody who can reach the node: the compacted topic `__pipelines`, one key for each.

The process that runs a pipeline writes; `list` and `status` read it as a whole, which is one small record a pipeline. A
process that dies writes nothing any more: who has said nothing for `SILENCE_MS_MAX` while it should be running is lost.
See docs/decisions/0012-pipelines-say-how-they-are-in-a-topic.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.base.typed_values import read_json
from penstock.client.errors import TopicMissingError
from penstock.client.kafka import admin, groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer
from penstock.client.kafka.offsets import LATEST, list_offsets, offset_ranges
from penstock.client.kafka.producer import PartitionBatch, Producer, ProducerOptions, Refused
from penstock.client.kafka.rows import rows_of
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError, ClientError

PIPELINES_TOPIC: Final = "__pipelines"
HEARTBEAT_MS: Final = 10_000
# Three heartbeats and a bit.
SILENCE_MS_MAX: Final = 35_000
# A day of heartbeats of ten pipelines is 30 MB before compaction: small segments, so that it comes often.
TOPIC_CONFIGS: Final = {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}

STARTING: Final = "starting"
RUNNING: Final = "running"
RESTARTING: Final = "restarting"
STOPPED: Final = "stopped"
FINISHED: Final = "finished"
FAILED: Final = "failed"
# Told by readers only.
LOST: Final = "lost"
ALIVE: Final = frozenset({STARTING, RUNNING, RESTARTING})


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields are only ever added: versions of this program read each other's."""

    name: str
    state: str
    updated_ms: int
    started_ms: int = 0
    file: str = ""
    host: str = ""
    pid: int = 0
    master: str = ""
    sources: list[str] = msgspec.field(default_factory=list)
    sink: str = ""
    query_id: str = ""
    batch_id: int = -1
    # Of the last batch that had rows.
    rows_per_second: float = 0.0
    batch_ms: int = 0
    # Since the process started.
    rows_in: int = 0
    rows_out: int = 0
    bad_rows: int = 0
    lag: int | None = None
    watermark: str = ""
    restarts: int = 0
    last_error: str = ""
    last_error_ms: int = 0
    log_file: str = ""
    group: str = ""

    def seen_at(self, now_ms: int) -> Status:
        """As a reader takes it: one that should be running and says nothing is lost."""
        if self.state in ALIVE and now_ms - self.updated_ms > SILENCE_MS_MAX:
            return msgspec.structs.replace(self, state=LOST)
        return self


async def publish(client: ClusterClient, statuses: Sequence[Status], *, now_ms: int) -> None:
    await _ensure_topic(client)
    records = [Record(msgspec.json.encode(status), status.name.encode(), now_ms) for status in statuses]
    await _send(client, records)


async def forget(client: ClusterClient, names: Sequence[str], *, now_ms: int) -> None:
    """They are listed no more."""
    await _ensure_topic(client)
    await _send(client, [Record(None, name.encode(), now_ms) for name in names])


async def _send(client: ClusterClient, records: Sequence[Record]) -> None:
    producer = Producer(client, ProducerOptions(delivery_timeout_ms=5_000))
    await producer.start()
    batch = PartitionBatch(PIPELINES_TOPIC, 0, build_batch(records), len(records))
    for outcome in await producer.send([batch]):
        if isinstance(outcome, Refused):
            raise ClientError(outcome.sentence())


async def read_statuses(client: ClusterClient, *, now_ms: int) -> list[Status]:
    """The last word of each pipeline, by name."""
    try:
        await client.topic(PIPELINES_TOPIC, is_fresh=True)
    except TopicMissingError:
        return []
    span = (await offset_ranges(client, PIPELINES_TOPIC, [0]))[0]
    found: dict[str, Status] = {}
    if span.end > span.start:
        consumer = Consumer(client, PIPELINES_TOPIC, {0: span.start}, ends={0: span.end})
        try:
            while not consumer.is_done:
                for fetched in await consumer.poll():
                    for record in rows_of(fetched, end=span.end):
                        _learn(found, record.key, record.value)
        finally:
            consumer.close()
    return [found[name].seen_at(now_ms) for name in sorted(found)]


def _learn(found: dict[str, Status], key: bytes | None, value: bytes | None) -> None:
    name = (key or b"").decode(errors="replace")
    if value is None:
        found.pop(name, None)
        return
    try:
        found[name] = read_json(value, Status)
    except msgspec.DecodeError:
        # Somebody else wrote it; it is nobody's status.
        return


async def lag_of(client: ClusterClient, group: str) -> int | None:
    """How many messages the group has not read yet; None: it has read nothing so far."""
    committed = await groups.committed_offsets(client, group)
    if not committed:
        return None
    behind = 0
    for topic in sorted({name for name, _ in committed}):
        try:
            places = {index: LATEST for name, index in committed if name == topic}
            ends = await list_offsets(client, topic, places, is_read_committed=True)
        except (TopicMissingError, BrokerError):
            continue
        behind += sum(max(0, end - committed[topic, index]) for index, end in ends.items())
    return behind


async def _ensure_topic(client: ClusterClient) -> None:
    try:
        await client.topic(PIPELINES_TOPIC)
    except TopicMissingError:
        try:
            await admin.create_topic(client, PIPELINES_TOPIC, partitions=1, configs=TOPIC_CONFIGS)
        except BrokerError as error:
            # Another process was first.
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
