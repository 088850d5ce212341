"""The share groups of this node: their members, and the queues behind the topics that they read.

Members are kept with the other groups (`group/shell`). For every topic of a group there is one queue (topic, group),
made when a member is first given a partition of it, so that `latest` means from then on. What becomes of messages is
the business of the queues alone; they stay when the members go, and end with the group or when their offsets are
deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.group.share_shell import UNAVAILABLE
from penstock.broker.queue.node import NodeQueues, NoSuchTopic
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.site import Site
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.topic_image import Change, GroupConfigChanged
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.store.protocol import StoreError
from penstock.domain.group.values import GroupError
from penstock.domain.queue.commands import MoveStart
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions, check_group
from penstock.domain.share.machine import (
    ShareAlive,
    ShareCreate,
    ShareDelete,
    ShareDone,
    ShareGroup,
    ShareGroupConfig,
    ShareHeartbeat,
    ShareRefused,
)
from penstock.domain.share.settings import SHARE_ATTRIBUTE, lock_ms, may_renew, member_config, queue_options

log = get_logger("share groups")

NOT_FOUND: Final = ShareRefused(GroupError.GROUP_ID_NOT_FOUND, "there is no such share group")


class ShareStart(msgspec.Struct, frozen=True):
    """Where a group is in one partition: everything below `start_offset` is finished."""

    start_offset: int
    # Not finished yet, whoever has it.
    lag: int


class ShareGroups:
    def __init__(self, site: Site, groups: GroupCoordinator, queues: NodeQueues, catalog: TopicCatalog) -> None:
        self._groups = groups
        self._catalog = catalog
        self._config = site.config.share_groups
        self._tasks = site.tasks
        self.queues = queues
        groups.configure_shares(self._config_of)
        catalog.on_change(self._on_change, Part.SHARE_GROUPS)

    async def start(self) -> None:
        """Settings may have been changed a moment before the node went down."""
        for definition in self.queues.all():
            if SHARE_ATTRIBUTE in definition.options.attributes:
                await self._follow_settings(definition)

    def _config_of(self, group_id: str) -> ShareGroupConfig:
        return member_config(self._config, self._catalog.group_config(group_id))

    # Members

    async def heartbeat(self, group_id: str, command: ShareHeartbeat) -> ShareAlive | ShareRefused:
        shell = await self._groups.shares_of(group_id)
        if isinstance(shell, ShareRefused):
            return shell
        problem = check_group(group_id)
        if problem is not None:
            return ShareRefused(GroupError.INVALID_REQUEST, problem)
        reply = await shell.submit(group_id, command)
        if isinstance(reply, ShareAlive) and reply.assignment:
            for topic_id in sorted({topic_id for topic_id, _ in reply.assignment}):
                topic = self.queues.broker.topic_by_id(topic_id)
                if topic is not None and await self.queue(QueueName(topic.name, group_id)) is None:
                    return UNAVAILABLE
        assert not isinstance(reply, ShareDone), "a heartbeat is answered or refused"
        return reply

    async def get(self, group_id: str) -> ShareGroup | ShareRefused:
        shell = await self._groups.shares_of(group_id) if self._groups.has_any() else NOT_FOUND
        if isinstance(shell, ShareRefused):
            return shell
        return shell.refusal() or shell.get(group_id) or NOT_FOUND

    def is_member(self, group_id: str, member_id: str) -> bool:
        """As far as this node can tell: who is in a group is known where its coordinator is."""
        if self._groups.has_any() and not self._groups.coordinates(group_id):
            return True
        found = self._groups.share_group(group_id)
        return found is not None and found.is_current(member_id)

    def all(self) -> list[tuple[str, ShareGroup]] | ShareRefused:
        """Of this node: clients ask every one."""
        listed: list[tuple[str, ShareGroup]] = []
        for shell in self._groups.share_shells():
            refused = shell.refusal()
            if refused is not None:
                return refused
            found = ((group_id, shell.get(group_id)) for group_id in shell.group_ids())
            listed += [(group_id, group) for group_id, group in found if group is not None]
        return listed

    async def create(self, group_id: str) -> ShareRefused | None:
        """A group without members, unless it is there. None: done."""
        shell = await self._groups.shares_of(group_id)
        if isinstance(shell, ShareRefused):
            return shell
        reply = await shell.submit(group_id, ShareCreate())
        return reply if isinstance(reply, ShareRefused) else None

    async def delete(self, group_id: str) -> ShareRefused | None:
        """The group and what it knew of messages; the messages stay. None: done."""
        shell = await self._groups.shares_of(group_id)
        if isinstance(shell, ShareRefused):
            return shell
        found = shell.get(group_id)
        if found is None:
            return NOT_FOUND
        if found.members:
            return ShareRefused(GroupError.NON_EMPTY_GROUP)
        for definition in self.queues_of(group_id):
            if SHARE_ATTRIBUTE in definition.options.attributes:
                await self.queues.delete(definition.name)
        reply = await shell.submit(group_id, ShareDelete())
        return reply if isinstance(reply, ShareRefused) else None

    # Queues

    def lock_ms(self, group_id: str) -> int:
        return lock_ms(self._catalog.group_config(group_id))

    def may_renew(self, group_id: str) -> bool:
        return may_renew(self._catalog.group_config(group_id))

    async def queue(self, name: QueueName) -> QueueDefinition | None:
        """Made at need by the group's settings; None: not possible now, or the topic is gone."""
        found = self.queues.get(name)
        if found is not None:
            return found
        try:
            return await self.queues.define(name, queue_options(self._catalog.group_config(name.group)))
        except (NoSuchTopic, StoreError) as error:
            log.error("queue of a share group not made", topic=name.topic, group=name.group, error=str(error))
            return None

    def queues_of(self, group_id: str) -> list[QueueDefinition]:
        return [each for each in self.queues.all() if each.name.group == group_id]

    # Offsets

    async def where(self, name: QueueName) -> dict[int, ShareStart | QueueUnavailable] | None:
        """By partition; None: the group has nothing to do with the topic."""
        if self.queues.get(name) is None:
            return None
        found: dict[int, ShareStart | QueueUnavailable] = {}
        for shell in await self.queues.shells(name):
            queue = shell.queue(name.group)
            if queue is not None:
                cursor = max(queue.cursor(), shell.partition.log_start)
                lag = max(0, shell.partition.readable_end - cursor) + queue.in_flight_count
                start = ShareStart(max(queue.finished_below, shell.partition.log_start), lag)
                found[shell.partition.index] = shell.refuse_look() or start
        return found

    async def move(self, name: QueueName, partition: int, start_offset: int) -> bool:
        """False: not possible now. What was in flight is forgotten."""
        if await self.queue(name) is None:
            return False
        shell = await self._shell(name, partition)
        if shell is None:
            return False
        offset = min(max(start_offset, shell.partition.log_start), shell.partition.readable_end)
        return not isinstance(await shell.submit(name.group, MoveStart(offset)), QueueUnavailable)

    async def forget(self, name: QueueName) -> bool:
        """False: there was nothing to forget."""
        return await self.queues.delete(name)

    async def _shell(self, name: QueueName, partition: int) -> QueueShell | None:
        """None: not led here, or there is none."""
        shells = await self.queues.shells(name)
        return next((shell for shell in shells if shell.partition.index == partition), None)

    # Settings

    def _on_change(self, change: Change) -> None:
        if isinstance(change, GroupConfigChanged):
            for shell in self._groups.share_shells():
                shell.configure(change.group)
            self._tasks.start("share group settings", self._follow_group(change.group))

    async def _follow_group(self, group_id: str) -> None:
        for definition in self.queues_of(group_id):
            if SHARE_ATTRIBUTE in definition.options.attributes:
                await self._follow_settings(definition)

    async def _follow_settings(self, definition: QueueDefinition) -> None:
        wanted = queue_options(self._catalog.group_config(definition.name.group))
        change = _keeping_the_start(wanted)
        if change(definition.options) != definition.options:
            await self.queues.change(definition.name, change)


def _keeping_the_start(wanted: QueueOptions) -> Callable[[QueueOptions], QueueOptions]:
    """Where a queue began is past."""
    return lambda options: msgspec.structs.replace(wanted, start=options.start)
