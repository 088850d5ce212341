"""A topic as this node serves it: what the metadata says of it, and a shell for each partition that is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.partition.role import Role
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.not_here import NotHere, no_partition, not_led
from penstock.cluster.catalog.topic_image import Topic
from penstock.domain.config.topic import TopicConfig
from penstock.domain.security import access
from penstock.domain.security.access import Resource
from penstock.domain.topic_rules import COORDINATOR_TOPICS

# Of the partitions that others lead, in one sentence.
TOLD_MAX: Final = 3


class ServedTopic:
    __slots__ = ("_by_index", "_role_elsewhere", "config", "description", "is_coordinators", "resource", "shells")

    def __init__(
        self,
        description: Topic,
        config: TopicConfig,
        shells: list[PartitionShell],
        role_elsewhere: Callable[[bytes, int], Role],
    ) -> None:
        """`role_elsewhere` tells who leads a partition that this node has no replica of."""
        self.description = description
        self.config = config
        # Of the partitions that this node has, whoever leads them, in their order.
        self.shells = shells
        self._role_elsewhere = role_elsewhere
        self._by_index = {shell.index: shell for shell in shells}
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

    @property
    def partition_count(self) -> int:
        return self.description.partition_count

    def has_partition(self, index: int) -> bool:
        """On some node."""
        return 0 <= index < self.description.partition_count

    def find(self, index: int) -> PartitionShell | NotHere:
        """A partition that this node leads."""
        shell = self._by_index.get(index)
        if shell is not None and shell.is_leading:
            return shell
        if not self.has_partition(index):
            return no_partition(self.name, index)
        return not_led(self.name, index, self._role_elsewhere(self.topic_id, index) if shell is None else shell.role)

    def shell(self, index: int) -> PartitionShell | None:
        """Of a partition that this node has a replica of, whoever leads it."""
        return self._by_index.get(index)

    @property
    def is_whole(self) -> bool:
        """This node leads all of it."""
        return len(self.shells) == self.partition_count and all(shell.is_leading for shell in self.shells)

    def why_not_whole(self) -> str | None:
        """Why this node cannot speak for the whole topic: which of its partitions others lead. None: it leads all."""
        if self.is_whole:
            return None
        found = (self.find(index) for index in range(self.partition_count))
        away = [each.detail for each in found if isinstance(each, NotHere)]
        more = f", and {len(away) - TOLD_MAX:,} more" if len(away) > TOLD_MAX else ""
        return f"this node does not lead all of topic {self.name!r}: {'; '.join(away[:TOLD_MAX])}{more}"

    def led(self) -> list[PartitionShell]:
        """All that this node leads."""
        return [shell for shell in self.shells if shell.is_leading]
