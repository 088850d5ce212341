"""All groups of one coordinator partition: found by id, made at need, forgotten when nothing is left of them.

The same contract as `Group`, with the group's id in front, and for all groups together:

    next_deadline_ms()   the earliest of all, or earlier: being woken in vain costs little, finding out costs more
    tick(now_ms)         the decisions of the groups that were due; their records are still to be applied and stored
    end_transaction()    a control batch has been written or read: every group that waits for that producer learns of it
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from penstock.domain.group_commands import Decision, GroupCommand, Load, Tick, Unload
from penstock.domain.group_machine import Group
from penstock.domain.group_records import GroupRecord, OffsetStored, TransactionEnded
from penstock.domain.group_values import GroupConfig, TopicFacts


class GroupTable:
    def __init__(self, config: GroupConfig, topics: TopicFacts) -> None:
        self._config = config
        self._topics = topics
        self._groups: dict[str, Group] = {}
        # Alarms, the earliest on top. A group has at most one that counts, in `_armed`; others are skipped when met.
        self._alarms: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}
        self._producer_groups: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._groups))

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def decide(self, group_id: str, command: GroupCommand, now_ms: int) -> Decision:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(self._config, self._topics)
        decision = group.decide(command, now_ms)
        if not decision.records:
            self._settle(group_id, group)
        return decision

    def apply(self, group_id: str, record: GroupRecord) -> None:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(self._config, self._topics)
        group.apply(record)
        if type(record) is OffsetStored:
            # The most frequent record by far; it can end nothing and arms no alarm.
            if record.producer_id >= 0:
                self._producer_groups.setdefault(record.producer_id, {})[group_id] = None
            return
        self._settle(group_id, group)

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> list[str]:
        """Applied at once: the control batch is the record. Says which groups it concerned."""
        group_ids = sorted(self._producer_groups.pop(producer_id, ()))
        for group_id in group_ids:
            if group_id in self._groups:
                self.apply(group_id, TransactionEnded(producer_id, is_committed))
        return group_ids

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
        return [(group_id, self.decide(group_id, Load(), now_ms)) for group_id in self]

    def unload(self, now_ms: int) -> list[tuple[str, Decision]]:
        return [(group_id, self.decide(group_id, Unload(), now_ms)) for group_id in self]

    def _settle(self, group_id: str, group: Group) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            armed_ms = self._armed.get(group_id)
            if armed_ms is None or deadline_ms < armed_ms:
                self._armed[group_id] = deadline_ms
                heappush(self._alarms, (deadline_ms, group_id))
        elif not group.exists:
            del self._groups[group_id]
            self._armed.pop(group_id, None)
