"""Who may commit, read and delete a group's offsets, and when they expire. The offsets themselves: `offset_store`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from penstock.domain.group.classic import ClassicGroup, ClassicState
from penstock.domain.group.classic_requests import commit_problem, touch_committer
from penstock.domain.group.commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteOffsets,
    EndTransaction,
    FetchOffsets,
    GroupReply,
    OffsetsFetched,
    OffsetsNamed,
    OffsetsWritten,
    OffsetToCommit,
    Outbox,
    Refused,
)
from penstock.domain.group.consumer import ConsumerGroup
from penstock.domain.group.offset_store import OffsetStore
from penstock.domain.group.records import NEVER_MS
from penstock.domain.group.values import NO_TOPIC_ID, GroupConfig, GroupError, Partition, TopicFacts
from penstock.domain.topic_rules import SPARK_STAGE
from penstock.domain.transaction.state import VERSION_TWO


class GroupWithOffsets(Protocol):
    classic: ClassicGroup
    consumer: ConsumerGroup | None
    offsets: OffsetStore

    @property
    def exists(self) -> bool: ...
    @property
    def has_more_than_offsets(self) -> bool: ...


def decide_commit(
    group: GroupWithOffsets,
    command: CommitOffsets,
    config: GroupConfig,
    topics: TopicFacts,
    now_ms: int,
    out: Outbox,
) -> GroupReply:
    problem = _commit_problem(group, command, topics, is_transactional=False, knows_epochs=command.knows_epochs)
    if problem is not None:
        return Refused(problem)
    if group.consumer is None:
        touch_committer(group.classic, command.member_id, now_ms)
    expires_ms = NEVER_MS if command.retention_ms == NEVER_MS else now_ms + command.retention_ms
    outcomes = group.offsets.decide_commit(
        command.offsets,
        metadata_bytes_max=config.offset_metadata_bytes_max,
        expires_ms=expires_ms,
        now_ms=now_ms,
        out=out,
    )
    return OffsetsWritten(tuple(outcomes))


def decide_transaction_commit(
    group: GroupWithOffsets,
    command: CommitTransactionOffsets,
    config: GroupConfig,
    topics: TopicFacts,
    now_ms: int,
    out: Outbox,
) -> GroupReply:
    problem = group.offsets.transaction_problem(command.producer_id, command.producer_epoch)
    if problem is None:
        problem = _commit_problem(group, command, topics, is_transactional=True, knows_epochs=False)
    if problem is not None:
        return Refused(problem)
    outcomes = group.offsets.decide_commit(
        command.offsets,
        metadata_bytes_max=config.offset_metadata_bytes_max,
        expires_ms=NEVER_MS,
        producer_id=command.producer_id,
        producer_epoch=command.producer_epoch,
        now_ms=now_ms,
        out=out,
    )
    return OffsetsWritten(tuple(outcomes))


def decide_transaction_end(group: GroupWithOffsets, command: EndTransaction, out: Outbox) -> None:
    # With version 2 every transaction has an epoch, and its marker the one after it: a marker of the same epoch has
    # ended the transaction before, and comes late.
    last_epoch = command.producer_epoch - 1 if command.version >= VERSION_TWO else command.producer_epoch
    group.offsets.decide_transaction_end(
        command.producer_id, last_epoch=last_epoch, is_commit=command.is_commit, out=out
    )


def _commit_problem(
    group: GroupWithOffsets,
    command: CommitOffsets | CommitTransactionOffsets,
    topics: TopicFacts,
    *,
    is_transactional: bool,
    knows_epochs: bool,
) -> GroupError | None:
    if not group.exists and command.generation >= 0:
        return GroupError.GROUP_ID_NOT_FOUND if knows_epochs else GroupError.ILLEGAL_GENERATION
    if group.consumer is not None:
        return group.consumer.commit_problem(
            member_id=command.member_id,
            instance_id=command.instance_id,
            epoch=command.generation,
            is_transactional=is_transactional,
            knows_epochs=knows_epochs,
            partitions=lambda: _partitions(command.offsets, topics),
        )
    return commit_problem(
        group.classic,
        member_id=command.member_id,
        instance_id=command.instance_id,
        generation=command.generation,
        is_transactional=is_transactional,
    )


def _partitions(offsets: Iterable[OffsetToCommit], topics: TopicFacts) -> Iterator[Partition]:
    """As members hold them; of a topic that is gone nobody holds any."""
    for given in offsets:
        fact = topics.find(given.topic) if given.topic_id == NO_TOPIC_ID else None
        yield (given.topic_id if fact is None else fact.topic_id), given.partition


def decide_fetch(group: GroupWithOffsets, command: FetchOffsets) -> GroupReply:
    """An unknown group has no offsets, which is no error."""
    if group.consumer is not None:
        problem = group.consumer.fetch_problem(member_id=command.member_id, epoch=command.member_epoch)
        if problem is not None:
            return Refused(problem)
    if command.partitions is None:
        return OffsetsNamed(group.offsets.places(with_pending=command.requires_stable))
    found = group.offsets.fetch(command.partitions, requires_stable=command.requires_stable)
    return OffsetsFetched(tuple(found))


def decide_delete(group: GroupWithOffsets, command: DeleteOffsets, topics: TopicFacts, out: Outbox) -> GroupReply:
    if not group.exists:
        return Refused(GroupError.GROUP_ID_NOT_FOUND)
    is_active = group.consumer is None and group.classic.state is not ClassicState.EMPTY
    if is_active and not group.classic.uses_consumer_protocol:
        return Refused(GroupError.NON_EMPTY_GROUP)
    read = read_topics(group, topics)
    outcomes = group.offsets.decide_delete(
        command.partitions, is_read=lambda topic: read is None or topic in read, out=out
    )
    return OffsetsWritten(tuple(outcomes))


def decide_expiry(
    group: GroupWithOffsets,
    config: GroupConfig,
    topics: TopicFacts,
    kept_topics: frozenset[str],
    now_ms: int,
    out: Outbox,
) -> bool:
    """True if no offset is left. Offsets of topics that a member reads never expire, nor, if it is not known what a
    group reads, any (KIP-211). Nor do those of the stage: they say what a query has committed, and one that is started
    again after months must still find it, or it writes its last rows twice. Nor those by which a broker knows what is
    archived (`kept_topics`).
    """
    read = read_topics(group, topics)
    if read is None:
        return False
    return group.offsets.decide_expiry(
        retention_ms=config.offsets_retention_ms,
        quiet_since_ms=_quiet_since_ms(group),
        is_read=lambda topic: topic == SPARK_STAGE or topic in read or topic in kept_topics,
        now_ms=now_ms,
        out=out,
    )


def read_topics(group: GroupWithOffsets, topics: TopicFacts) -> frozenset[str] | None:
    """The topics that members read; None if that is not known."""
    if not group.has_more_than_offsets:
        return frozenset()
    if group.consumer is None:
        if group.classic.state is ClassicState.EMPTY:
            return frozenset()
        # While members join, the old subscription is gone and the new one not complete.
        return group.classic.subscribed_topics() if group.classic.state is ClassicState.STABLE else None
    names: list[str] = []
    for member in group.consumer.members.values():
        names += member.topic_names
        names += (topics.matching(member.topic_regex, member.principal) or ()) if member.topic_regex else ()
    return frozenset(names)


def _quiet_since_ms(group: GroupWithOffsets) -> int:
    if not group.has_more_than_offsets:
        return 0
    if group.consumer is not None:
        # A group's last epoch began when its last member went.
        return group.consumer.stored_epoch.since_ms if group.consumer.is_empty else 0
    stored = group.classic.stored
    is_quiet = group.classic.state is ClassicState.EMPTY and stored is not None
    return stored.since_ms if is_quiet and stored is not None else 0
