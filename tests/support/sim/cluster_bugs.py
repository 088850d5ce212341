"""Bugs that the simulation of a cluster must find, each in a real module and with its number in the design (§8.4)."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug
from support.sim.invariants import (
    ACKED_PRESENT,
    DELAY_ONCE,
    EQUAL_BELOW_WATERMARK,
    NO_DAMAGE,
    NO_PHANTOM,
    ONCE_IF_IDEMPOTENT,
    ONE_LEADER,
    ONE_LEASE_HOLDER,
    ORDER_PER_PRODUCER,
    OWN_ASSERTION,
    READ_STAYS,
    REPLY_AFTER_COMMIT,
    SET_TRUTH,
    WATERMARK_MONOTONIC,
    WELL_AFTER_QUIET,
)

STORY: Final = "support.sim.cluster_story"
# What a log that has lost or invented something breaks, whichever is seen first.
LOSS: Final = (SET_TRUTH, ACKED_PRESENT, READ_STAYS, REPLY_AFTER_COMMIT, WATERMARK_MONOTONIC, EQUAL_BELOW_WATERMARK)


class ClusterBug(msgspec.Struct, frozen=True, kw_only=True):
    # Of §8.4 in the design.
    number: int
    bug: Bug
    load: str
    # Faults that its story is about.
    faults: tuple[str, ...] = ()
    # Others that the same bug may break first.
    also: tuple[str, ...] = ()

    @property
    def caught_by(self) -> tuple[str, ...]:
        return (self.bug.invariant, *self.also)


def _bug(
    number: int,
    name: str,
    module: str,
    right: str,
    wrong: str,
    *,
    caught_by: str,
    also: tuple[str, ...] = (),
    load: str = "log",
    faults: tuple[str, ...] = (),
    first_seed: int = 0,
) -> ClusterBug:
    bug = Bug(name, f"penstock.{module}", right, wrong, caught_by, first_seed)
    return ClusterBug(number=number, bug=bug, load=load, faults=faults, also=also)


POWER: Final = ("cut_power", "crash_while_slow", "slow_disk")
CHANGES: Final = ("kill", "pause", "cut_off")
DOUBTS: Final = ("store_mute", "store_unsure", "store_slow", "cut_off", "pause")

BUGS: Final = (
    _bug(
        1,
        "a follower fetches before its sync",
        "broker.replication.followed",
        "            commitment = replicated.own()\n",
        "            replicated.own()\n            log.durable_end = log.log_end\n",
        caught_by=REPLY_AFTER_COMMIT,
        also=LOSS,
        faults=POWER,
    ),
    _bug(
        2,
        "a leader counts its end and not its durable end",
        "broker.replication.group",
        "        return 0 if replicated is None else replicated.own_end\n",
        "        return 0 if replicated is None else self.log_end\n",
        caught_by=SET_TRUTH,
        also=LOSS,
        faults=POWER,
        first_seed=2,
    ),
    _bug(
        6,
        "a change of unknown outcome is sent again, blindly",
        "broker.replication.in_sync",
        "            await self._read_all(proposals)\n            return\n        if result.ok:\n",
        "            result = await self._store.txn((), puts)\n        if result.ok:\n",
        caught_by=ONE_LEADER,
        also=(*LOSS, WELL_AFTER_QUIET),
        faults=("store_away", "cut_off", "store_unsure", "kill"),
        first_seed=5,
    ),
    _bug(
        9,
        "where an epoch begins is not noted by who takes over",
        "broker.partition.shell",
        "            self.log.note_epoch(epoch)\n            self._epoch_start = self.log.log_end\n",
        "            pass\n",
        caught_by=WATERMARK_MONOTONIC,
        also=(*LOSS, WELL_AFTER_QUIET, OWN_ASSERTION),
        faults=CHANGES,
        first_seed=18,
    ),
    _bug(
        11,
        "a fetch that diverges counts",
        "broker.replication.feed",
        "        if answer is not None:\n            session.refuse(answer)\n            return\n        log.group",
        "        if answer is not None and answer.diverging is None:\n            session.refuse(answer)\n"
        "            return\n        if answer is not None:\n            session.refuse(answer)\n        log.group",
        caught_by=SET_TRUTH,
        also=(*LOSS, WELL_AFTER_QUIET, NO_DAMAGE),
        faults=CHANGES,
    ),
    _bug(
        12,
        "the list of epochs is kept when no byte is cut",
        "storage.store",
        "                log.epochs.truncate_end(log.log_end)\n",
        "",
        caught_by=WELL_AFTER_QUIET,
        faults=CHANGES,
        first_seed=21,
    ),
    _bug(
        15,
        "a wiped directory keeps its seat",
        "cluster.controller.admissions",
        "        if member is None or member.record.admitted_epoch == NO_LIFE:\n",
        "        if True:\n",
        caught_by=SET_TRUTH,
        also=LOSS,
        faults=("lose_disk",),
        first_seed=1,
    ),
    _bug(
        16,
        "the watermark moves below the minimum",
        "domain.replication.progress",
        "        self._is_frozen = len(self.state.in_sync) < self._minimum or bool(self.state.eligible)\n",
        "        self._is_frozen = False\n",
        caught_by=REPLY_AFTER_COMMIT,
        also=LOSS,
        faults=("cut_off", "kill", "lose_disk"),
        first_seed=8,
    ),
    _bug(
        17,
        "the end of a log goes back for who asks",
        "broker.partition.shell",
        "        return ReadProblem.END_UNKNOWN if self.log.readable_end < self._epoch_start else None\n",
        "        return None\n",
        caught_by=WATERMARK_MONOTONIC,
        faults=CHANGES,
        first_seed=13,
    ),
    _bug(
        22,
        "a batch with its hole is written before the row is committed",
        "broker.schedule.delayed_batches",
        "        refused = await _schedule(schedule, found, delayed)\n",
        "        _task = asyncio.ensure_future(_schedule(schedule, found, delayed))\n        refused = None\n",
        caught_by=DELAY_ONCE,
        also=(REPLY_AFTER_COMMIT,),
        load="delays",
        faults=CHANGES,
        first_seed=1,
    ),
    _bug(
        35,
        "a follower decides by itself what is old",
        "broker.topic.upkeep",
        "            if not shell.is_leading:\n",
        "            if False:\n",
        caught_by=SET_TRUTH,
        load="ring",
        faults=("step_clock",),
        first_seed=15,
    ),
    _bug(
        38,
        "a watch resumes one revision late",
        "cluster.catalog.watch",
        "self.store.watch(self.keys.root, self._revision + 1)",
        "self.store.watch(self.keys.root, self._revision + 2)",
        caught_by=WELL_AFTER_QUIET,
        also=LOSS,
        faults=("store_unsure", "kill"),
        first_seed=1,
    ),
    _bug(
        39,
        "a lease is shortened by the clock of the new leader",
        "broker.queue.shell",
        "            if is_takeover:\n",
        "            if False:\n",
        caught_by=ONE_LEASE_HOLDER,
        load="queue",
        faults=("kill", "stop"),
        first_seed=18,
    ),
    _bug(
        40,
        "a follower does not check checksums",
        "storage.log.replica",
        "            header = check_batch(data, position)\n",
        "            from penstock.codec.batch.header import read_header\n\n"
        "            header = read_header(data, position)\n",
        caught_by=NO_DAMAGE,
        also=(EQUAL_BELOW_WATERMARK, NO_PHANTOM, *LOSS, ONCE_IF_IDEMPOTENT, ORDER_PER_PRODUCER),
        faults=("spoil_between",),
    ),
)
