"""A leader that may have been replaced: a partition of one node whose only other replica has everything at once, and is
heard or not, as a test says."""

from __future__ import annotations

from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.role import Leading
from penstock.broker.partition.shell import PartitionShell


class Doubt:
    """In the place of the replica group of these logs."""

    def __init__(self, *shells: PartitionShell) -> None:
        self.is_heard = True
        for shell in shells:
            _Log(shell, self)


class _Log:
    def __init__(self, shell: PartitionShell, doubt: Doubt) -> None:
        self._shell = shell
        self._doubt = doubt
        shell.take_role(Leading(shell.role.epoch, is_replicated=True))
        assert shell.replicated is not None
        shell.replicated.listener = self

    def on_written(self) -> None:
        self.on_own_end()

    def on_own_end(self) -> None:
        replicated = self._shell.replicated
        assert replicated is not None
        replicated.advance(replicated.own_end)

    def on_log_start(self, _start: int) -> Commitment:
        raise AssertionError("nothing is removed here")

    def on_failed(self) -> None: ...

    def on_full(self) -> None: ...

    def may_look(self) -> bool:
        return self._doubt.is_heard
