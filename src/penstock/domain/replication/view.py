"""Who is there, as elections and leaders see it: one standing for each node whose key the metadata store has.

A node that is not in the view is dead to those who decide. The view may lag: a choice of somebody who has died
meanwhile, or lives another life, is put right by the next choice and harms nobody, because a node leads in the life
alone that was elected.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Duty(enum.Enum):
    """What a node says of itself in its key."""

    STARTING = "starting"
    SERVING = "serving"
    # On its way out: it hands over what it leads, and no set takes it in.
    DRAINING = "draining"


class Standing(msgspec.Struct, frozen=True, gc=False):
    # The broker epoch: the create revision of its key, compared for equality only.
    life: int
    # The controller has judged this life (`membership`) and done what follows; before, it neither fetches nor leads.
    is_admitted: bool = True
    duty: Duty = Duty.SERVING
    # Its disk takes more.
    has_room: bool = True

    @property
    def may_join(self) -> bool:
        """Into the in-sync set of a partition that it follows."""
        return self.is_admitted and self.duty is Duty.SERVING


View = Mapping[int, Standing]
