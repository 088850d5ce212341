"""One group, whatever its protocol: its members, its offsets, and who may do what. Pure: see STYLE, "thin shells".

    decide(command, now_ms)   what follows from a command: records to store, replies to send once they are stored.
                              It may note who waits and until when, and nothing that a replay would not rebuild.
    apply(record)             the record is in the log: live right after `decide`, at start one after the other.
                              Never refuses, and tolerates a compacted log.
    next_deadline_ms()        when to `decide(Tick())`, at the latest

The caller's duties: apply every record of a decision at once and in order, before the next command; send replies and
answers when everything applied so far is durable; after the last record of a replay `decide(Load())`; if a record
cannot be stored, `decide(Unload())`, answer whoever waited, drop the machine and replay.

A group is classic unless it has consumer protocol records. One that only holds offsets is a classic one without a
protocol type, as in Kafka.
"""

from __future__ import annotations

from typing import assert_never

from penstock.domain.group.bridge import (
    bridge_leave,
    decide_bridge_heartbeat,
    decide_bridge_join,
    decide_bridge_sync,
)
from penstock.domain.group.classic import ClassicGroup, ClassicState
from penstock.domain.group.classic_join import decide_join, join_problem
from penstock.domain.group.classic_requests import decide_heartbeat, decide_leave, decide_sync
from penstock.domain.group.commands import (
    DONE,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    CommitOffsets,
    CommitTransactionOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    Decision,
    DeleteGroup,
    DeleteOffsets,
    EndTransaction,
    ExpireOffsets,
    FetchOffsets,
    ForgetTopics,
    GroupCommand,
    GroupReply,
    Heartbeat,
    Join,
    Leave,
    Load,
    Outbox,
    Refused,
    Sync,
    Tick,
    Unload,
)
from penstock.domain.group.consumer import ConsumerGroup
from penstock.domain.group.consumer_heartbeat import (
    decide_consumer_heartbeat,
    decide_static_leave,
    fence_members,
    heartbeat_problem,
    leaving_member_problem,
)
from penstock.domain.group.conversion import (
    become_classic,
    become_consumer,
    become_empty_classic,
    can_become_classic,
    can_become_consumer,
)
from penstock.domain.group.offset_store import OffsetStore
from penstock.domain.group.offsets import (
    decide_commit,
    decide_delete,
    decide_expiry,
    decide_fetch,
    decide_transaction_commit,
    decide_transaction_end,
)
from penstock.domain.group.records import (
    CLASSIC_KEY,
    EPOCH_KEY,
    GENERATION_KEY,
    ClassicGroupStored,
    CurrentStored,
    EpochStored,
    GenerationStored,
    GroupRecord,
    MemberStored,
    OffsetStored,
    Removed,
    TargetEpochStored,
    TargetStored,
    pending_producer,
)
from penstock.domain.group.sizes import protocols_bytes, stored_bytes
from penstock.domain.group.values import GroupConfig, GroupError, GroupKind, TopicFacts


