"""A topic as this node serves it: what the metadata says of it, and a shell for each partition."""

from __future__ import annotations

from penstock.broker.partition.shell import PartitionShell
from penstock.cluster.catalog.topic_image import Topic
from penstock.domain.config.topic import TopicConfig
from penstock.domain.security import access
from penstock.domain.security.access import Resource
from penstock.domain.topic_rules import COORDINATOR_TOPICS


class ServedTopic:
    __slots__ = ("config", "description", "is_coordinators", "partitions", "resource")

    def __init__(self, description: Topic, config: TopicConfig, partitions: list[PartitionShell]) -> None:
        self.description = description
        self.config = config
        self.partitions = partitions
        # Made once: every request asks about it.
        self.resource: Resource = access.topic(description.name)
        # A coordinator's memory: a record of somebody else's would leave it without one.
        self.is_coordinators = description.name in COORDINATOR_TOPICS

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def topic_id(self) -> bytes:
        return self.description.topic_id

    def partition(self, index: int) -> PartitionShell | None:
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        return None
