"""Bugs that the simulation of nodes must find: each with the invariants that may name it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug
from support.sim.invariants import (
    ACKED_PRESENT,
    CANCELLED_STAYS,
    COMMITTED_OFFSET_KEPT,
    DEAD_LETTER_ONCE,
    DELAY_ONCE,
    NO_DAMAGE,
    ONCE_IF_IDEMPOTENT,
    ONE_LEASE_HOLDER,
    ORDER_PER_PRODUCER,
    QUEUE_ACK_KEPT,
    READ_COMMITTED,
    READ_STAYS,
    REPLY_AFTER_COMMIT,
    WELL_AFTER_QUIET,
)

STORY: Final = "support.sim.story"
# Everything: a node is made of all of it. The packages too, which would else hand out the modules that they know.
ANEW: Final = ("penstock.", "support.sim", "support.storage")


class NodeBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Under which it shows.
    load: str
    # Others that the same bug may break first.
    also: tuple[str, ...] = ()

    @property
    def caught_by(self) -> tuple[str, ...]:
        return (self.bug.invariant, *self.also)


LOG_BUGS: Final = (
    NodeBug(
        Bug(
            "the reply does not wait for the disk",
            "penstock.broker.partition.disk_commits",
            "            turn.add_done_callback(self._on_done)\n",
            "            turn.add_done_callback(self._on_done)\n            commitment.settle()\n",
            REPLY_AFTER_COMMIT,
        ),
        "log",
    ),
    NodeBug(
        Bug(
            "a turn promises what was written while it ran",
            "penstock.storage.log.partition_log",
            "self.durable_end = max(self.durable_end, sync.end_offset)",
            "self.durable_end = self.log_end",
            READ_STAYS,
            first_seed=51,
        ),
        "log",
        also=(REPLY_AFTER_COMMIT, ACKED_PRESENT),
    ),
    NodeBug(
        Bug(
            "readers are given what the disk does not have yet",
            "penstock.broker.partition.disk_commits",
            "        if self._is_synced:\n            return self.commit()\n",
            "        if self._is_synced:\n            self._log.advance_readable(self._log.log_end)\n"
            "            return self.commit()\n",
            READ_STAYS,
        ),
        "log",
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
            first_seed=37,
        ),
        "log",
        also=(ACKED_PRESENT, READ_STAYS),
    ),
    NodeBug(
        Bug(
            "a commit of offsets is confirmed before it is durable",
            "penstock.broker.group.shell",
            "        is_durable = await self._journal.until_durable(may_wait=may_wait)\n",
            "        is_durable = True\n",
            COMMITTED_OFFSET_KEPT,
        ),
        "positions",
    ),
    NodeBug(
        Bug(
            "sequences are not known after a crash",
            "penstock.storage.log.producer_recovery",
            "        if 0 <= self._offset <= header.base_offset:\n",
            "        if False:\n",
            ONCE_IF_IDEMPOTENT,
        ),
        "log",
        also=(ORDER_PER_PRODUCER,),
    ),
    NodeBug(
        Bug(
            "a duplicate is confirmed before the first one is durable",
            "penstock.broker.partition.shell",
            "        commitment = None if offset < log.readable_end else self._commits.promise(acks)\n",
            "        commitment = None\n",
            REPLY_AFTER_COMMIT,
        ),
        "log",
    ),
    NodeBug(
        Bug(
            "half a batch is left after a write that failed",
            "penstock.storage.log.refusals",
            "            segment.file.truncate(segment.size)\n",
            "            pass\n",
            NO_DAMAGE,
            first_seed=44,
        ),
        "log",
        also=(REPLY_AFTER_COMMIT, ACKED_PRESENT, READ_STAYS, WELL_AFTER_QUIET),
    ),
    NodeBug(
        Bug(
            "a crash is taken for a clean end",
            "penstock.storage.store",
            "self.statistics.was_clean = marker == _seal_of(payload)",
            "self.statistics.was_clean = True",
            NO_DAMAGE,
        ),
        "log",
        also=(ACKED_PRESENT, READ_STAYS, WELL_AFTER_QUIET, REPLY_AFTER_COMMIT, ONE_LEASE_HOLDER),
    ),
)

MACHINE_BUGS: Final = (
    NodeBug(
        Bug(
            "an accepted message is confirmed before it is durable",
            "penstock.broker.queue.settling",
            "        if not await shell.is_durable():\n",
            "        if False:\n",
            QUEUE_ACK_KEPT,
            first_seed=4,
        ),
        "queue",
    ),
    NodeBug(
        Bug(
            "messages are given out before their lease is durable",
            "penstock.broker.queue.delivery",
            "                if not await shell.is_durable() or not shell.is_loaded:\n",
            "                if False:\n",
            ONE_LEASE_HOLDER,
        ),
        "queue",
    ),
    NodeBug(
        Bug(
            "a lease does not end",
            "penstock.domain.queue.live",
            "heappush(self._lease_alarms, (hold.until_ms, hold))",
            "heappush(self._lease_alarms, (hold.until_ms + 3_600_000, hold))",
            WELL_AFTER_QUIET,
        ),
        "queue",
    ),
    NodeBug(
        Bug(
            "a lease ends before its time",
            "penstock.domain.queue.live",
            "while alarms and alarms[0][0] <= now_ms and len(due) < count_max:",
            "while alarms and alarms[0][0] <= now_ms + 100 and len(due) < count_max:",
            ONE_LEASE_HOLDER,
            first_seed=21,
        ),
        "queue",
    ),
    NodeBug(
        Bug(
            "a dead letter leaves before its intent is durable",
            "penstock.broker.queue.mover",
            "        if not await shell.is_durable():\n            return False\n",
            "",
            DEAD_LETTER_ONCE,
            first_seed=19,
        ),
        "queue",
    ),
    NodeBug(
        Bug(
            "a dead letter that was sent is not recognised",
            "penstock.broker.queue.mover",
            "        return build_batch(\n            records, producer_id",
            "        return build_batch(records)\n        return build_batch(\n            records, producer_id",
            DEAD_LETTER_ONCE,
            first_seed=6,
        ),
        "queue",
    ),
    NodeBug(
        Bug(
            "a delayed message is released before its intent is durable",
            "penstock.broker.schedule.mover",
            "await asyncio.gather(self._prepare(move, first, sources), shell.journal.until_durable())",
            "await self._prepare(move, first, sources), True",
            DELAY_ONCE,
        ),
        "delays",
    ),
    NodeBug(
        Bug(
            "a delayed message is done with before it is durable",
            "penstock.broker.schedule.mover",
            "if commitment is not None and not await commitment.kept():",
            "if False:",
            DELAY_ONCE,
            first_seed=98,
        ),
        "delays",
    ),
    NodeBug(
        Bug(
            "a delayed message is cancelled before that is durable",
            "penstock.broker.schedule.pending",
            "[write_row(record, entry=row.key) for record in decision.records])\n"
            "        return await self._shell.settle(decision.reply)\n\n    async def reschedule",
            "[write_row(record, entry=row.key) for record in decision.records])\n"
            "        return decision.reply\n\n    async def reschedule",
            CANCELLED_STAYS,
        ),
        "delays",
    ),
    NodeBug(
        Bug(
            "a marker leaves before the decision is durable",
            "penstock.broker.transaction.shell",
            "self._journal.when_durable(partial(self._on_prepared, self._machine, effects))",
            "self._on_prepared(self._machine, effects, True)",
            READ_COMMITTED,
            first_seed=218,
        ),
        "transactions",
        # Its records count, and its position does not.
        also=(COMMITTED_OFFSET_KEPT,),
    ),
    NodeBug(
        Bug(
            "the offsets of a transaction count before its end",
            "penstock.domain.group.offset_store",
            "            self._pending.setdefault(record.producer_id, {})[place] = (self._applied_count, record)\n",
            "            self._pending.setdefault(record.producer_id, {})[place] = (self._applied_count, record)\n"
            "            self._committed[place] = record\n",
            COMMITTED_OFFSET_KEPT,
        ),
        "transactions",
    ),
    NodeBug(
        Bug(
            "the end of a transaction is confirmed before it is durable",
            "penstock.broker.transaction.shell",
            "        self._carry_out(decision)\n"
            "        return await self._refuse_reply(is_look=not decision.records) or decision.reply\n",
            "        self._carry_out(decision)\n        return decision.reply\n",
            READ_COMMITTED,
            first_seed=13,
        ),
        "transactions",
        also=(COMMITTED_OFFSET_KEPT,),
    ),
)

BUGS: Final = (*LOG_BUGS, *MACHINE_BUGS)
