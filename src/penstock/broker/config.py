"""The broker's own section of the configuration."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

# The protocol's 16 bits.
REPLICATION_MAX: Final = 32_767


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # As Kafka's auto.create.topics.enable and num.partitions.
    auto_create_topics: bool = True
    default_partitions: int = 1
    # As Kafka's default.replication.factor; 0: three, or as many as there are nodes.
    default_replication: Annotated[int, msgspec.Meta(ge=0, le=REPLICATION_MAX)] = 0
    # Topic settings that differ from the built-in defaults, by Kafka's names: {"retention.ms" = "86400000"}.
    topic_defaults: dict[str, str] = {}
    # As Kafka's fetch.max.bytes for a broker: what one Fetch reply holds at the most. Kafka's is 55 MiB; it is read on
    # the loop, at about 0.1 ms a MiB, and while it is sent the client has nothing to do.
    fetch_bytes_max: int = 8 * 1024 * 1024
    # A Fetch is parked no longer than this, whatever it asks for.
    fetch_wait_ms_max: int = 60_000
    checkpoint_ms: int = 5_000
    retention_check_ms: int = 30_000
    # How often a log is looked for that needs compaction, as Kafka's log.cleaner.backoff.ms.
    cleaner_check_ms: int = 15_000
    # How often it is looked whether the logs are due to be read for rot: `[storage] scrub_interval_ms`.
    scrub_check_ms: int = 60_000
    free_space_check_ms: int = 1_000
    # For how long it can be told of every message what happened to it: compaction of `__consumer_offsets` and of the
    # logs of schedules leaves younger records alone, and journals of queues are kept for so long, but none of them
    # longer than so much.
    trace_horizon_ms: int = 24 * 3_600_000
    trace_bytes_max: int = 1024 * 1024 * 1024
    # How often a partition that a failed sync took offline is read again.
    recovery_retry_ms: int = 5_000
