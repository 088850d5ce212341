"""All groups of one coordinator partition: found by id, made at need, forgotten when nothing is left of them.

The same contract as `Group`, with the group's id in front, and for all groups together:

    next_deadline_ms()   the earliest of all, or earlier: being woken in vain costs little, finding out costs more
    tick(now_ms)         the decisions of the groups that were due; their records are still to be applied and stored
    end_transaction()    the decisions of every group in which offsets wait for that transaction, a portion at a time

Offsets of a transaction are taken only with a guard that still holds: `guards`, see `guards`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from penstock.domain.group.commands import (
    CommitTransactionOffsets,
    ConsumerHeartbeat,
    Decision,
    EndTransaction,
    GroupCommand,
    Join,
    Load,
    Refused,
    Sync,
    Tick,
    Unload,
)
from penstock.domain.group.guards import TransactionGuards
from penstock.domain.group.machine import Group
from penstock.domain.group.records import GroupRecord, OffsetStored, Removed, pending_producer
from penstock.domain.group.sizes import GroupSizes, size_problem
from penstock.domain.group.values import GroupConfig, GroupError, TopicFacts


class GroupTable:
    def __init__(
        self, config: GroupConfig, topics: TopicFacts, config_of: Callable[[str], GroupConfig] | None = None
    ) -> None:
        """`config_of` tells what holds for one group, which may have settings of its own."""
        self._config_of = config_of or (lambda _group_id: config)
        self._topics = topics
        self._groups: dict[str, Group] = {}
        # Alarms, the earliest on top. A group has at most one that counts, in `_armed`; others are skipped when met.
        self._alarms: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}
        # Where offsets wait for a producer's transaction.
        self._producer_groups: dict[int, dict[str, None]] = {}
        self.guards = TransactionGuards()
        self.sizes = GroupSizes()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._groups))

    def items(self) -> Iterator[tuple[str, Group]]:
        """In no order that means anything: for who looks at some of a million."""
        return iter(self._groups.items())

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def configure(self, group_id: str) -> None:
        """Its settings have changed. Members that have been promised a time keep it until they are heard again."""
        group = self._groups.get(group_id)
        if group is not None:
            group.configure(self._config_of(group_id))

    def topic_names(self) -> list[str]:
        """The topics of which offsets are kept, anywhere."""
        return sorted({name for group in self._groups.values() for name in group.offsets.topic_names()})

    def decide(self, group_id: str, command: GroupCommand, now_ms: int) -> Decision:
        if type(command) is CommitTransactionOffsets and not self.guards.holds(command.producer_id, command.guard):
            return Decision((), Refused(GroupError.INVALID_TXN_STATE))
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(self._config_of(group_id), self._topics)
        refused = self._size_problem(group_id, group, command)
        decision = group.decide(command, now_ms) if refused is None else Decision((), refused)
        if not decision.records:
            self._settle(group_id, group)
        return decision

    def _size_problem(self, group_id: str, group: Group, command: GroupCommand) -> Refused | None:
        if not isinstance(command, Join | Sync | ConsumerHeartbeat):
            return None
        return size_problem(
            command,
            self._config_of(group_id),
            held_bytes=group.replaced_bytes(command),
            group_bytes=group.member_bytes,
            all_bytes=self.sizes.bytes,
        )

    def apply(self, group_id: str, record: GroupRecord) -> None:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(self._config_of(group_id), self._topics)
        if type(record) is OffsetStored:
            # The most frequent record by far; it can end nothing and arms no alarm.
            group.offsets.apply(record)
            if record.producer_id >= 0:
                self._producer_groups.setdefault(record.producer_id, {})[group_id] = None
            return
        group.apply(record)
        if type(record) is Removed and (producer_id := pending_producer(record.key)) is not None:
            self._forget_producer(group_id, group, producer_id)
        self._settle(group_id, group)

    def _forget_producer(self, group_id: str, group: Group, producer_id: int) -> None:
        group_ids = self._producer_groups.get(producer_id)
        if group_ids is not None and not group.offsets.has_pending(producer_id):
            group_ids.pop(group_id, None)
            if not group_ids:
                del self._producer_groups[producer_id]

    def end_transaction(self, command: EndTransaction, now_ms: int) -> Iterator[tuple[str, Decision]]:
        """Also where nothing waits, and whoever asks about that transaction now is refused. The caller applies and
        stores each before it asks for the next; others may have their turn in between."""
        self.guards.end(command.producer_id)
        for group_id in sorted(self._producer_groups.get(command.producer_id, ())):
            group = self._groups.get(group_id)
            # Nothing is added meanwhile: no guard holds that was begun before.
            for _ in range(0 if group is None else group.offsets.ending_portions(command.producer_id)):
                if self._groups.get(group_id) is group:
                    yield group_id, self.decide(group_id, command, now_ms)

    def next_deadline_ms(self) -> int | None:
        while self._alarms and self._armed.get(self._alarms[0][1]) != self._alarms[0][0]:
            heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def tick(self, now_ms: int) -> list[tuple[str, Decision]]:
        """The caller applies and stores what each decision says before it asks anything else of that group."""
        due: list[str] = []
        while (at_ms := self.next_deadline_ms()) is not None and at_ms <= now_ms:
            group_id = heappop(self._alarms)[1]
            del self._armed[group_id]
            due.append(group_id)
        return [(group_id, self.decide(group_id, Tick(), now_ms)) for group_id in due]

    def load(self, now_ms: int) -> list[tuple[str, Decision]]:
        """After the last record of a replay."""
        return [(group_id, self.decide(group_id, Load(), now_ms)) for group_id in self._with_members()]

    def unload(self, now_ms: int) -> list[tuple[str, Decision]]:
        return [(group_id, self.decide(group_id, Unload(), now_ms)) for group_id in self._with_members()]

    def _with_members(self) -> list[str]:
        """The others hold offsets alone: there may be a million of them, and nobody waits there."""
        return sorted(group_id for group_id, group in self._groups.items() if group.has_more_than_offsets)

    def _settle(self, group_id: str, group: Group) -> None:
        self.sizes.weigh(group_id, group.member_bytes)
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            armed_ms = self._armed.get(group_id)
            if armed_ms is None or deadline_ms < armed_ms:
                self._armed[group_id] = deadline_ms
                heappush(self._alarms, (deadline_ms, group_id))
        elif not group.exists:
            del self._groups[group_id]
            self._armed.pop(group_id, None)
