"""The settings of a topic: Kafka's names, types and defaults, and our `durability`.

    text overrides of the topic  >  text defaults of the node  >  the defaults below   →   TopicConfig, typed

A topic stores its overrides as text and nothing else, so a changed default reaches every topic that did not
ask otherwise. What is taken has its effect, or is about something that a node does not have and says so in its
documentation; a value that nothing would come of is refused in one place (`_NOT_BUILT`, `_ONLY`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from penstock.base.typed_values import convert
from penstock.domain.config.definition import (
    LONG_MAX,
    ConfigDefinition,
    ConfigProblem,
    ConfigType,
    ConfigValue,
    read_value,
)

# A record batch header (61 bytes) and one record must fit; Kafka's own lower bound is 14, which no v2 batch
# meets.
_SEGMENT_BYTES_MIN: Final = 1024
# With durability=replicated.
_MEMORIES_MIN: Final = 2
_WEEK_MS: Final = 7 * 24 * 3600 * 1000
_DAY_MS: Final = 24 * 3600 * 1000


def _define(
    name: str,
    config_type: ConfigType,
    default: str,
    documentation: str,
    *,
    lowest: float | None = None,
    highest: float | None = None,
    allowed: tuple[str, ...] = (),
    node_name: str | None = None,
    idle_because: str = "",
) -> ConfigDefinition:
    return ConfigDefinition(
        name, config_type, default, documentation, lowest, highest, allowed, node_name, idle_because=idle_because
    )


_ONE_REPLICA: Final = "a partition has one replica"
# The `compression.type` under which nothing is recompressed.
AS_SENT: Final = "producer"

_DEFINITION_LIST: Final = (
    _define(
        "cleanup.policy", ConfigType.LIST, "delete",
        "What happens to old records: `delete` retires whole segments by age and size, `compact` keeps the last record "
        "of each key; empty: nothing, they are kept for ever.",
        allowed=("delete", "compact"), node_name="log.cleanup.policy",
    ),
    _define(
        "compression.gzip.level", ConfigType.INT, "-1",
        "How hard gzip works where compression.type asks for it; -1 for its own default.",
        lowest=-1, highest=9, node_name="compression.gzip.level",
    ),
    _define(
        "compression.lz4.level", ConfigType.INT, "9",
        "How hard lz4 works where compression.type asks for it; there is one level.",
        lowest=1, highest=17, node_name="compression.lz4.level",
    ),
    _define(
        "compression.type", ConfigType.STRING, AS_SENT,
        "The codec of stored batches: one that comes in another is recompressed; `producer` keeps them as they were "
        "sent.",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        node_name="compression.type",
    ),
    _define(
        "compression.zstd.level", ConfigType.INT, "3",
        "How hard zstd works where compression.type asks for it.",
        lowest=-131072, highest=22, node_name="compression.zstd.level",
    ),
    _define(
        "delete.retention.ms", ConfigType.LONG, str(_DAY_MS),
        "How long compaction keeps a tombstone.",
        lowest=0, node_name="log.cleaner.delete.retention.ms",
    ),
    _define(
        "durability", ConfigType.STRING, "fsync",
        "When a produce request is answered: `fsync` after its bytes are synced to disk, `interval` at once, "
        "with a sync every durability.interval.ms; `replicated` when min.insync.replicas nodes, two at least, have it "
        "in memory.",
        allowed=("fsync", "interval", "replicated"), node_name="durability",
    ),
    _define(
        "durability.interval.ms", ConfigType.LONG, "1000",
        "How often a topic with durability `interval` is synced: the most that a power failure can lose.",
        lowest=1, highest=3_600_000, node_name="durability.interval.ms",
    ),
    _define(
        "file.delete.delay.ms", ConfigType.LONG, "0",
        "How long the files of a segment stay on disk, unread, after retention, a deletion of records or of the topic "
        "has retired it; without room on the disk they go at once.",
        lowest=0, node_name="log.segment.delete.delay.ms",
    ),
    _define(
        "flush.messages", ConfigType.LONG, str(LONG_MAX),
        "How many records may be unsynced: with any limit every record is synced before it is answered, as with the "
        "durability `fsync`.",
        lowest=1, node_name="log.flush.interval.messages",
    ),
    _define(
        "flush.ms", ConfigType.LONG, str(LONG_MAX),
        "How long a record may be unsynced: the shorter of this and durability.interval.ms holds; with the durability "
        "`fsync` none is.",
        lowest=0, node_name="log.flush.interval.ms",
    ),
    _define(
        "follower.replication.throttled.replicas", ConfigType.LIST, "",
        "Replicas whose fetching is throttled during a reassignment.", idle_because=_ONE_REPLICA,
    ),
    _define(
        "index.interval.bytes", ConfigType.INT, "4096",
        "How many bytes of log lie between two entries of the offset index; the node's own setting, "
        "`[storage] index_interval_bytes`, holds for all topics.",
        lowest=0, node_name="log.index.interval.bytes",
    ),
    _define(
        "leader.replication.throttled.replicas", ConfigType.LIST, "",
        "Replicas whose serving is throttled during a reassignment.", idle_because=_ONE_REPLICA,
    ),
    _define(
        "max.compaction.lag.ms", ConfigType.LONG, str(LONG_MAX),
        "How long a record may stay uncompacted.",
        lowest=1, node_name="log.cleaner.max.compaction.lag.ms",
    ),
    _define(
        "max.message.bytes", ConfigType.INT, "1048588",
        "The largest record batch that is taken, in bytes, as it is sent (after compression).",
        lowest=0, node_name="message.max.bytes",
    ),
    _define(
        "message.timestamp.after.max.ms", ConfigType.LONG, "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock.",
        lowest=0, node_name="log.message.timestamp.after.max.ms",
    ),
    _define(
        "message.timestamp.before.max.ms", ConfigType.LONG, str(LONG_MAX),
        "How far a record's timestamp may lie behind the broker's clock.",
        lowest=0, node_name="log.message.timestamp.before.max.ms",
    ),
    _define(
        "message.timestamp.type", ConfigType.STRING, "CreateTime",
        "Whose clock dates a record: its producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        allowed=("CreateTime", "LogAppendTime"), node_name="log.message.timestamp.type",
    ),
    _define(
        "min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5",
        "Which share of a log must be uncompacted before compaction starts.",
        lowest=0, highest=1, node_name="log.cleaner.min.cleanable.ratio",
    ),
    _define(
        "min.compaction.lag.ms", ConfigType.LONG, "0",
        "How long a record stays uncompacted at least.",
        lowest=0, node_name="log.cleaner.min.compaction.lag.ms",
    ),
    _define(
        "min.insync.replicas", ConfigType.INT, "1",
        "How many replicas must hold a record before a producer with acks=all is answered. Not set: half of the "
        "replicas of the topic, rounded up, so two of three.",
        lowest=1, node_name="min.insync.replicas",
    ),
    _define(
        "penstock.delivery.headers", ConfigType.BOOLEAN, "true",
        "Whether records from Kafka producers are searched for the headers `penstock-delay-ms` and "
        "`penstock-deliver-at`, and delivered when these say. Compressed batches have to be opened for it.",
        node_name="penstock.delivery.headers",
    ),
    _define(
        "penstock.record.check", ConfigType.BOOLEAN, "true",
        "Whether the records of every batch from a Kafka producer are looked at before it is taken. With false they "
        "are taken unseen, and a batch whose inside is broken stops its readers.",
        node_name="penstock.record.check",
    ),
    _define(
        "preallocate", ConfigType.BOOLEAN, "false",
        "Whether a segment's file is made at its full size: files grow as they are written.",
        node_name="log.preallocate",
    ),
    _define(
        "queue.delete.acked", ConfigType.BOOLEAN, "false",
        "Whether messages are deleted when every queue of the topic has finished them; otherwise they stay until "
        "retention, and can be replayed. Consumer groups do not count.",
        node_name="queue.delete.acked",
    ),
    _define(
        "retention.after.archive", ConfigType.BOOLEAN, "false",
        "Whether retention removes only what the topic's archive has, which it hears from the positions of the group "
        "retention.archive.group.",
        node_name="log.retention.after.archive",
    ),
    _define(
        "retention.archive.group", ConfigType.STRING, "penstock-archive",
        "The group whose positions say how far the topic is archived; they do not expire.",
        node_name="log.retention.archive.group",
    ),
    _define(
        "retention.bytes", ConfigType.LONG, "-1",
        "How large a partition may grow before its oldest segments are retired; -1 for no limit.",
        lowest=-1, node_name="log.retention.bytes",
    ),
    _define(
        "retention.ms", ConfigType.LONG, str(_WEEK_MS),
        "How long records are kept before their segment is retired; -1 for ever.",
        lowest=-1, node_name="log.retention.ms",
    ),
    _define(
        "segment.bytes", ConfigType.INT, str(64 * 1024 * 1024),
        "The size at which a new segment is begun, in bytes.",
        lowest=_SEGMENT_BYTES_MIN, node_name="log.segment.bytes",
    ),
    _define(
        "segment.index.bytes", ConfigType.INT, str(10 * 1024 * 1024),
        "The largest size of a segment's offset index: a new segment is begun before it would be larger.",
        lowest=4, node_name="log.index.size.max.bytes",
    ),
    _define(
        "segment.jitter.ms", ConfigType.LONG, "0",
        "By how much the age at which a new segment is begun may vary.",
        lowest=0, node_name="log.roll.jitter.ms",
    ),
    _define(
        "segment.ms", ConfigType.LONG, str(_WEEK_MS),
        "The age at which a new segment is begun, so that retention can retire the old one.",
        lowest=1, node_name="log.roll.ms",
    ),
    _define(
        "unclean.leader.election.enable", ConfigType.BOOLEAN, "false",
        "Whether a replica that lacks acknowledged records may become leader.",
        node_name="unclean.leader.election.enable", idle_because=_ONE_REPLICA,
    ),
)  # fmt: skip

DEFINITIONS: Final[Mapping[str, ConfigDefinition]] = {each.name: each for each in _DEFINITION_LIST}

# Legal values whose promise is not kept here: taking them would be a lie, so they are refused. Nowhere else.
_NOT_BUILT: Final[Mapping[tuple[str, str], str]] = {
    ("preallocate", "True"): "preallocate=true is refused: files of segments grow as they are written, use false",
}
# Settings with one value that is true.
_ONLY: Final[Mapping[str, str]] = {
    "compression.lz4.level": "lz4 has one level here, the fast one that Kafka has by default",
    "index.interval.bytes": "the node's own setting, [storage] index_interval_bytes, holds for all topics",
}


# What they are without being set depends on the topic; the default above is what Kafka's clients are shown.
_UNSET: Final = frozenset({"min.insync.replicas"})


class TopicConfig(msgspec.Struct, frozen=True):
    """The settings that the broker acts on, typed. -1 means no limit."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    durability: str
    durability_interval_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    # None: it follows from how many replicas there are.
    min_insync_replicas: int | None
    penstock_delivery_headers: bool
    penstock_record_check: bool
    queue_delete_acked: bool
    retention_after_archive: bool
    retention_archive_group: str
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_synced(self) -> bool:
        """A reply waits for the disk. Who limits the number of unsynced records has none."""
        return self.durability == "fsync" or self.flush_messages < LONG_MAX

    @property
    def sync_interval_ms(self) -> int:
        """Within which a record is synced whose reply did not wait for it."""
        return min(self.durability_interval_ms, max(1, self.flush_ms))

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def make_topic_config(overrides: Mapping[str, str], node_defaults: Mapping[str, str] | None = None) -> TopicConfig:
    """Never refuses: text that no longer passes (a newer node wrote it) gives way to what stands below it."""
    defaults = node_defaults or {}

    def effective(name: str) -> ConfigValue | None:
        definition = DEFINITIONS[name]
        for text in (overrides.get(name), defaults.get(name)):
            if text is not None and not isinstance(value := definition.parse(text), ConfigProblem):
                return value
        return None if name in _UNSET else cast(ConfigValue, definition.parse(definition.default))

    return convert({field: effective(field.replace("_", ".")) for field in TopicConfig.__struct_fields__}, TopicConfig)


