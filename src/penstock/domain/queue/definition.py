"""A queue as its owner describes it: which topic, which group, by what rules.

What is here is written in the metadata store and may change at any time; what has become of messages stands in the
journals. A queue that nobody described, of a share group or of a first receive over HTTP, has the defaults.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from penstock.domain.queue.values import BackOff, Ordering, QueueConfig
from penstock.domain.security.access import ANONYMOUS, Principal
from penstock.domain.topic_rules import check_name, is_internal

NAME_CHARACTERS_MAX: Final = 255
DEAD_LETTER_SUFFIX: Final = "-dlq"
LEASE_MS_MAX: Final = 12 * 3_600_000


class Start(StrEnum):
    """Where a new queue begins in a topic that has messages already. Partitions added later begin at 0."""

    EARLIEST = "earliest"
    LATEST = "latest"


class QueueName(msgspec.Struct, frozen=True, order=True):
    topic: str
    group: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.group}"


class QueueOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every field has a default: what is stored is what was asked for."""

    ordering: Ordering = Ordering.NONE
    lease_ms: int = 30_000
    # 0: without end.
    deliveries_max: int = 5
    back_off: BackOff = BackOff()
    in_flight_max: int = 1_000_000
    in_flight_per_consumer_max: int = 1_000_000
    # Where dead letters go. None: `<topic>-dlq`; empty: nowhere, what is rejected or exhausted is finished.
    dead_letter_topic: str | None = None
    # Who named that topic, and must be allowed to write there when a letter goes. What a version stored that did not
    # note it is nobody's.
    dead_letter_author: Principal = ANONYMOUS
    # What outlived its time to live becomes a dead letter too.
    keeps_expired: bool = False
    # Kafka's share groups may want only headers there: the message itself is still in its topic.
    copies_dead_letters: bool = True
    start: Start = Start.EARLIEST
    # Instead of `start`: with what is no older than this when the queue is made.
    start_ago_ms: int | None = None
    # Messages of aborted transactions, and of open ones, are not delivered.
    is_committed_only: bool = True
    # What doors remember with the queue, by their own names (SQS: attributes and tags).
    attributes: dict[str, str] = {}

    def machine_config(self, topic: str) -> QueueConfig:
        return QueueConfig(
            ordering=self.ordering,
            lease_ms=self.lease_ms,
            lease_ms_max=LEASE_MS_MAX,
            deliveries_max=self.deliveries_max,
            back_off=self.back_off,
            in_flight_max=self.in_flight_max,
            in_flight_per_consumer_max=self.in_flight_per_consumer_max,
            has_dead_letters=self.dead_letters_of(topic) is not None,
            keeps_expired=self.keeps_expired,
        )

    def dead_letters_of(self, topic: str) -> str | None:
        """The topic that they go to; None: they are dropped."""
        if self.dead_letter_topic is None:
            return f"{topic}{DEAD_LETTER_SUFFIX}"
        # Not to the queue's own topic, though a share group of several topics or an older version may name it: what
        # failed would come again without end.
        return self.dead_letter_topic if self.dead_letter_topic not in ("", topic) else None


class QueueDefinition(msgspec.Struct, frozen=True):
    name: QueueName
    # A topic made again under the same name has none of the queues of the old one.
    topic_id: bytes
    options: QueueOptions
    created_ms: int
    changed_ms: int
    # Of the topic when the queue was made: it begins at 0 in those that came later.
    partition_count: int
    # By partition: delayed messages from before these places of its schedule were pending when the queue was purged.
    hidden_below: tuple[int, ...] = ()


def check_options(options: QueueOptions, topic: str) -> str | None:
    """What is wrong with them for a queue on this topic, in a sentence."""
    if not 0 < options.lease_ms <= LEASE_MS_MAX:
        return f"lease_ms is {options.lease_ms}, from 1 to {LEASE_MS_MAX} is allowed"
    if options.deliveries_max < 0:
        return f"deliveries_max is {options.deliveries_max}; 0 stands for no limit"
    if options.in_flight_max < 1 or options.in_flight_per_consumer_max < 1:
        return "a queue without room for one message in flight delivers nothing"
    back_off = options.back_off
    if back_off.initial_ms < 0 or back_off.ms_max < 0 or not 0 <= back_off.jitter_share <= 1:
        return "a back-off has waits from 0 on and a jitter_share from 0 to 1"
    return check_dead_letter_topic(options.dead_letter_topic, topic) if options.dead_letter_topic else None


def check_dead_letter_topic(topic: str, source: str | None = None) -> str | None:
    """Of one that was named, for a queue on the topic `source`."""
    if topic == source:
        return f"{topic!r} cannot be its own dead-letter topic: what failed would come again without end"
    if is_internal(topic):
        # A record of somebody else's in a coordinator's memory leaves it without one.
        return f"{topic!r} is the broker's own: dead letters cannot go there"
    return check_name(topic)


def check_group(group: str) -> str | None:
    if not group or len(group) > NAME_CHARACTERS_MAX:
        return f"the name of a group has 1 to {NAME_CHARACTERS_MAX} characters, this one {len(group)}"
    return None
