"""How the queues and groups of a partition stand to one message, as `domain/trace/why` wants to know it."""

from __future__ import annotations

from penstock.base.clock import Clock
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.machine import Queue
from penstock.domain.share.settings import SHARE_ATTRIBUTE
from penstock.domain.trace.events import PlaceFacts, TraceEvent
from penstock.domain.trace.why import (
    GroupSituation,
    QueueSituation,
    Reason,
    group_reason,
    nobody_reads,
    queue_reason,
)


class WhyNot:
    def __init__(self, broker: Broker, queues: NodeQueues, groups: GroupCoordinator, clock: Clock) -> None:
        self._broker = broker
        self._queues = queues
        self._groups = groups
        self._clock = clock

    async def reasons(
        self, facts: PlaceFacts, topic: ServedTopic, partition: PartitionShell, events: list[TraceEvent]
    ) -> list[Reason]:
        """`events`: of the message at this place, in order."""
        last = {event.group: event for event in events if event.group}
        found = await self._of_queues(facts, topic, partition, last)
        found += await self._of_groups(facts, topic, partition, last)
        return found or [nobody_reads(facts)]

    async def _of_queues(
        self, facts: PlaceFacts, topic: ServedTopic, partition: PartitionShell, last: dict[str, TraceEvent]
    ) -> list[Reason]:
        definitions = [each for each in self._queues.all() if each.topic_id == topic.topic_id]
        if not definitions:
            return []
        shell = await self._queues.shell(partition)
        if shell.damage.reason is not None:
            # Else it would look as if nobody read the message.
            raise JournalDamagedError(shell.damage.reason)
        reasons: list[Reason] = []
        for definition in sorted(definitions, key=lambda each: each.name):
            queue = shell.queue(definition.name.group)
            if queue is not None and queue.is_open:
                reasons.append(queue_reason(self._queue_situation(facts, shell, queue, definition, last)))
        return reasons

    def _queue_situation(
        self,
        facts: PlaceFacts,
        shell: QueueShell,
        queue: Queue,
        definition: QueueDefinition,
        last: dict[str, TraceEvent],
    ) -> QueueSituation:
        group, offset = definition.name.group, facts.place.offset
        partition, stats = shell.partition, queue.stats()
        is_share_group = SHARE_ATTRIBUTE in definition.options.attributes
        members = self._groups.share_group(group) if is_share_group else None
        return QueueSituation(
            group=group,
            facts=facts,
            config=queue.config,
            now_ms=shell.now_ms(),
            is_share_group=is_share_group,
            is_committed_only=definition.options.is_committed_only,
            view=queue.look_up(offset),
            cursor=queue.cursor(DEFAULT_LANE if facts.lane is None else facts.lane),
            log_start=partition.log_start,
            readable_end=partition.readable_end,
            last_stable_offset=partition.last_stable_offset,
            first_open=_first_open(partition),
            is_paused=stats.is_paused,
            in_flight_count=queue.in_flight_count,
            blocked_count=stats.blocked_count,
            blocked_by=queue.blocker_of(offset),
            waiting_count=len(shell.room(group)),
            holding_count=len(stats.consumers),
            member_count=0 if members is None else len(members.members),
            last_event=last.get(group),
            move_waits_for=self._queues.move_waits_for(shell, group),
        )

    async def _of_groups(
        self, facts: PlaceFacts, topic: ServedTopic, partition: PartitionShell, last: dict[str, TraceEvent]
    ) -> list[Reason]:
        positions = await self._groups.positions_in(topic.name, topic.topic_id, partition.index)
        return [
            group_reason(
                GroupSituation(
                    group=stands.group_id,
                    facts=facts,
                    position=stands.position,
                    pending=stands.pending,
                    member_count=stands.member_count,
                    owner="" if stands.owner is None else f"member {stands.owner[0]} (client {stands.owner[1]})",
                    last_stable_offset=partition.last_stable_offset,
                    log_start=partition.log_start,
                    first_open=_first_open(partition),
                    last_event=last.get(stands.group_id),
                )
            )
            for stands in sorted(positions, key=lambda each: each.group_id)
        ]


def _first_open(partition: PartitionShell) -> tuple[int, int] | None:
    """Of the transaction that began first among those under way: its first offset, and its producer."""
    ongoing = partition.log.transactions.ongoing
    return min(((first, producer_id) for producer_id, first in ongoing.items()), default=None)
