"""Bugs planted into the rules of replication and into what a shell owes them, each with what catches it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug
from support.replication.invariants import (
    DELAY_KEPT,
    DELAY_ONCE,
    MINIMUM,
    NOBODY_LEAVING_JOINS,
    ONE_LEADER,
    QUIET,
    SET_TRUTH,
    WATERMARK,
)

_RULES: Final = "penstock.domain.replication"
# The duties of a shell stand in the world's own.
_SHELL: Final = "support.replication"
WORLD: Final = "support.replication.stories"
# Everything that holds a name from a module which may be changed.
ANEW: Final = (f"{_RULES}.", f"{_SHELL}.")

PLAIN: Final = "plain"
MOVER: Final = "mover"


class WalkBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Of the stories in `stories`.
    kind: str


def _bug(
    name: str, module: str, right: str, wrong: str, *, caught_by: str, kind: str = PLAIN, first_seed: int = 0
) -> WalkBug:
    home = _SHELL if module in {"node", "log", "mover"} else _RULES
    return WalkBug(Bug(name, f"{home}.{module}", right, wrong, caught_by, first_seed), kind)


BUGS: Final = (
    # What counts
    _bug(
        "a follower fetches before its sync",
        "node",
        "            if log.durable_end == log.end:\n",
        "            if True:\n",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a leader counts its end and not its durable end",
        "node",
        "progress.on_own_end(number, log.durable_end)",
        "progress.on_own_end(number, log.end)",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a pending addition is left out of the watermark",
        "progress",
        "waited = self._pending.union(self.state.in_sync) - {self.node}",
        "waited = {*self.state.in_sync} - {self.node}",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a set counts before it is confirmed",
        "progress",
        "        self._is_busy = True\n",
        "        self._is_busy, self.state = True, wanted\n",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a failed proposal is taken for done",
        "progress",
        "            self._must_read = True\n",
        "            self.state, self._pending, self._is_busy = proposal.state, frozenset(), False\n"
        "            self._set_up()\n",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a proposal that was not found in the store is taken for lost",
        "progress",
        "        self._must_read = False\n        self._is_busy = False\n        return has_moved\n",
        "        self._must_read, self._is_busy, self._pending = False, False, frozenset()\n"
        "        return self._set_up()\n",
        caught_by=SET_TRUTH,
        first_seed=1050,
    ),
    _bug(
        "the watermark moves below the minimum",
        "progress",
        "self._is_frozen = len(self.state.in_sync) < self._minimum or bool(self.state.eligible)",
        "self._is_frozen = bool(self.state.eligible)",
        caught_by=MINIMUM,
    ),
    _bug(
        "the watermark moves while somebody is eligible",
        "progress",
        "self._is_frozen = len(self.state.in_sync) < self._minimum or bool(self.state.eligible)",
        "self._is_frozen = len(self.state.in_sync) < self._minimum",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "the watermark goes back",
        "progress",
        "        if end <= self.watermarks[log]:\n",
        "        if end == self.watermarks[log]:\n",
        caught_by=WATERMARK,
    ),
    _bug(
        "nobody ceases to be eligible",
        "sets",
        "    eligible = () if len(in_sync) >= minimum else tuple(",
        "    eligible = tuple(",
        caught_by=QUIET,
    ),
    # Who joins
    _bug(
        "a node joins with the life of an earlier one",
        "progress",
        "return Propose(wanted, self.revision, joins)",
        "return Propose(wanted, self.revision)",
        caught_by=SET_TRUTH,
        first_seed=715,
    ),
    _bug(
        "a new life is known by what the last one held",
        "progress",
        "        if book is None or book.life != life:\n",
        "        if book is None:\n",
        caught_by=QUIET,
    ),
    _bug(
        "companions are left out of in sync",
        "progress",
        "return all(held >= end for held, end in zip(self.held, ends, strict=True))",
        "return self.held[0] >= ends[0]",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "who has not reached the start of the epoch joins",
        "progress",
        "            and book.holds(self.epoch_starts)\n",
        "",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "who lacks what is committed joins",
        "progress",
        "            and book.holds(self.watermarks)\n",
        "",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a damaged replica joins by a fetch of before",
        "progress",
        "            and node not in self.state.mending\n",
        "",
        caught_by=SET_TRUTH,
        first_seed=560,
    ),
    _bug(
        "a draining replica is waited for again",
        "progress",
        "            and standing.may_join\n",
        "",
        caught_by=NOBODY_LEAVING_JOINS,
    ),
    # Who leaves, who leads
    _bug(
        "a damaged replica stays electable",
        "election",
        "    if is_whole:\n        return without",
        "    if True:\n        return without",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "an epoch is kept over a restart",
        "state",
        "return self.leader == node and (self.life == life or self.is_alone(node))",
        "return self.leader == node",
        caught_by=ONE_LEADER,
    ),
    _bug(
        "the controller does not see that a leader was started anew",
        "election",
        "        and view[node].life == state.life\n",
        "",
        caught_by=QUIET,
    ),
    _bug(
        "who is not in sync is elected",
        "election",
        "if node in wanted and node in view and view[node].is_admitted]",
        "if node in view and view[node].is_admitted]",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "who is not admitted is elected",
        "election",
        "if node in wanted and node in view and view[node].is_admitted]",
        "if node in wanted and node in view]",
        caught_by=SET_TRUTH,
        first_seed=340,
    ),
    _bug(
        "a wiped directory keeps its seat",
        "membership",
        "    if trust is Trust.NOTHING:\n",
        "    if False:\n",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "an older copy of a directory keeps its seat",
        "membership",
        "    if member.admitted_epoch not in directory.epochs:\n        return (\n",
        "    if False:\n        return (\n",
        caught_by=SET_TRUTH,
        first_seed=660,
    ),
    # Where logs part
    _bug(
        "a fetch of another epoch counts",
        "fetch",
        "    if epoch != state.epoch:\n",
        "    if False:\n",
        caught_by=SET_TRUTH,
        first_seed=2568,
    ),
    _bug(
        "logs are not compared by epochs",
        "truncation",
        "        return None\n    return found\n",
        "        return None\n    return None\n",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "a follower cuts to its watermark",
        "truncation",
        "    offset = min(diverging.end_offset, own.end_offset)\n",
        "    offset = watermark\n",
        caught_by=SET_TRUTH,
        first_seed=360,
    ),
    _bug(
        "a follower takes one step of cutting only",
        "truncation",
        "    offset = min(diverging.end_offset, own.end_offset)\n",
        "    offset = min(diverging.end_offset, log_end)\n",
        caught_by=QUIET,
    ),
    _bug(
        "a fetch that diverges counts",
        "node",
        "            if found is None:\n",
        "            if True:\n",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "the list of epochs is kept when no byte is cut",
        "log",
        "        self.epochs.truncate_end(offset)\n",
        "        if offset < self.durable_end:\n            self.epochs.truncate_end(offset)\n",
        caught_by=QUIET,
    ),
    _bug(
        "a late reply is used although the log has moved on",
        "node",
        "            if (log.end, log.epochs.latest) != (end, last_epoch):\n                continue\n",
        "",
        caught_by=SET_TRUTH,
    ),
    _bug(
        "members leave although nobody can lead",
        "election",
        "return _led_by_nobody(state) if state.has_leader else None",
        "return replace(_led_by_nobody(state), in_sync=state.in_sync[:1]) if state.has_leader else None",
        caught_by=QUIET,
        first_seed=520,
    ),
    # What the release mover needs of it
    _bug(
        "a schedule says done before the message is committed",
        "mover",
        "        elif data.watermark > place:\n",
        "        elif data.durable_end > place:\n",
        caught_by=DELAY_KEPT,
        kind=MOVER,
        first_seed=440,
    ),
    _bug(
        "a message is released before its intent is committed",
        "mover",
        "        if node.logs[GroupLog.SCHEDULE].watermark <= offset:\n            return\n",
        "",
        caught_by=DELAY_ONCE,
        kind=MOVER,
    ),
    _bug(
        "a machine is loaded before the barrier",
        "progress",
        "        return all(mark >= start for mark, start in zip(self.watermarks, self.epoch_starts, strict=True))\n",
        "        return True\n",
        caught_by=DELAY_ONCE,
        kind=MOVER,
        first_seed=150,
    ),
    _bug(
        "the barrier is that of the data log alone",
        "progress",
        "        return all(mark >= start for mark, start in zip(self.watermarks, self.epoch_starts, strict=True))\n",
        "        return self.watermarks[0] >= self.epoch_starts[0]\n",
        caught_by=DELAY_ONCE,
        kind=MOVER,
    ),
)
