"""Cuts off the end of a log: what a follower does with batches that its leader does not have.

    loop      begin     nothing is appended from now on; what is readable stays readable
    turn      what was written is made durable, or a later segment would be before an earlier one
    thread    save      the node's checkpoint claims nothing past the cut
    thread    run       files beside the log, saved epochs and producers, then the bytes, the last first; then the log
                        is read again from its files: producers and transactions are those of what is left
    loop      end       the log is what was read

A crash between any two steps leaves a log that ends at the cut or later, and nothing that claims more than there is:
the cut is never taken for a lost end. `LogStore.cut_log` sees to it that nobody else works on the log's files meanwhile
(`log/maintenance`) and that no checkpoint speaks of it. Its caller has let go of what was made of the records: no
machine saves anything of them any more.
"""

from __future__ import annotations

import msgspec

from penstock.base.threads import finish_in_thread
from penstock.storage.commit.checkpoint_work import key_of, shortened
from penstock.storage.commit.checkpoints import Checkpoints
from penstock.storage.commit.group_commit import GroupCommit
from penstock.storage.context import StoreContext
from penstock.storage.log.checkpoint_file import LogCheckpoint
from penstock.storage.log.damage import write_places
from penstock.storage.log.derived import drop_derived
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.recovered import RecoveredLog
from penstock.storage.log.recovery import LogRecovery
from penstock.storage.log.refusals import refusal_of
from penstock.storage.log.swap import corrected, forget_swaps
from penstock.storage.log.truncation import cut_segments, save_forgotten_aborts


class CutRefused(msgspec.Struct, frozen=True):
    """Nothing was cut: what everybody could read would be gone, or all of the log."""

    offset: int
    log_start: int
    readable_end: int

    def describe(self) -> str:
        if self.offset < self.log_start:
            return f"a cut at {self.offset} lies before the start of the log, {self.log_start}"
        return f"a cut at {self.offset} would take records below {self.readable_end} that readers have been given"


def refuse_cut(log: PartitionLog, offset: int, *, is_unclean: bool) -> CutRefused | None:
    lowest = log.log_start if is_unclean else max(log.log_start, log.readable_end)
    return CutRefused(offset, log.log_start, log.readable_end) if offset < lowest else None


class LogCut:
    """One cut of one log; use once."""

    def __init__(self, context: StoreContext, checkpoints: Checkpoints, log: PartitionLog, offset: int) -> None:
        assert log.log_start <= offset <= log.log_end, (log.log_start, offset, log.log_end)
        self._context = context
        self._checkpoints = checkpoints
        self._log = log
        self._offset = offset
        self._readable_end = min(log.readable_end, offset)
        self._is_unclean = offset < log.readable_end
        self._entry: LogCheckpoint | None = None
        self._has_begun = False
        self._recovered: RecoveredLog | None = None

    def begin(self) -> None:
        """On the loop."""
        self._log.begin_cut(self._offset)

    async def carry_out(self, group_commit: GroupCommit) -> None:
        """What is between `begin` and `end`. Raises OSError; StorageError if the disk does not take what is there."""
        if self._log in await group_commit.join(self._log).wait():
            raise refusal_of(self._log)
        async with self._checkpoints.turn:
            await finish_in_thread(self.save)
        await finish_in_thread(self.run)

    def save(self) -> None:
        """Blocking, while no checkpoint runs: recovery must not believe bytes past the cut, whatever is written there
        later."""
        log = self._log
        known = self._checkpoints.entries.get(key_of(log))
        self._has_begun = True
        if known is None:
            return
        is_believed = known.end_offset <= log.saved_end
        segments = corrected(known.segments, log.swaps) if is_believed else ()
        entry = shortened(msgspec.structs.replace(known, segments=tuple(segments)), self._offset, log.epochs)
        self._entry = entry
        # Mostly it says nothing of what goes, which is young, and need not be written.
        if msgspec.structs.replace(entry, is_clean=known.is_clean) != known:
            self._checkpoints.replace(key_of(log), entry)

    def run(self) -> None:
        """Blocking. On an OSError only recovery can say how far it came: `end` takes the log offline."""
        log, files, offset = self._log, self._context.files, self._offset
        directory = log.home.directory
        # An index that a reader has just made anew must not be saved: other bytes will stand there.
        self._context.indexes.part_with([segment for segment in log.segments if segment.next_offset > offset])
        drop_derived(files, directory, offset)
        save_forgotten_aborts(files, log)
        forget_swaps(files, directory, offset)
        if log.damages:
            # Of what goes nothing must be remembered: other bytes will stand there.
            kept = tuple(damage for damage in log.damages.places if damage.offset_end <= offset)
            write_places(files, directory, kept)
        cut_segments(files, log, offset)
        recovery = LogRecovery(self._context, log.home, self._entry, is_clean=False, readable_end=self._readable_end)
        self._recovered = recovery.run()

    def end(self) -> None:
        """On the loop, whatever happened."""
        log = self._log
        log.end_cut()
        if log.is_closed:
            return  # its topic was deleted meanwhile
        if self._recovered is not None:
            log.adopt(self._recovered)
        elif self._has_begun or self._is_unclean:
            log.fail(f"the cut at {self._offset} did not come to its end")
