"""What a share group's settings (`group/settings`) mean for its queues and for its members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

import msgspec

from penstock.domain.group.settings import BY_DURATION, DURATION, dead_letter_author, value_of
from penstock.domain.queue.definition import QueueOptions, Start
from penstock.domain.share.machine import ShareGroupConfig

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
        dead_letter_author=dead_letter_author(overrides),
        **_start(str(value_of("share.auto.offset.reset", overrides))),
        copies_dead_letters=bool(value_of("errors.deadletterqueue.copy.record.enable", overrides)),
        is_committed_only=value_of("share.isolation.level", overrides) == "read_committed",
        attributes={SHARE_ATTRIBUTE: "true"},
    )


class _Where(TypedDict, total=False):
    start: Start
    start_ago_ms: int


def _start(text: str) -> _Where:
    if not text.startswith(BY_DURATION):
        return {"start": Start(text)}
    return {"start_ago_ms": duration_ms(text.removeprefix(BY_DURATION))}


def duration_ms(text: str) -> int:
    """Of a duration that was checked."""
    found = DURATION.fullmatch(text)
    assert found is not None, text
    days, hours, minutes, seconds, fraction = (part or "0" for part in found.groups())
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(3, "0"))


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
