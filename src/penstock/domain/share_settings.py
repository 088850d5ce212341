"""What a share group's settings (`group_settings`) mean for its queues and for its members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.domain.group_settings import value_of
from penstock.domain.queue_definition import QueueOptions, Start
from penstock.domain.share_group import ShareGroupConfig

# A queue with this attribute was made for a share group and follows the group's settings. Others, made over HTTP or
# SQS and read by a share group too, keep their own.
SHARE_ATTRIBUTE: Final = "kafka.share"


def queue_options(overrides: Mapping[str, str]) -> QueueOptions:
    return QueueOptions(
        lease_ms=lock_ms(overrides),
        deliveries_max=_number("share.delivery.count.limit", overrides),
        in_flight_max=_number("share.partition.max.record.locks", overrides),
        # Kafka's default is to have none.
        dead_letter_topic=str(value_of("errors.deadletterqueue.topic.name", overrides)),
        start=Start(str(value_of("share.auto.offset.reset", overrides))),
        is_committed_only=value_of("share.isolation.level", overrides) == "read_committed",
        attributes={SHARE_ATTRIBUTE: "true"},
    )


def lock_ms(overrides: Mapping[str, str]) -> int:
    return _number("share.record.lock.duration.ms", overrides)


def may_renew(overrides: Mapping[str, str]) -> bool:
    return bool(value_of("share.renew.acknowledge.enable", overrides))


def member_config(config: ShareGroupConfig, overrides: Mapping[str, str]) -> ShareGroupConfig:
    """The node's own, but for what the group has been given."""
    changes = {
        field: _number(name, overrides)
        for field, name in (
            ("session_timeout_ms", "share.session.timeout.ms"),
            ("heartbeat_interval_ms", "share.heartbeat.interval.ms"),
        )
        if name in overrides
    }
    return msgspec.structs.replace(config, **changes) if changes else config


def _number(name: str, overrides: Mapping[str, str]) -> int:
    value = value_of(name, overrides)
    assert isinstance(value, int), name
    return value
