"""Bugs that the simulation of nodes must find: each with the invariants that may name it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug
from support.sim.invariants import (
    ACKED_PRESENT,
    COMMITTED_OFFSET_KEPT,
    ONCE_IF_IDEMPOTENT,
    ORDER_PER_PRODUCER,
    READ_STAYS,
    REPLY_AFTER_COMMIT,
    WELL_AFTER_QUIET,
)

STORY: Final = "support.sim.story"
# Everything: a node is made of all of it. The packages too, which would else hand out the modules that they know.
ANEW: Final = ("penstock.", "support.sim", "support.storage")


class NodeBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Others that the same bug may break first.
    also: tuple[str, ...] = ()

    @property
    def caught_by(self) -> tuple[str, ...]:
        return (self.bug.invariant, *self.also)


BUGS: Final = (
    NodeBug(
        Bug(
            "the reply does not wait for the disk",
            "penstock.broker.partition.commits",
            "            turn.add_done_callback(self._on_done)\n",
            "            turn.add_done_callback(self._on_done)\n            commitment.settle()\n",
            REPLY_AFTER_COMMIT,
        ),
    ),
    NodeBug(
        Bug(
            "a turn promises what was written while it ran",
            "penstock.storage.log.partition_log",
            "self.durable_end = max(self.durable_end, sync.end_offset)",
            "self.durable_end = self.log_end",
            READ_STAYS,
            first_seed=120,
        ),
        also=(REPLY_AFTER_COMMIT, ACKED_PRESENT),
    ),
    NodeBug(
        Bug(
            "readers are given what the disk does not have yet",
            "penstock.broker.partition.shell",
            "        if self._is_synced:\n            return self._commits.commit()\n",
            "        if self._is_synced:\n            self.log.advance_readable(self.log.log_end)\n"
            "            return self._commits.commit()\n",
            READ_STAYS,
        ),
        # A duplicate of what is readable passes for durable, and a log whose readers are ahead of it is not taken back.
        also=(REPLY_AFTER_COMMIT, WELL_AFTER_QUIET),
    ),
    NodeBug(
        Bug(
            "a failed sync is taken for one that went well",
            "penstock.storage.commit.group_commit",
            "                log.fail(reason)\n",
            "                pass\n",
            REPLY_AFTER_COMMIT,
        ),
        also=(ACKED_PRESENT, READ_STAYS),
    ),
    NodeBug(
        Bug(
            "a commit of offsets is confirmed before it is durable",
            "penstock.broker.group.shell",
            "return decision.reply if await self._journal.until_durable(may_wait=may_wait) else self.unavailable",
            "return decision.reply",
            COMMITTED_OFFSET_KEPT,
        ),
    ),
    NodeBug(
        Bug(
            "sequences are not known after a crash",
            "penstock.storage.log.producer_recovery",
            "        if 0 <= self._offset <= header.base_offset:\n",
            "        if False:\n",
            ONCE_IF_IDEMPOTENT,
        ),
        also=(ORDER_PER_PRODUCER,),
    ),
)
