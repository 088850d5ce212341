"""What a client was asked about and its broker does not have."""

from __future__ import annotations

from penstock.net.errors import ClientError


class TopicMissingError(ClientError):
    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} does not exist")


class PartitionMissingError(ClientError):
    def __init__(self, topic: str, partition: int, partition_count: int) -> None:
        last = partition_count - 1
        super().__init__(f"topic {topic!r} has no partition {partition} (it has 0 to {last})")
