"""Which followed logs are journals, and what is made of them."""

from __future__ import annotations

from typing import Final

from penstock.broker.machine.rehearsals import Rehearsals, Subject
from penstock.broker.replication.followed import FollowedLog
from penstock.broker.topic.companion import CompanionKind
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE

_BY_TOPIC: Final = {CONSUMER_OFFSETS: Subject.GROUPS, TRANSACTION_STATE: Subject.TRANSACTIONS}
_BY_KIND: Final = {CompanionKind.QUEUES: Subject.QUEUES, CompanionKind.SCHEDULE: Subject.SCHEDULE}


def subject_of(log: FollowedLog) -> Subject | None:
    """None: nothing but what clients have written."""
    return _BY_TOPIC.get(log.partition.topic) if log.kind is None else _BY_KIND[log.kind]


def follow_journal(rehearsals: Rehearsals, log: FollowedLog) -> None:
    """From now on what the log gets is counted, if it is a journal that there is."""
    subject = subject_of(log)
    if subject is not None and log.shell is not None:
        log.tail = rehearsals.follow(subject, log.partition, log.shell, lambda: log.is_current)
