"""What became of the lines that `penstock produce` sent: how many, and where they are.

Memory is bounded: a partition has one entry, and messages are named one by one up to MESSAGES_NAMED_MAX.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cli.output import counted
from penstock.client.kafka.producer import UNKNOWN_OFFSET, Acknowledged
from penstock.domain.queue.receipt import MessageId, write_message_id

# A file of millions of lines has offsets enough in `partitions`; whoever wants ids wants those of a few messages.
MESSAGES_NAMED_MAX: Final = 10_000
# More places than these are no sentence.
PARTITIONS_TOLD_MAX: Final = 4
NO_TOPIC_ID: Final = bytes(16)


class Place(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    # None: the cluster has no topic ids, so there is no id of ours.
    id: str | None


class PartitionTally(msgspec.Struct):
    """From the first to the last offset there may be messages of others too."""

    partition: int
    message_count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def sentence(self) -> str:
        if self.first_offset is None or self.last_offset is None:
            return f"partition {self.partition}"
        if self.first_offset == self.last_offset:
            return f"partition {self.partition}, offset {self.first_offset}"
        return f"partition {self.partition}, offsets {self.first_offset} to {self.last_offset}"


class ProduceTally:
    def __init__(self, topic: str, *, is_acknowledged: bool = True, is_delayed: bool = False) -> None:
        self.topic = topic
        self.topic_id = NO_TOPIC_ID
        self.message_count = 0
        self.refusal: str | None = None
        self._is_acknowledged = is_acknowledged
        self._is_delayed = is_delayed
        self._partitions: dict[int, PartitionTally] = {}
        self._messages: list[Place] = []

    def add(self, outcome: Acknowledged) -> None:
        count, partition = outcome.batch.record_count, outcome.batch.partition
        self.message_count += count
        found = self._partitions.setdefault(partition, PartitionTally(partition))
        found.message_count += count
        # A delayed message gets its offset when its time comes.
        if outcome.base_offset == UNKNOWN_OFFSET or self._is_delayed:
            return
        last = outcome.base_offset + count - 1
        # Replies may overtake each other.
        found.first_offset = (
            outcome.base_offset if found.first_offset is None else min(outcome.base_offset, found.first_offset)
        )
        found.last_offset = last if found.last_offset is None else max(last, found.last_offset)
        room = max(0, MESSAGES_NAMED_MAX - len(self._messages))
        self._messages += [
            Place(partition, offset, self._id(partition, offset))
            for offset in range(outcome.base_offset, outcome.base_offset + min(count, room))
        ]

    def _id(self, partition: int, offset: int) -> str | None:
        if self.topic_id == NO_TOPIC_ID:
            return None
        return write_message_id(MessageId(self.topic_id, partition, offset))

    def sentence(self) -> str:
        messages = counted(self.message_count, "message")
        if not self._is_acknowledged:
            return f"{messages} sent, unacknowledged (acks=0)"
        if self._is_delayed and self.message_count:
            return f"{messages} acknowledged, to be delivered later: penstock schedule pending --topic {self.topic}"
        places = [found.sentence() for found in self._by_partition()]
        if not places:
            return f"{messages} acknowledged"
        if len(places) > PARTITIONS_TOLD_MAX:
            return f"{messages} acknowledged in {len(places):,} partitions"
        return f"{messages} acknowledged: {'; '.join(places)}"

    def document(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "message_count": self.message_count,
            "is_acknowledged": self._is_acknowledged,
            "is_delayed": self._is_delayed,
            "partitions": self._by_partition(),
            "messages": sorted(self._messages, key=lambda place: (place.partition, place.offset)),
            "are_all_named": len(self._messages) == self.message_count,
        }

    def _by_partition(self) -> list[PartitionTally]:
        return [self._partitions[partition] for partition in sorted(self._partitions)]
