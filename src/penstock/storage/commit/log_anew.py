"""Begins a log anew, at an offset that its leader names: empty, readable to there, and so after every restart.

    loop      begin     nothing is taken or served from now on
    thread    save      the node's checkpoint does not speak of the log any more
    thread    run       what there was is renamed away in one step; then an empty segment, whose name says where the log
                        goes on, and the start
    loop      end       the log is that

A crash leaves the log as it was, or empty: at the offset, or at 0 if it came before that was written.
"""

from __future__ import annotations

from penstock.storage.commit.checkpoint_work import key_of
from penstock.storage.commit.checkpoints import Checkpoints
from penstock.storage.context import StoreContext
from penstock.storage.log.files import write_log_start
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.recovered import RecoveredLog
from penstock.storage.log.recovery import LogRecovery
from penstock.storage.log.set_aside import Aside, remove_old_damaged, set_aside
from penstock.storage.segment.facts import Segment


class LogAnew:
    """Use once."""

    def __init__(
        self, context: StoreContext, checkpoints: Checkpoints, log: PartitionLog, offset: int, kind: Aside
    ) -> None:
        assert offset >= 0
        self._context = context
        self._checkpoints = checkpoints
        self._log = log
        self._offset = offset
        self._kind = kind
        self._recovered: RecoveredLog | None = None
        # Where the log of before is kept.
        self.path: str | None = None

    def begin(self) -> None:
        """On the loop."""
        self._log.begin_cut(self._log.log_start)

    def save(self) -> None:
        """Blocking, while no checkpoint runs."""
        self._checkpoints.forget([key_of(self._log)])

    def run(self) -> None:
        """Blocking. On an OSError only recovery can say how far it came: `end` takes the log offline."""
        files, home = self._context.files, self._log.home
        self.path = set_aside(files, home, self._kind, self._context.clock.now_ms())
        topic_file = home.create(files)
        if topic_file is not None:
            topic_file.sync()
        if self._offset:
            segment = Segment(home.directory, self._offset, begun_ms=self._context.clock.now_ms())
            files.open(segment.path, create=True)
            write_log_start(files, home.directory, self._offset)
        for directory in (home.directory, home.topic_directory, home.logs_directory):
            files.sync_directory(directory)
        self._recovered = LogRecovery(self._context, home, None, is_clean=False).run()
        if self._kind is Aside.DROPPED and self.path is not None:
            files.remove_tree(self.path)
            self.path = None
        elif self.path is not None:
            remove_old_damaged(files, home)

    def end(self) -> None:
        """On the loop, whatever happened."""
        log = self._log
        log.end_cut()
        if log.is_closed:
            return  # its topic was deleted meanwhile
        if self._recovered is not None:
            log.adopt(self._recovered)
        else:
            log.fail(f"it could not be begun anew at {self._offset}")
