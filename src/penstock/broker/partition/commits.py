"""The commitments of one partition, in either of two ways, chosen by its role:

    disk          one replica: kept when this node's disk has the batch (`disk_commits`)
    replicated    several: kept when the watermark has passed it (`replicated_commits`)

A partition that gets its second replica, or gives up its last but one, goes from one to the other: whoever waits for
the one is then told by the other.
"""

from __future__ import annotations

from typing import Protocol

from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.domain.config.topic import TopicConfig


class Commits(Protocol):
    @property
    def kept_end(self) -> int:
        """Everything below is kept, whatever the topic promises."""
        ...

    @property
    def has_enough(self) -> bool:
        """So many replicas are in sync as the topic asks for; without them nobody is promised that all have it."""
        ...

    @property
    def may_look(self) -> bool:
        """Whether somebody who only looks may be told what this node knows: with others it may have been replaced."""
        ...

    def configure(self, config: TopicConfig) -> None: ...

    def promise(self, acks: Acks, /) -> Commitment | None:
        """What the acknowledgement of the batch just written waits for; None: it is so already."""
        ...

    def commit(self) -> Commitment:
        """Has everything written so far kept, whatever the topic promises."""
        ...

    def give_up(self, loss: Loss) -> None:
        """Whoever waits is told at once, and what is written later has a commitment of its own."""
        ...

    def hand_over(self, heir: Commits) -> None:
        """Whoever waits here is told by the heir from now on."""
        ...

    def close(self) -> None:
        """No alarm after this; who waits for the disk is told when it has answered."""
        ...


def follow(followers: list[Commitment], leader: Commitment) -> None:
    """They end as it does."""

    def on_known(known: Commitment) -> None:
        for each in followers:
            each.settle(known.loss)

    leader.when_known(on_known)
