"""The transaction coordinator, as far as a group notices it: it is asked whether a transaction is under way, slowly at
times, and says when one has ended, until it is heard.

A group's own promises about transactions are checked here:

    wrong transaction   an offset counts only if the transaction that it was committed in has committed
    left behind         nothing waits for a transaction whose end has been heard of
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.domain.group.commands import CommitTransactionOffsets, EndTransaction, GroupReply, Refused
from penstock.domain.group.records import GroupRecord, OffsetStored
from penstock.domain.group.values import GroupError

if TYPE_CHECKING:
    from support.group.world import OnReply, World

RETRY_MS: Final = 400
# Longer than a client waits for its commit: it may have ended the transaction, and begun the next, by then.
SLOW_ANSWER_MS: Final = 9_000
# How long a copy of a marker may be under way after the first was heard. Only version 2 has copies.
LATE_COPY_MS: Final = 6_000


class Transaction(msgspec.Struct):
    producer_id: int
    producer_epoch: int
    version: int
    number: int
    # None while it is under way.
    is_committed: bool | None = None
    is_heard: bool = False

    @property
    def name(self) -> str:
        """Goes with every offset, so that it is known where one comes from."""
        return f"transaction {self.number}"


class Transactions:
    def __init__(self, world: World) -> None:
        self._world = world
        self._all: list[Transaction] = []
        self._current: dict[int, Transaction] = {}
        self._by_name: dict[str, Transaction] = {}
        self.late_count = 0

    def begin(self, producer_id: int) -> Transaction:
        before = self._current.get(producer_id)
        assert before is None or before.is_heard, "a producer has one transaction at a time"
        version = producer_id % 2 + 1
        epoch = 0 if before is None else before.producer_epoch + version - 1
        begun = Transaction(producer_id, epoch, version, len(self._all))
        self._all.append(begun)
        self._current[producer_id] = self._by_name[begun.name] = begun
        return begun

    # Commits

    def submit(self, command: CommitTransactionOffsets, on_reply: OnReply) -> None:
        """The shell's part: a guard, the question, the answer, the commit."""
        world = self._world
        guards, life = world.table.guards, world.life
        guard = guards.begin(command.producer_id)
        is_slow = world.random.random() < 0.3

        def asked() -> None:
            current = self._current[command.producer_id]
            is_open = current.producer_epoch == command.producer_epoch and current.is_committed is None
            world.at(world.random.randint(1, SLOW_ANSWER_MS if is_slow else 20), lambda: answered(is_open=is_open))

        def answered(*, is_open: bool) -> None:
            if life != world.life:
                return
            if is_open:
                world.decide(msgspec.structs.replace(command, guard=guard), noted)
            else:
                on_reply(Refused(GroupError.INVALID_TXN_STATE))
            guards.finish(command.producer_id, guard)

        def noted(reply: GroupReply | None) -> None:
            self.late_count += reply == Refused(GroupError.INVALID_TXN_STATE)
            on_reply(reply)

        world.at(world.random.randint(1, 20), asked)

    # Ends

    def end(self, transaction: Transaction, *, is_committed: bool, then: Callable[[], None]) -> None:
        """Decided at once; the group hears of it soon."""
        if transaction.is_committed is None:
            transaction.is_committed = is_committed
            self._world.at(self._world.random.randint(1, 300), lambda: self._tell(transaction, then))

    def abort(self, producer_id: int) -> None:
        """For a producer that is gone."""
        current = self._current.get(producer_id)
        if current is not None:
            self.end(current, is_committed=False, then=lambda: None)

    def _tell(self, transaction: Transaction, then: Callable[[], None]) -> None:
        world, life, is_sent = self._world, self._world.life, self._world.is_up

        def heard(reply: GroupReply | None) -> None:
            if reply is not None and not transaction.is_heard:
                transaction.is_heard = True
                self._check_nothing_waits(transaction)
                if transaction.version > 1 and world.random.random() < 0.5:
                    world.at(world.random.randint(1, LATE_COPY_MS), lambda: self._tell(transaction, lambda: None))
                then()

        def watch() -> None:
            if transaction.is_heard:
                return
            # The group's coordinator was away, or has stopped before it was durable: it is told again.
            if life != world.life or not is_sent:
                self._tell(transaction, then)
            else:
                world.at(RETRY_MS, watch)

        world.at(RETRY_MS, watch)
        if is_sent:
            assert transaction.is_committed is not None
            # As with the real versions: the marker of version 2 carries the epoch after the transaction's.
            epoch = transaction.producer_epoch + transaction.version - 1
            world.end_transaction(
                EndTransaction(transaction.producer_id, epoch, transaction.is_committed, transaction.version), heard
            )

    # What must hold

    def check_record(self, record: GroupRecord) -> None:
        if isinstance(record, OffsetStored) and record.producer_id < 0 and record.metadata in self._by_name:
            transaction = self._by_name[record.metadata]
            if transaction.is_committed is not True:
                self._world.violated("wrong transaction", f"{record} counts, and {transaction}")

    def check_nothing_is_left(self) -> None:
        for transaction in self._all:
            if transaction.is_heard:
                self._check_nothing_waits(transaction)

    def _check_nothing_waits(self, transaction: Transaction) -> None:
        group = self._world.group
        pending = {} if group is None else group.offsets.pending_as_dict()
        left = [each for each in pending.get(transaction.producer_id, {}).values() if each.metadata == transaction.name]
        if left:
            self._world.violated("left behind", f"{left[:2]} of {transaction}")
