"""Who hears of a change in the metadata, and in which order: written down here and nowhere else.

A revision is in every image before anybody hears of it. Then it is told kind by kind: each change of a kind to every
part in turn, then the next change. Who registers first does not matter. Whoever acts on a change has a row here.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Kind(Enum):
    """Of what is followed: each has an image, and a catalog that answers from it."""

    NODES = "nodes"
    TOPICS = "topics"
    PARTITIONS = "partitions"
    CRONS = "crons"
    QUEUES = "queues"
    ACCESS = "access"


class Part(Enum):
    CONTROLLER = "controller"
    WATCHED_NODES = "watched nodes"
    GROUPS = "groups"
    SCHEDULES = "schedules"
    TRANSACTIONS = "transactions"
    BROKER = "broker"
    REPLICATION = "replication"
    SETTINGS = "settings"
    QUEUES = "queues"
    SHARE_GROUPS = "share groups"
    REDRIVES = "redrives"
    AUTHORIZER = "authorizer"
    LOGINS = "logins"


ORDER: Final = (
    # Decides later, of all that a revision changed: it only learns here that there is something to decide.
    (Kind.NODES, Part.CONTROLLER),
    (Kind.NODES, Part.WATCHED_NODES),
    # Who may fetch, and join a set, is known before anybody leads or follows.
    (Kind.NODES, Part.REPLICATION),
    # What a machine holds of a removed topic is let go before its logs are closed: nothing may be written there then.
    (Kind.TOPICS, Part.GROUPS),
    (Kind.TOPICS, Part.SCHEDULES),
    (Kind.TOPICS, Part.TRANSACTIONS),
    (Kind.TOPICS, Part.BROKER),
    (Kind.TOPICS, Part.REPLICATION),
    (Kind.TOPICS, Part.SETTINGS),
    # Queues are opened on new partitions, which the broker serves by then.
    (Kind.TOPICS, Part.QUEUES),
    (Kind.TOPICS, Part.SHARE_GROUPS),
    (Kind.TOPICS, Part.CONTROLLER),
    # Who leads is told when the topic is served: a role is given to a shell that is there.
    (Kind.PARTITIONS, Part.BROKER),
    (Kind.PARTITIONS, Part.REPLICATION),
    # What lives with a partition that is led here hears of it from the broker, at the moment when the shell's role
    # changes (`topic/role_followers`). Who is written to by another comes before it.
    (Kind.PARTITIONS, Part.SCHEDULES),
    (Kind.PARTITIONS, Part.GROUPS),
    (Kind.PARTITIONS, Part.TRANSACTIONS),
    (Kind.PARTITIONS, Part.QUEUES),
    (Kind.PARTITIONS, Part.REDRIVES),
    (Kind.PARTITIONS, Part.CONTROLLER),
    # Which partition fires is asked of the image when one is due; whoever must let go hears of it here.
    (Kind.CRONS, Part.SCHEDULES),
    # A queue that goes with its topic finds the topic gone.
    (Kind.QUEUES, Part.QUEUES),
    # Who may write where is asked anew, by the new rules.
    (Kind.ACCESS, Part.AUTHORIZER),
    (Kind.ACCESS, Part.BROKER),
    (Kind.ACCESS, Part.LOGINS),
)


def place_of_kind(kind: Kind) -> int:
    return [each for each, _ in ORDER].index(kind)


def place_of_part(kind: Kind, part: Part | None) -> int:
    """Whoever only looks on is no part, and hears last."""
    if part is None:
        return len(ORDER)
    assert (kind, part) in ORDER, f"{part} hears of {kind} and has no row in the order"
    return ORDER.index((kind, part))
