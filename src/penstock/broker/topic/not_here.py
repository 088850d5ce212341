"""Why a partition is not to be had on this node, for whoever looked it up. Each door has a row for it in its table."""

from __future__ import annotations

import enum

import msgspec

from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.role import NO_EPOCH, NO_LEADER, Following, Role
from penstock.broker.partition.shell import PartitionShell
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX


class Absence(enum.Enum):
    NO_TOPIC = "no topic"
    NO_PARTITION = "no partition"
    # Another node does.
    NOT_LED_HERE = "not led here"
    NO_LEADER = "no leader"


class NotHere(msgspec.Struct, frozen=True):
    why: Absence
    # For people: what, which and who.
    detail: str
    leader: int = NO_LEADER
    epoch: int = NO_EPOCH

    @property
    def is_unknown(self) -> bool:
        """There is no such partition, on no node."""
        return self.why is Absence.NO_TOPIC or self.why is Absence.NO_PARTITION

    def read_problem(self, leader_epoch: int = NO_EPOCH) -> ReadProblem:
        """For a client who believes the leader to be of this epoch: first of all whether it is, as of a shell."""
        if self.is_unknown:
            return ReadProblem.UNKNOWN_PARTITION
        if leader_epoch == NO_EPOCH or leader_epoch == self.epoch:
            return ReadProblem.NOT_LEADER
        return ReadProblem.FENCED_EPOCH if leader_epoch < self.epoch else ReadProblem.UNKNOWN_EPOCH

    def refusal(self) -> AppendRefused:
        return AppendRefused(Refusal.OFFLINE if self.is_unknown else Refusal.NOT_LEADER, self.detail)


def for_looks(found: PartitionShell | NotHere) -> PartitionShell | NotHere:
    """The same for an answer that rests on no write: of a partition that another node may lead by now nothing is told.
    Asked when the answer is ready."""
    if isinstance(found, NotHere) or found.may_look:
        return found
    return NotHere(Absence.NOT_LED_HERE, unsure(found), epoch=found.role.epoch)


def unsure(partition: PartitionShell) -> str:
    return f"{partition.topic}-{partition.index} may be led by another node by now: not all replicas were heard"


def no_topic(name: str) -> NotHere:
    return NotHere(Absence.NO_TOPIC, f"there is no topic {name[:NAME_CHARACTERS_MAX]!r}")


def no_partition(topic: str, index: int) -> NotHere:
    return NotHere(Absence.NO_PARTITION, f"topic {topic!r} has no partition {index}")


def not_led(topic: str, index: int, role: Role) -> NotHere:
    detail = f"{topic}-{index} {role.why_not}"
    if isinstance(role, Following):
        return NotHere(Absence.NOT_LED_HERE, detail, role.leader, role.epoch)
    return NotHere(Absence.NO_LEADER, detail, epoch=role.epoch)
