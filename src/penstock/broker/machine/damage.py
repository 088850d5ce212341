"""What a shell remembers of a journal that it could not replay because it is damaged.

Nobody reads it again and again: damage stays until an operator has repaired the log, which needs a stopped node, or
until the store has read the log from its disk anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.broker.machine.portions import JournalDamagedError, describe_damage, repair_advice
from penstock.broker.partition.shell import PartitionShell


class JournalDamage:
    __slots__ = ("_generation", "_reason", "_shell")

    def __init__(self, shell: PartitionShell) -> None:
        self._shell = shell
        self._reason: str | None = None
        self._generation = -1

    @property
    def topic(self) -> str:
        return self._shell.topic

    @property
    def partition(self) -> int:
        return self._shell.index

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around a load: how it ends is how it is."""
        generation = self._shell.log.generation
        try:
            yield
        except JournalDamagedError as error:
            self._reason, self._generation = str(error), generation
            raise
        self._reason = None

    @property
    def reason(self) -> str | None:
        """What is damaged, and what an operator can do; None: nothing that would be known to stay."""
        return self._reason if self._generation == self._shell.log.generation else None

    @property
    def seen(self) -> str | None:
        """The same, for whoever looks after the node: also of damage that somebody met since the journal was replayed.
        What was replayed before is true and is served on, but would not be read again."""
        known = self._shell.log.damage
        if self.reason is not None or known is None:
            return self.reason
        return f"{describe_damage(self._shell, known.describe())} {repair_advice(self._shell)}"