class Group:
    __slots__ = ("_classic", "_config", "_topics", "consumer", "offsets")

    def __init__(self, config: GroupConfig, topics: TopicFacts) -> None:
        self._config = config
        self._topics = topics
        # Made when it is asked for: a node may hold a million groups of which nothing is kept but offsets.
        self._classic: ClassicGroup | None = None
        self.consumer: ConsumerGroup | None = None
        self.offsets = OffsetStore()

    @property
    def classic(self) -> ClassicGroup:
        if self._classic is None:
            self._classic = ClassicGroup(self._config)
        return self._classic

    @classic.setter
    def classic(self, group: ClassicGroup) -> None:
        self._classic = group

    def configure(self, config: GroupConfig) -> None:
        """Only what a group can be given for itself may differ, and that is read by consumer groups."""
        self._config = config
        if self.consumer is not None:
            self.consumer.config = config

    # ------------------------------------------------------------------ decide

    def decide(self, command: GroupCommand, now_ms: int) -> Decision:
        out = Outbox()
        match command:
            case ConsumerHeartbeat():
                return out.decision(self._consumer_heartbeat(command, now_ms, out))
            case Heartbeat():
                if self.consumer is not None:
                    return out.decision(decide_bridge_heartbeat(self.consumer, command, now_ms))
                return out.decision(decide_heartbeat(self.classic, command, now_ms))
            case Join():
                return out.decision(self._join(command, now_ms, out), command.ticket)
            case Sync():
                if self.consumer is not None:
                    return out.decision(decide_bridge_sync(self.consumer, command, self._topics, now_ms))
                return out.decision(decide_sync(self.classic, command, now_ms, out), command.ticket)
            case Leave():
                return out.decision(self._leave(command, now_ms, out))
            case Tick():
                self._tick(now_ms, out)
                return out.decision(DONE)
            case Load():
                self.classic.load(now_ms, out)
                if self.consumer is not None:
                    self.consumer.load(now_ms)
                return out.decision(DONE)
            case Unload():
                self.classic.answer_all(GroupError.NOT_COORDINATOR, out)
                return out.decision(DONE)
            case _:
                return out.decision(self._about_offsets(command, now_ms, out))

    def _about_offsets(
        self,
        command: CommitOffsets
        | CommitTransactionOffsets
        | EndTransaction
        | FetchOffsets
        | DeleteOffsets
        | DeleteGroup
        | ForgetTopics
        | ExpireOffsets,
        now_ms: int,
        out: Outbox,
    ) -> GroupReply:
        match command:
            case CommitOffsets():
                return decide_commit(self, command, self._config, self._topics, now_ms, out)
            case FetchOffsets():
                return decide_fetch(self, command)
            case CommitTransactionOffsets():
                return decide_transaction_commit(self, command, self._config, self._topics, now_ms, out)
            case EndTransaction():
                decide_transaction_end(self, command, out)
                return DONE
            case DeleteOffsets():
                reply = decide_delete(self, command, self._topics, out)
                self._outlive_offsets(now_ms, out)
                return reply
            case ForgetTopics(topics):
                self.offsets.decide_forget(topics, out)
                self._outlive_offsets(now_ms, out)
                return DONE
            case ExpireOffsets(kept_topics):
                nothing_left = decide_expiry(self, self._config, self._topics, kept_topics, now_ms, out)
                if nothing_left and self.is_empty and not self.classic.pending:
                    self._member_tombstones(out)
                return DONE
            case DeleteGroup():
                return self._delete(out)
            case _:
                assert_never(command)

    def _outlive_offsets(self, now_ms: int, out: Outbox) -> None:
        """A group of which only offsets are kept does not end with the last of them: it is empty, until it is deleted
        or a sweep finds nothing of it."""
        if out.records and not self.has_more_than_offsets and self.offsets.is_empty_after(out.records):
            out.records.append(ClassicGroupStored(0, "", "", "", now_ms))

    def _consumer_heartbeat(self, command: ConsumerHeartbeat, now_ms: int, out: Outbox) -> GroupReply:
        group = self.consumer
        if group is None:
            return self._first_consumer_heartbeat(command, now_ms, out)
        refusal = heartbeat_problem(group, command, self._topics)
        if refusal is not None:
            return refusal
        if command.member_epoch == STATIC_LEAVE_EPOCH:
            return decide_static_leave(group, command, out)
        if command.member_epoch != LEAVE_EPOCH:
            return decide_consumer_heartbeat(group, command, self._topics, now_ms, out)
        refusal = leaving_member_problem(group, command)
        if refusal is not None:
            return refusal
        self._fence(group, [command.member_id], now_ms, out)
        return ConsumerAlive(command.member_id, LEAVE_EPOCH, 0)

    def _first_consumer_heartbeat(self, command: ConsumerHeartbeat, now_ms: int, out: Outbox) -> GroupReply:
        # Generations and epochs count on, so that no two members ever hold a partition under the same number.
        group = ConsumerGroup(self._config, first_epoch=self.classic.generation_told)
        refusal = heartbeat_problem(group, command, self._topics)
        if refusal is not None:
            return refusal
        if command.member_epoch != JOIN_EPOCH:
            # Kafka says GROUP_ID_NOT_FOUND, which clients take for the end; this one makes them join again.
            return Refused(GroupError.UNKNOWN_MEMBER_ID, command.member_id)
        if self.classic.state is ClassicState.EMPTY:
            self.classic.tombstones(out)
        else:
            converted = None
            if can_become_consumer(self.classic, self._config):
                converted = become_consumer(self.classic, self._config, self._topics, now_ms, out)
            if converted is None:
                return Refused(GroupError.GROUP_ID_NOT_FOUND, command.member_id, "the group is a classic one")
            group = converted
        reply = decide_consumer_heartbeat(group, command, self._topics, now_ms, out)
        if out.records:
            self.consumer = group
            self.classic = ClassicGroup(self._config)
        return reply

    def _join(self, command: Join, now_ms: int, out: Outbox) -> GroupReply | None:
        group = self.consumer
        if group is not None and group.is_empty and join_problem(command, self._config) is None:
            self.classic = become_empty_classic(group, self._config, out)
            self.consumer = group = None
        if group is None:
            return decide_join(self.classic, command, self._config, now_ms, out)
        return decide_bridge_join(group, command, self._topics, now_ms, out)

    def _leave(self, command: Leave, now_ms: int, out: Outbox) -> GroupReply:
        group = self.consumer
        if group is None:
            return decide_leave(self.classic, command, now_ms, out)
        reply, gone = bridge_leave(group, command)
        if gone:
            self._fence(group, gone, now_ms, out)
        return reply

    def _fence(self, group: ConsumerGroup, gone: list[str], now_ms: int, out: Outbox) -> None:
        if can_become_classic(group, gone, self._config):
            self.classic = become_classic(group, gone, self._config, self._topics, now_ms, out)
            self.consumer = None
        else:
            fence_members(group, gone, self._topics, now_ms, out)

    def _tick(self, now_ms: int, out: Outbox) -> None:
        self.classic.tick(now_ms, out)
        if self.consumer is not None:
            gone = self.consumer.overdue(now_ms)
            if gone:
                self._fence(self.consumer, gone, now_ms, out)

    def _delete(self, out: Outbox) -> GroupReply:
        if not self.exists:
            return Refused(GroupError.GROUP_ID_NOT_FOUND)
        if not self.is_empty:
            return Refused(GroupError.NON_EMPTY_GROUP)
        self.offsets.decide_forget_all(out)
        self._member_tombstones(out)
        return DONE

    def _member_tombstones(self, out: Outbox) -> None:
        if self.consumer is not None:
            self.consumer.tombstones(out)
        self.classic.tombstones(out)

    # ------------------------------------------------------------------ apply

    def apply(self, record: GroupRecord) -> None:
        match record:
            case OffsetStored():
                self.offsets.apply(record)
            case CurrentStored() | TargetStored() | MemberStored() | TargetEpochStored() | EpochStored():
                if self.consumer is None:
                    self.consumer = ConsumerGroup(self._config)
                self.consumer.apply(record)
            case ClassicGroupStored():
                self.classic.apply(record)
            case GenerationStored():
                self.classic.apply_generation(record)
            case Removed():
                self._apply_removal(record)
            case _:
                assert_never(record)

    def _apply_removal(self, record: Removed) -> None:
        key = record.key
        if key[0] == "offset":
            self.offsets.apply_removal(key[1], key[2])
        elif (producer_id := pending_producer(key)) is not None:
            self.offsets.apply_pending_removal(producer_id, key[1], key[2])
        elif key in (CLASSIC_KEY, GENERATION_KEY):
            # Never one without the other.
            self.classic = ClassicGroup(self._config)
        elif key == EPOCH_KEY:
            self.consumer = None
        elif self.consumer is not None:
            self.consumer.apply_removal(key)

    def snapshot(self) -> list[GroupRecord]:
        """Records that rebuild all that is kept of the group, fewer than made it."""
        records: list[GroupRecord] = [*self.classic.snapshot()]
        if self.consumer is not None:
            records += self.consumer.snapshot()
        return [*records, *self.offsets.snapshot()]

    # ------------------------------------------------------------------ what others ask

    def next_deadline_ms(self) -> int | None:
        own = None if self._classic is None else self._classic.deadlines.next_ms
        if self.consumer is None:
            return own
        other = self.consumer.deadlines.next_ms
        if own is None or other is None:
            return other if own is None else own
        return min(own, other)

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC if self.consumer is None else GroupKind.CONSUMER

    @property
    def is_empty(self) -> bool:
        """No members: it may be deleted. Ids that were given out and not yet used do not count."""
        if self.consumer is not None:
            return self.consumer.is_empty
        return self.classic.state is ClassicState.EMPTY

    @property
    def exists(self) -> bool:
        """False: nothing of it is kept and nobody is here, so it may be forgotten."""
        return self.has_more_than_offsets or not self.offsets.is_empty

    @property
    def has_more_than_offsets(self) -> bool:
        """False: there are offsets at the most, and a restart is nothing to it."""
        return self.consumer is not None or (self._classic is not None and not self._classic.is_pristine)

    # ------------------------------------------------------------------ what its members have brought

    @property
    def member_bytes(self) -> int:
        consumer_bytes = 0 if self.consumer is None else self.consumer.member_bytes
        if self._classic is None:
            return consumer_bytes
        roster = self._classic.roster
        return consumer_bytes + roster.protocol_bytes + roster.assignment_bytes

    def replaced_bytes(self, command: GroupCommand) -> int:
        """Of what is there, how much would go if this were taken."""
        if isinstance(command, Sync):
            return 0 if self._classic is None else self._classic.roster.assignment_bytes
        if not isinstance(command, Join | ConsumerHeartbeat):
            return 0
        if self.consumer is not None:
            return stored_bytes(self.consumer.members.get(command.member_id))
        known = None if self._classic is None else self._classic.roster.members.get(command.member_id)
        return 0 if known is None else protocols_bytes(known.protocols)
