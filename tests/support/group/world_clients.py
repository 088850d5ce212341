"""Member processes, as real clients behave: one request at a time in order, retries after silence, callbacks that take
their time, commits from what they believe to hold.

A client reads every partition it holds from the group's committed offset on. It is paused, cut off and killed by the
story; what it believes meanwhile is on record in its `Believer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.domain.group.commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    FetchOffsets,
    GroupCommand,
    GroupReply,
    OffsetsFetched,
    OffsetsWritten,
    OffsetToCommit,
    PartitionName,
    Refused,
)
from penstock.domain.group.values import Partition
from support.group.world import Believer, OnReply, ViolationError, World
from support.group.world_transactions import Transaction

REQUEST_TIMEOUT_MS: Final = 1_500
REBALANCE_TIMEOUT_MS: Final = 8_000
SESSION_TIMEOUT_MS: Final = 10_000
# Static members are given time to come back.
STATIC_SESSION_TIMEOUT_MS: Final = 30_000
COMMIT_TIMEOUT_MS: Final = 6_000
COMMIT_EVERY_MS: Final = 2_500
RETRY_MS: Final = 400

# What any request may be refused with while the world changes around it.
_HARMLESS: Final = frozenset(
    {
        "REBALANCE_IN_PROGRESS",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "STALE_MEMBER_EPOCH",
        "FENCED_INSTANCE_ID",
        "GROUP_ID_NOT_FOUND",
        "INVALID_TXN_STATE",
    }
)


class Connection:
    """Requests arrive in order. A request that times out closes it, and what is under way is lost."""

    def __init__(self) -> None:
        self.number = 0
        self.delivered_ms = 0


class Client:
    """What clients of both protocols share: a connection, a position in every partition, commits."""

    def __init__(self, world: World, name: str, *, instance_id: str | None, is_transactional: bool) -> None:
        self.world = world
        self.instance_id = instance_id
        self.belief = Believer(name)
        world.believers.append(self.belief)
        self.is_transactional = is_transactional
        self.is_paused = False
        self.is_leaving = False
        self._resumed: list[Callable[[], None]] = []
        # Offsets travel on a connection of their own: commits may be late when the group has moved on.
        self._main, self._side = Connection(), Connection()
        self.positions: dict[Partition, int] = {}
        # Which taking of a partition it is: an answer about an earlier one must not count.
        self._takings: dict[Partition, int] = {}
        self._takings_count = 0
        self._producer_id = len(world.believers)
        self._transaction: Transaction | None = None
        # Until its offsets are answered for: what is sent meanwhile waits behind them, on the same connection.
        self._transaction_is_busy = False
        self.member_id_count = 0
        self.every(COMMIT_EVERY_MS, self._work)

    # ------------------------------------------------------------------ life

    def at(self, delay_ms: int, event: Callable[[], None]) -> None:
        def happen() -> None:
            if self.belief.is_gone:
                return
            if self.is_paused:
                self._resumed.append(event)
            else:
                event()

        self.world.at(delay_ms, happen)

    def every(self, period_ms: int, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            self.at(period_ms, again)

        self.at(self.world.random.randint(1, period_ms), again)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        events, self._resumed = self._resumed, []
        for event in events:
            self.at(0, event)

    def kill(self) -> None:
        self.belief.is_gone = True
        self.belief.held.clear()
        # The transaction coordinator does, after a while, for one that is gone.
        self.world.at(3_000, lambda: self.world.transactions.abort(self._producer_id))

    def new_member_id(self) -> str:
        self.member_id_count += 1
        return f"{self.belief.name}.{self.member_id_count}"

    # ------------------------------------------------------------------ the network

    def send(self, command: GroupCommand, on_reply: OnReply, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        world = self.world
        is_commit = isinstance(command, CommitOffsets | CommitTransactionOffsets)
        connection = self._side if is_commit or isinstance(command, FetchOffsets) else self._main
        number = connection.number
        is_answered = False
        loses_request, loses_reply = (world.random.random() < world.loss_rate for _ in range(2))

        def arrive() -> None:
            if number == connection.number and not self.belief.is_gone:
                world.submit(command, answered)

        def answered(reply: GroupReply | None) -> None:
            if not loses_reply:
                self.at(world.random.randint(1, 20), lambda: finish(reply))

        def finish(reply: GroupReply | None) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                if reply is None:
                    connection.number += 1
                on_reply(reply)

        if not loses_request:
            is_slow = is_commit and world.random.random() < 0.3
            delay_ms = world.random.randint(1, COMMIT_TIMEOUT_MS - 500 if is_slow else 20)
            connection.delivered_ms = max(connection.delivered_ms, world.now_ms + delay_ms)
            world.at(connection.delivered_ms - world.now_ms, arrive)
        self.at(timeout_ms, lambda: finish(None))

    def callback_ms(self) -> int:
        """How long the application takes to give partitions up. Now and then it hangs, while heartbeats go on."""
        return 25_000 if self.world.random.random() < self.world.hang_rate else self.world.random.randint(1, 1_500)

    def note_refusal(self, refusal: Refused, expected: Iterable[str]) -> None:
        name = refusal.error.name
        self.world.refusals[name] = self.world.refusals.get(name, 0) + 1
        if name not in expected:
            raise ViolationError("unexpected", f"{self.belief.name} was refused: {refusal}")

    # ------------------------------------------------------------------ what it holds

    def believe(self, epoch: int, held: Iterable[Partition] | None = None) -> None:
        self.belief.epoch = epoch
        if held is not None:
            wanted = set(held)
            for partition in sorted(self.belief.held - wanted):
                self.positions.pop(partition, None)
                self._takings.pop(partition, None)
            for partition in sorted(wanted - self.belief.held):
                self._take(partition)
            self.belief.held = wanted
        self.world.check_beliefs(self.belief)

    def _take(self, partition: Partition) -> None:
        self._takings_count += 1
        taking = self._takings[partition] = self._takings_count
        self.at(0, lambda: self._fetch_position(partition, taking))

    def _fetch_position(self, partition: Partition, taking: int) -> None:
        if self._takings.get(partition) != taking:
            return
        topic = self.world.topics.name_of(partition[0])
        assert topic is not None

        def fetched(reply: GroupReply | None) -> None:
            if self._takings.get(partition) != taking:
                return
            if isinstance(reply, OffsetsFetched) and reply.partitions[0].error is None:
                self.positions[partition] = max(reply.partitions[0].offset, 0)
            else:
                if isinstance(reply, Refused):
                    self.note_refusal(reply, _HARMLESS)
                self.at(RETRY_MS, lambda: self._fetch_position(partition, taking))

        named = (PartitionName(topic, partition[1]),)
        self.send(self.fetch_command(named), fetched, timeout_ms=COMMIT_TIMEOUT_MS)

    def fetch_command(self, partitions: tuple[PartitionName, ...]) -> FetchOffsets:
        return FetchOffsets(partitions, requires_stable=True)

    # ------------------------------------------------------------------ work and commits

    def _work(self) -> None:
        for partition in sorted(self.positions):
            self.positions[partition] += self.world.random.randint(0, 5)
        if self.positions and not self.is_leaving:
            self.commit(lambda: None)

    def commit_before_giving_up(self, then: Callable[[], None]) -> None:
        """As most do; others rely on what they commit now and then, and the last of that may still be on its way."""
        if self.world.random.random() < 0.6:
            self.commit(then)
        else:
            then()

    def commit(self, then: Callable[[], None]) -> None:
        """Everything it has read so far; `then` whether it worked or not."""
        offsets = tuple(
            OffsetToCommit(self.world.topics.name_of(partition[0]) or "", partition[1], position)
            for partition, position in sorted(self.positions.items())
        )
        if not offsets or self.belief.epoch <= 0 or self._transaction_is_busy:
            then()
        elif self.is_transactional and self._transaction is None:
            self._commit_in_transaction(offsets, then)
        else:
            self._commit(offsets, then)

    def _commit(self, offsets: tuple[OffsetToCommit, ...], then: Callable[[], None]) -> None:
        def committed(reply: GroupReply | None) -> None:
            if isinstance(reply, OffsetsWritten):
                for given in offsets:
                    self.world.acknowledged(given.topic, given.partition, given.offset)
            elif isinstance(reply, Refused):
                self.note_refusal(reply, _HARMLESS)
            then()

        command = CommitOffsets(offsets, self.belief.member_id, self.belief.epoch, self.instance_id)
        self.send(command, committed, timeout_ms=COMMIT_TIMEOUT_MS)

    def _commit_in_transaction(self, offsets: tuple[OffsetToCommit, ...], then: Callable[[], None]) -> None:
        transaction = self._transaction = self.world.transactions.begin(self._producer_id)
        self._transaction_is_busy = True
        offsets = tuple(msgspec.structs.replace(given, metadata=transaction.name) for given in offsets)

        def written(reply: GroupReply | None) -> None:
            self._transaction_is_busy = False
            if isinstance(reply, Refused):
                self.note_refusal(reply, _HARMLESS)
            # A producer that is not sure aborts.
            is_good = isinstance(reply, OffsetsWritten) and self.world.random.random() < 0.8
            self.at(self.world.random.randint(1, 4_000), lambda: end(is_committed=is_good))

        def end(*, is_committed: bool) -> None:
            self.world.transactions.end(
                transaction, is_committed=is_committed, then=lambda: self.at(0, lambda: ended(is_committed))
            )

        def ended(is_committed: bool) -> None:
            self._transaction = None
            if is_committed:
                for given in offsets:
                    self.world.acknowledged(given.topic, given.partition, given.offset)
            then()

        command = CommitTransactionOffsets(
            transaction.producer_id,
            transaction.producer_epoch,
            offsets,
            self.belief.member_id,
            self.belief.epoch,
            self.instance_id,
        )
        self.send(command, written, timeout_ms=COMMIT_TIMEOUT_MS)

    # ------------------------------------------------------------------ what the story asks

    def leave(self) -> None:
        raise NotImplementedError

    def is_settled(self) -> bool:
        """It is doing nothing but reading."""
        raise NotImplementedError