def validate(overrides: Mapping[str, str | None]) -> list[ConfigProblem]:
    """Every problem at once, in the order of the names, so that one round of corrections is enough."""
    problems: list[ConfigProblem] = []
    for name in sorted(overrides):
        problem = _check(name, overrides[name])
        if problem is not None:
            problems.append(problem)
    return problems or contradictions(overrides)


def contradictions(overrides: Mapping[str, str | None]) -> list[ConfigProblem]:
    """Settings that are legal each by itself, and not together."""
    return [problem for problem in (_lags(overrides), _memory_alone(overrides)) if problem is not None]


def _lags(overrides: Mapping[str, str | None]) -> ConfigProblem | None:
    lowest, highest = (_number(overrides, name) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"))
    if lowest <= highest:
        return None
    reason = f"min.compaction.lag.ms is {lowest}, more than max.compaction.lag.ms, which is {highest}"
    return ConfigProblem("min.compaction.lag.ms", reason)


def _memory_alone(overrides: Mapping[str, str | None]) -> ConfigProblem | None:
    """What is in the memory of one node alone is nothing that anybody should be promised."""
    minimum = _number(overrides, "min.insync.replicas")
    if overrides.get("durability") != "replicated" or minimum >= _MEMORIES_MIN:
        return None
    reason = (
        f"durability=replicated needs min.insync.replicas of at least {_MEMORIES_MIN}, and it is {minimum}: "
        "raise that, or use durability=fsync"
    )
    return ConfigProblem("durability", reason)


def warn_of_minimum(overrides: Mapping[str, str | None], replication: int) -> str | None:
    """Of a topic with so many replicas. It is taken, as in Kafka: somebody may add replicas later."""
    minimum = _number(overrides, "min.insync.replicas")
    if minimum <= replication:
        return None
    return (
        f"min.insync.replicas is {minimum}, and the topic has a replication factor of {replication}: acks=all gets "
        f"NOT_ENOUGH_REPLICAS until it is {replication} or less, or there are {minimum} replicas"
    )


def _number(overrides: Mapping[str, str | None], name: str) -> int:
    definition = DEFINITIONS[name]
    value = definition.parse(overrides.get(name) or definition.default)
    return value if isinstance(value, int) else int(definition.default)


def _check(name: str, text: str | None) -> ConfigProblem | None:
    value = read_value(DEFINITIONS, name, text, kind="a topic setting")
    if isinstance(value, ConfigProblem):
        return value
    default = DEFINITIONS[name].default
    if name in _ONLY and value != DEFINITIONS[name].parse(default):
        return ConfigProblem(name, f"{name}={value} is refused: {_ONLY[name]}, use {default}")
    for word in value if isinstance(value, tuple) else (value,):
        reason = _NOT_BUILT.get((name, str(word)))
        if reason is not None:
            return ConfigProblem(name, reason)
    return None


def is_refused(name: str) -> bool:
    """Whether some values of the setting are refused because nothing would come of them."""
    return name in _ONLY or any(refused == name for refused, _ in _NOT_BUILT)


def in_force(overrides: Mapping[str, str]) -> dict[str, str]:
    """Of what is stored, what counts: an earlier version took values that nothing came of."""
    return {name: text for name, text in overrides.items() if name not in DEFINITIONS or _check(name, text) is None}
