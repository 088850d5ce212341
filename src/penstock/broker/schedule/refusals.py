"""Why a schedule does not do what it is asked to: not now, or not before somebody has repaired its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.machine.portions import damaged
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.values import DelayedMessage, NotScheduled
from penstock.broker.topic.not_here import NotHere
from penstock.domain.config.topic import TopicConfig

LOADING: Final = NotScheduled(Refusal.OFFLINE, "the schedule of this partition is being loaded")
LOST: Final = NotScheduled(Refusal.OFFLINE, "the disk did not take the schedule's rows")
RESIGNED: Final = NotScheduled(Refusal.NOT_LEADER, "another node looks after the schedule of this partition")
UNSURE: Final = NotScheduled(Refusal.NOT_LEADER, "another node may look after the schedule of this partition by now")
_UNREADABLE: Final = NotScheduled(Refusal.OFFLINE, "the rows of the schedule cannot be read")


def not_scheduled(found: NotHere) -> NotScheduled:
    refused = found.refusal()
    return NotScheduled(refused.refusal, refused.reason)


def not_loaded(damage: str | None) -> NotScheduled:
    return LOADING if damage is None else NotScheduled(Refusal.DAMAGED, damage)


def refuse_damaged(companion: PartitionShell) -> NotScheduled | None:
    """Nothing of a schedule is served once its log is known to be damaged: which messages it has lost nobody knows."""
    damage = companion.log.damage
    return None if damage is None else NotScheduled(Refusal.DAMAGED, str(damaged(companion, damage.describe())))


def refuse_unreadable(companion: PartitionShell) -> NotScheduled:
    """Of rows that should be there."""
    return refuse_damaged(companion) or _UNREADABLE


def refuse_write(companion: PartitionShell) -> NotScheduled | None:
    if companion.log.failure is not None:
        return NotScheduled(Refusal.OFFLINE, f"the schedule's log is offline: {companion.log.failure}")
    if companion.log.context.is_full:
        return NotScheduled(Refusal.DISK_FULL, "the disk is full")
    return None


def refuse_messages(messages: Sequence[DelayedMessage], config: TopicConfig | None) -> NotScheduled | None:
    """What its topic would not take when the time comes, either."""
    if config is None:
        return NotScheduled(Refusal.OFFLINE, "the topic is gone")
    for message in messages:
        headers = sum(len(name) * 4 + len(value or b"") for name, value in message.headers)
        size_bytes = len(message.key or b"") + len(message.value or b"") + headers
        if size_bytes > config.max_message_bytes:
            reason = f"message of {size_bytes} bytes, max.message.bytes is {config.max_message_bytes}"
            return NotScheduled(Refusal.TOO_LARGE, reason)
        if message.key is None and config.is_compacted:
            return NotScheduled(Refusal.INVALID, "a compacted topic takes no record without a key")
    return None
