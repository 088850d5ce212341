"""Companion logs: what belongs to one data partition and is kept beside it, such as the state of its queues.

An ordinary log with an id made from its topic's: it is opened at first use, moves and is removed with the topic, and no
client ever sees it.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

from penstock.base.clock import Clock
from penstock.broker.partition.log_config import log_config
from penstock.broker.partition.shell import PartitionShell
from penstock.domain.config.topic import make_topic_config
from penstock.storage.store import LogStore


class CompanionKind(StrEnum):
    QUEUES = "queues"
    SCHEDULE = "schedule"


_HOUR_MS: Final = 3_600_000

_OVERRIDES: Final = {
    # A decision is one batch, and a snapshot of a queue with a million messages in flight is one record.
    CompanionKind.QUEUES: {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.bytes": str(16 * 1024 * 1024),
        "max.message.bytes": str(64 * 1024 * 1024),
    },
    # Never cut by age or size: a message waits for as long as it was told to.
    CompanionKind.SCHEDULE: {
        "cleanup.policy": "compact",
        "segment.bytes": str(64 * 1024 * 1024),
    },
}


def companion_settings(kind: CompanionKind, *, traced_ms: int) -> dict[str, str]:
    """What is over is kept for `traced_ms`, for whoever traces a message: the node's trace horizon. Journals of queues
    see to that by themselves."""
    if kind is CompanionKind.QUEUES:
        return _OVERRIDES[kind]
    lag_ms = max(traced_ms, 0)
    # An active segment is never compacted, and a segment for a few rows is none that anybody wants.
    segment_ms = min(max(lag_ms, _HOUR_MS), 24 * _HOUR_MS)
    return {
        **_OVERRIDES[kind],
        "min.compaction.lag.ms": str(lag_ms),
        "delete.retention.ms": str(lag_ms),
        "segment.ms": str(segment_ms),
    }


def companion_id(topic_id: bytes, kind: CompanionKind) -> bytes:
    """Sixteen bytes, the same on every node and at every start."""
    return hashlib.blake2b(topic_id, digest_size=16, person=kind.encode()[:16]).digest()


def open_companion(
    partition: PartitionShell, kind: CompanionKind, *, store: LogStore, clock: Clock, traced_ms: int
) -> PartitionShell:
    """Blocking if there is anything on disk."""
    config = make_topic_config(companion_settings(kind, traced_ms=traced_ms), {})
    home = partition.log.home
    name = f"{partition.topic}.{kind}"
    log = store.open_log(
        name,
        companion_id(home.topic_id, kind),
        partition.index,
        log_config(config),
        is_replicated=partition.log.is_replicated,
    )
    return PartitionShell(name, partition.index, log, store=store, clock=clock, config=config, role=partition.role)
