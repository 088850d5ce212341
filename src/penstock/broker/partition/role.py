"""What this node is to one partition: it leads it, follows another node that does, or neither.

Only who leads takes batches and answers readers. A role is a value and is replaced whole, at one moment: whoever has
waited compares it with the one that was there before.
"""

from __future__ import annotations

from typing import Final

import msgspec

NO_LEADER: Final = -1
NO_EPOCH: Final = -1
# Of a partition that has never been led by anybody else.
FIRST_EPOCH: Final = 0


class Leading(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    # Others have the partition too, or are about to: what is committed is theirs to say as well.
    is_replicated: bool = False

    @property
    def why_not(self) -> None:
        return None


class Following(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    # The node that leads.
    leader: int

    @property
    def why_not(self) -> str:
        return f"is led by node {self.leader}, in epoch {self.epoch}"


class Idle(msgspec.Struct, frozen=True, gc=False):
    """Nobody leads, as far as this node knows."""

    reason: str
    epoch: int = NO_EPOCH

    @property
    def why_not(self) -> str:
        return f"has no leader: {self.reason}"


Role = Leading | Following | Idle


def is_replicated(role: Role) -> bool:
    """What is committed is not for this node's disk alone to say. Of a partition that nobody leads nothing new is."""
    return role.is_replicated if isinstance(role, Leading) else isinstance(role, Following)


# One node has all there is to lead.
ALONE: Final = Leading(FIRST_EPOCH)
