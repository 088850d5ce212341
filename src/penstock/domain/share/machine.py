"""The members of a share group (KIP-932): who belongs to it, and whose are which partitions.

It is the consumer protocol without revocation. A partition may have several members, so nobody has to give one up
before another gets it: a change makes a new epoch and a new target in one decision, and each member has its part of it
with its next heartbeat. Which messages a member gets is the business of each partition's `Queue`.

    ("share-epoch", "", -1)           ShareEpochStored    the group's epoch, and which topics it was made for
    ("share-member", member id, -1)   ShareMemberStored   what it asked for, and the epoch that it was told last
    ("share-target", member id, -1)   ShareTargetStored   what it shall have

The last record of a key is enough, as with other groups. The caller's duties are those of `group/machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.domain.group.assign.values import MemberFacts
from penstock.domain.group.commands import JOIN_EPOCH, LEAVE_EPOCH
from penstock.domain.group.records import RecordKey
from penstock.domain.group.values import NO_PARTITIONS, Assignment, Deadlines, GroupError, TopicFact, TopicFacts
from penstock.domain.share.assignor import assign_share

EPOCH_KEY: Final[RecordKey] = ("share-epoch", "", -1)
_DIGEST_BYTES: Final = 8
_UNSEEN: Final = -1


class ShareGroupConfig(msgspec.Struct, frozen=True):
    session_timeout_ms: int = 45_000  # group.share.session.timeout.ms
    # Kafka's is 5 s; members learn of a change with their next heartbeat.
    heartbeat_interval_ms: int = 1_000  # group.share.heartbeat.interval.ms
    members_max: int = 200  # group.share.max.size


# ------------------------------------------------------------------ records


class ShareEpochStored(msgspec.Struct, frozen=True, array_like=True, tag="share-epoch"):
    epoch: int
    topics_digest: bytes

    @property
    def key(self) -> RecordKey:
        return EPOCH_KEY


class ShareMemberStored(msgspec.Struct, frozen=True, array_like=True, tag="share-member"):
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    epoch: int
    # Of the answer before: who did not get the last one still names it.
    previous_epoch: int

    @property
    def key(self) -> RecordKey:
        return ("share-member", self.member_id, -1)


class ShareTargetStored(msgspec.Struct, frozen=True, array_like=True, tag="share-target"):
    member_id: str
    partitions: Assignment

    @property
    def key(self) -> RecordKey:
        return ("share-target", self.member_id, -1)


class ShareRemoved(msgspec.Struct, frozen=True, array_like=True, tag="share-removed"):
    """The tombstone of any key."""

    key: RecordKey


ShareGroupRecord = ShareEpochStored | ShareMemberStored | ShareTargetStored | ShareRemoved

# ------------------------------------------------------------------ commands and replies


class ShareHeartbeat(msgspec.Struct, frozen=True):
    """None is "as before". Clients make their own ids; epoch 0 joins, -1 leaves."""

    member_id: str
    member_epoch: int
    topic_names: tuple[str, ...] | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


class ShareTick(msgspec.Struct, frozen=True):
    """Who has not been heard of for the session timeout is out."""


class ShareLoad(msgspec.Struct, frozen=True):
    """After a replay: everybody gets a whole session to be heard of."""


class ShareCreate(msgspec.Struct, frozen=True):
    """A group without members, for what is to be known before there are any."""


class ShareDelete(msgspec.Struct, frozen=True): ...


ShareGroupCommand = ShareHeartbeat | ShareTick | ShareLoad | ShareCreate | ShareDelete


class ShareAlive(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    # None: as it was told before.
    assignment: Assignment | None = None


class ShareDone(msgspec.Struct, frozen=True): ...


class ShareRefused(msgspec.Struct, frozen=True):
    error: GroupError
    detail: str = ""


ShareGroupReply = ShareAlive | ShareDone | ShareRefused


class ShareDecision(msgspec.Struct, frozen=True):
    records: tuple[ShareGroupRecord, ...]
    reply: ShareGroupReply


_DONE: Final = ShareDone()


class ShareGroup:
    __slots__ = ("_deadlines", "_seen_revision", "_topics", "config", "epoch", "members", "targets", "topics_digest")

    def __init__(self, config: ShareGroupConfig, topics: TopicFacts) -> None:
        self.config = config
        self._topics = topics
        self.epoch = 0
        self.topics_digest = b""
        self.members: dict[str, ShareMemberStored] = {}
        self.targets: dict[str, Assignment] = {}
        # From here on nothing is kept.
        self._deadlines = Deadlines()
        self._seen_revision = _UNSEEN

    # ------------------------------------------------------------------ decide

    def decide(self, command: ShareGroupCommand, now_ms: int) -> ShareDecision:
        match command:
            case ShareHeartbeat():
                return self._decide_heartbeat(command, now_ms)
            case ShareTick():
                gone = [str(key) for key in self._deadlines.due(now_ms) if key in self.members]
                return ShareDecision(self._without(gone), _DONE)
            case ShareLoad():
                for member_id in sorted(self.members):
                    self._deadlines.set(member_id, now_ms + self.config.session_timeout_ms)
                return ShareDecision((), _DONE)
            case ShareCreate():
                return ShareDecision(() if self.exists else (ShareEpochStored(1, b""),), _DONE)
            case ShareDelete():
                return self._decide_delete()

    def _decide_heartbeat(self, command: ShareHeartbeat, now_ms: int) -> ShareDecision:
        member_id = command.member_id
        known = self.members.get(member_id)
        problem = self._problem(command, known)
        if problem is not None:
            return ShareDecision((), problem)
        if command.member_epoch == LEAVE_EPOCH:
            self._deadlines.cancel(member_id)
            return ShareDecision(self._without([member_id]), ShareAlive(member_id, LEAVE_EPOCH, 0))
        self._deadlines.set(member_id, now_ms + self.config.session_timeout_ms)
        interval_ms = self.config.heartbeat_interval_ms
        if known is not None and self._brings_no_news(command, known):
            return ShareDecision((), ShareAlive(member_id, known.epoch, interval_ms))
        member = _updated(known, command)
        wishes_differ = known is None or known.topic_names != member.topic_names
        records, epoch, target = self._next(member, wishes_differ=wishes_differ)
        previous_epoch = member.epoch if member.epoch != epoch else member.previous_epoch
        if command.member_epoch == JOIN_EPOCH:
            previous_epoch = JOIN_EPOCH
        member = msgspec.structs.replace(member, epoch=epoch, previous_epoch=previous_epoch)
        if member != known:
            records.append(member)
        # Whoever names another epoch than the last one has not heard the last answer.
        is_told = known is None or command.member_epoch != epoch or command.topic_names is not None
        return ShareDecision(tuple(records), ShareAlive(member_id, epoch, interval_ms, target if is_told else None))

    def _problem(self, command: ShareHeartbeat, known: ShareMemberStored | None) -> ShareRefused | None:
        if not command.member_id or command.member_epoch < LEAVE_EPOCH or command.rack_id == "":
            return ShareRefused(GroupError.INVALID_REQUEST, "a member id, an epoch from -1 on, a rack id or none")
        if command.member_epoch == JOIN_EPOCH:
            if not command.topic_names:
                return ShareRefused(GroupError.INVALID_REQUEST, "a member that joins subscribes to something")
            if known is None and len(self.members) >= self.config.members_max:
                return ShareRefused(GroupError.GROUP_MAX_SIZE_REACHED, f"{self.config.members_max} members")
            return None
        if known is None:
            return ShareRefused(GroupError.UNKNOWN_MEMBER_ID)
        if command.member_epoch not in (LEAVE_EPOCH, known.epoch, known.previous_epoch):
            return ShareRefused(GroupError.FENCED_MEMBER_EPOCH, f"the member is at epoch {known.epoch}")
        return None

    def _brings_no_news(self, command: ShareHeartbeat, known: ShareMemberStored) -> bool:
        return (
            command.member_epoch == known.epoch == self.epoch
            and command.topic_names is None
            and command.rack_id in (None, known.rack_id)
            and (command.client_id, command.client_host) == (known.client_id, known.client_host)
            and self._seen_revision == self._topics.revision
        )

    def _decide_delete(self) -> ShareDecision:
        if not self.exists:
            return ShareDecision((), ShareRefused(GroupError.GROUP_ID_NOT_FOUND))
        if self.members:
            return ShareDecision((), ShareRefused(GroupError.NON_EMPTY_GROUP))
        return ShareDecision((ShareRemoved(EPOCH_KEY),), _DONE)

    def _next(
        self, member: ShareMemberStored, *, wishes_differ: bool
    ) -> tuple[list[ShareGroupRecord], int, Assignment]:
        """A new epoch with a new target for everybody, if anything is new; and what this member has in it."""
        if not wishes_differ and self._seen_revision == self._topics.revision:
            return [], self.epoch, self.targets.get(member.member_id, NO_PARTITIONS)
        members = {**self.members, member.member_id: member}
        records, targets = self._target(members, is_forced=wishes_differ)
        epoch = self.epoch + 1 if records else self.epoch
        return records, epoch, targets[member.member_id]

    def _target(
        self, members: Mapping[str, ShareMemberStored], *, is_forced: bool
    ) -> tuple[list[ShareGroupRecord], dict[str, Assignment]]:
        facts = _look_up(members, self._topics)
        digest = _digest(facts)
        self._seen_revision = self._topics.revision
        if not is_forced and digest == self.topics_digest:
            return [], {member_id: self.targets.get(member_id, NO_PARTITIONS) for member_id in members}
        targets = assign_share(
            {
                member_id: MemberFacts(
                    member_id,
                    None,
                    tuple(sorted({facts[name].topic_id for name in member.topic_names if name in facts})),
                    self.targets.get(member_id, NO_PARTITIONS),
                )
                for member_id, member in members.items()
            },
            {fact.topic_id: fact.partition_count for fact in facts.values()},
        )
        records: list[ShareGroupRecord] = [ShareEpochStored(self.epoch + 1, digest)]
        for member_id in sorted(targets):
            if targets[member_id] != self.targets.get(member_id):
                records.append(ShareTargetStored(member_id, targets[member_id]))
        return records, targets

    def _without(self, gone: list[str]) -> tuple[ShareGroupRecord, ...]:
        if not gone:
            return ()
        staying = {member_id: member for member_id, member in self.members.items() if member_id not in gone}
        records, _targets = self._target(staying, is_forced=True)
        for member_id in gone:
            records += [ShareRemoved(("share-target", member_id, -1)), ShareRemoved(("share-member", member_id, -1))]
        return tuple(records)

    # ------------------------------------------------------------------ apply

    def apply(self, record: ShareGroupRecord) -> None:
        """Never refuses, in any order: a compacted log may hold a member's target before the member."""
        match record:
            case ShareEpochStored(epoch, digest):
                self.epoch, self.topics_digest = epoch, digest
            case ShareMemberStored():
                self.members[record.member_id] = record
            case ShareTargetStored(member_id, partitions):
                self.targets[member_id] = partitions
            case ShareRemoved(key):
                self._apply_removal(key)

    def _apply_removal(self, key: RecordKey) -> None:
        if key == EPOCH_KEY:
            self.epoch, self.topics_digest = 0, b""
        elif key[0] == "share-member":
            self.members.pop(key[1], None)
        else:
            self.targets.pop(key[1], None)

    def snapshot(self) -> list[ShareGroupRecord]:
        if not self.exists:
            return []
        return [
            ShareEpochStored(self.epoch, self.topics_digest),
            *(ShareTargetStored(member_id, self.targets[member_id]) for member_id in sorted(self.targets)),
            *(self.members[member_id] for member_id in sorted(self.members)),
        ]

    # ------------------------------------------------------------------ views

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    @property
    def exists(self) -> bool:
        return self.epoch > 0

    @property
    def state(self) -> str:
        """As ShareGroupDescribe names them."""
        if not self.exists:
            return "Dead"
        return "Stable" if self.members else "Empty"

    def is_current(self, member_id: str) -> bool:
        """Whether it is a member: ShareFetch does not name an epoch of the group."""
        return member_id in self.members


def _updated(known: ShareMemberStored | None, command: ShareHeartbeat) -> ShareMemberStored:
    names = command.topic_names
    if known is None:
        known = ShareMemberStored(command.member_id, None, "", "", (), JOIN_EPOCH, JOIN_EPOCH)
    return msgspec.structs.replace(
        known,
        rack_id=known.rack_id if command.rack_id is None else command.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=known.topic_names if names is None else tuple(sorted(set(names))),
    )


def _look_up(members: Mapping[str, ShareMemberStored], topics: TopicFacts) -> dict[str, TopicFact]:
    """Topics that do not exist (yet) are left out."""
    names = sorted({name for member in members.values() for name in member.topic_names})
    return {name: fact for name in names if (fact := topics.find(name)) is not None}


def _digest(facts: Mapping[str, TopicFact]) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, fact in facts.items():
        digest.update(b"%s %s %d;" % (name.encode(), fact.topic_id, fact.partition_count))
    return digest.digest()
