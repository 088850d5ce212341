"""The share groups of one partition of `__consumer_offsets`: their machines and their alarm.

The journal is that of the partition's other groups (`shell`): one group id means one group, whatever its kind,
and a start reads the log once. A record's key says whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from penstock.base.clock import Clock
from penstock.broker.machine.alarm import Alarm
from penstock.domain.group.commands import Refused
from penstock.domain.group.records import RecordKey
from penstock.domain.group.values import GroupError, TopicFacts
from penstock.domain.share.machine import (
    ShareDecision,
    ShareEpochStored,
    ShareGroup,
    ShareGroupCommand,
    ShareGroupConfig,
    ShareGroupRecord,
    ShareGroupReply,
    ShareLoad,
    ShareMemberStored,
    ShareRefused,
    ShareRemoved,
    ShareTargetStored,
    ShareTick,
)

SHARE_KINDS: Final = frozenset({"share-epoch", "share-member", "share-target"})
# What stands as a value in the journal; removals are tombstones.
StoredShareRecord = ShareEpochStored | ShareMemberStored | ShareTargetStored

_encode = msgspec.msgpack.Encoder().encode
# While there is no shell to ask.
UNAVAILABLE: Final = ShareRefused(GroupError.COORDINATOR_NOT_AVAILABLE)


class Keeper(Protocol):
    """Who writes down what must not be forgotten."""

    @property
    def can_store(self) -> bool: ...

    @property
    def unavailable(self) -> Refused:
        """What whoever asks is told while nothing can be read or stored."""
        ...

    def store(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None: ...

    async def refuse_reply(self, *, is_look: bool) -> Refused | None:
        """Why a reply must not leave, when everything is durable that it may have seen."""
        ...

    def refuse_look(self) -> Refused | None:
        """The same of what is told at once."""
        ...

    def has_other_group(self, group_id: str) -> bool: ...


class ShareShell:
    def __init__(self, keeper: Keeper, topics: TopicFacts, steady: Clock) -> None:
        self._keeper = keeper
        self._topics = topics
        self._steady = steady
        self._groups: dict[str, ShareGroup] = {}
        self._alarm = Alarm(steady, self._on_alarm)
        # By a group's own settings, where it has any.
        self.config_of: Callable[[str], ShareGroupConfig] = lambda _group_id: ShareGroupConfig()

    # Life

    def clear(self) -> None:
        self._groups.clear()

    def replay(self, group_id: str, record: ShareGroupRecord) -> None:
        self._make(group_id).apply(record)

    def start(self) -> None:
        """After the last record of a replay."""
        for group_id, group in list(self._groups.items()):
            if group.exists or group.members:
                group.config = self.config_of(group_id)
                self._decide(group_id, group, ShareLoad())
            else:
                del self._groups[group_id]
        self._arm()

    def close(self) -> None:
        self._alarm.cancel()

    def _make(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ShareGroup(self.config_of(group_id), self._topics)
        return group

    # Looking

    def get(self, group_id: str) -> ShareGroup | None:
        group = self._groups.get(group_id)
        return group if group is not None and group.exists else None

    def group_ids(self) -> list[str]:
        return [group_id for group_id, group in self._groups.items() if group.exists]

    def configure(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None:
            group.config = self.config_of(group_id)

    # Commands

    async def submit(self, group_id: str, command: ShareGroupCommand) -> ShareGroupReply:
        """The reply, when everything it rests on is durable."""
        if not self._keeper.can_store:
            return _refused(self._keeper.unavailable)
        if self._keeper.has_other_group(group_id):
            return ShareRefused(GroupError.GROUP_ID_NOT_FOUND, f"the group {group_id} is not a share group")
        decision = self._decide(group_id, self._make(group_id), command)
        self._arm()
        refused = await self._keeper.refuse_reply(is_look=not decision.records)
        return decision.reply if refused is None else _refused(refused)

    def refusal(self) -> ShareRefused | None:
        """Why nobody can say which groups there are; None: it is known."""
        refused = self._keeper.refuse_look()
        return None if refused is None else _refused(refused)

    def _decide(self, group_id: str, group: ShareGroup, command: ShareGroupCommand) -> ShareDecision:
        decision = group.decide(command, self._steady.now_ms())
        for record in decision.records:
            group.apply(record)
        if decision.records:
            self._keeper.store([_entry(group_id, record) for record in decision.records])
        if not group.exists and not group.members:
            self._groups.pop(group_id, None)
        return decision

    # The alarm

    def _arm(self) -> None:
        deadlines = [at_ms for group in self._groups.values() if (at_ms := group.next_deadline_ms()) is not None]
        self._alarm.set(min(deadlines, default=None))

    def _on_alarm(self) -> None:
        if not self._keeper.can_store:
            return  # replayed when it can be again, and everybody gets a whole session then
        now_ms = self._steady.now_ms()
        for group_id, group in list(self._groups.items()):
            deadline_ms = group.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._decide(group_id, group, ShareTick())
        self._arm()


def _refused(refused: Refused) -> ShareRefused:
    return ShareRefused(refused.error, refused.detail)


def _entry(group_id: str, record: ShareGroupRecord) -> tuple[bytes, bytes | None]:
    value = None if isinstance(record, ShareRemoved) else _encode(record)
    return _encode((group_id, record.key)), value


def is_share_key(key: RecordKey) -> bool:
    return key[0] in SHARE_KINDS
