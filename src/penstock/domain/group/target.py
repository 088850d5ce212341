"""The target assignment of a consumer group: which topics its members read, and who shall have which partition."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.domain.group.assign.range import assign_range
from penstock.domain.group.assign.uniform import assign_uniform
from penstock.domain.group.assign.values import Assignor, MemberFacts
from penstock.domain.group.commands import Outbox
from penstock.domain.group.records import MemberStored, TargetEpochStored, TargetStored
from penstock.domain.group.values import NO_PARTITIONS, Assignment, TopicFact, TopicFacts

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}

# Enough to tell two states of the same topics apart; nobody gains by forging one.
_DIGEST_BYTES: Final = 8


class ResolvedTopics(msgspec.Struct, frozen=True):
    """Subscriptions, looked up: topics that do not exist (yet) are left out."""

    by_member: dict[str, tuple[bytes, ...]]
    partition_counts: dict[bytes, int]
    digest: bytes


def resolve_topics(members: Mapping[str, MemberStored], topics: TopicFacts) -> ResolvedTopics:
    # Most members of a group subscribe to the same, so that is looked up once.
    resolved: dict[tuple[tuple[str, ...], str, str], tuple[bytes, ...]] = {}
    facts: dict[str, TopicFact] = {}
    by_member: dict[str, tuple[bytes, ...]] = {}
    for member_id, member in members.items():
        wish = (member.topic_names, member.topic_regex, member.principal)
        if wish not in resolved:
            resolved[wish] = _look_up(member, topics, facts)
        by_member[member_id] = resolved[wish]
    counts = {fact.topic_id: fact.partition_count for fact in facts.values()}
    return ResolvedTopics(by_member, counts, _digest(facts))


def _look_up(member: MemberStored, topics: TopicFacts, facts: dict[str, TopicFact]) -> tuple[bytes, ...]:
    matched = topics.matching(member.topic_regex, member.principal) if member.topic_regex else ()
    found: dict[bytes, None] = {}
    for name in (*member.topic_names, *(matched or ())):
        fact = topics.find(name)
        if fact is not None:
            facts[name] = fact
            found[fact.topic_id] = None
    return tuple(sorted(found))


def _digest(facts: Mapping[str, TopicFact]) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(facts):
        fact = facts[name]
        digest.update(b"%s %s %d;" % (name.encode(), fact.topic_id, fact.partition_count))
    return digest.digest()


def preferred_assignor(members: Mapping[str, MemberStored], configured: tuple[str, ...]) -> str:
    """What most members ask for; a tie and silence go to the one that stands first in the settings."""
    votes = dict.fromkeys(configured, 0)
    for member in members.values():
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(votes, key=lambda name: votes[name])


def decide_targets(
    members: Mapping[str, MemberStored],
    resolved: ResolvedTopics,
    previous: Mapping[str, Assignment],
    *,
    epoch: int,
    configured: tuple[str, ...],
    out: Outbox,
) -> dict[str, Assignment]:
    """Records of what changes, then of the epoch: whoever reads the epoch has read everything that belongs to it."""
    assign = ASSIGNORS[preferred_assignor(members, configured)]
    facts = {
        member_id: MemberFacts(
            member_id, member.instance_id, resolved.by_member[member_id], previous.get(member_id, NO_PARTITIONS)
        )
        for member_id, member in members.items()
    }
    targets = assign(facts, resolved.partition_counts)
    for member_id in sorted(targets):
        if targets[member_id] != previous.get(member_id):
            out.records.append(TargetStored(member_id, targets[member_id]))
    out.records.append(TargetEpochStored(epoch))
    return targets
