"""A coordinator with its log, its disk and its network, and what must hold whatever happens to it.

The coordinator is the real `GroupTable` behind the shell that its contract asks for: records of a decision are
applied at once, everything that is said waits until what was seen is on disk. It may stop at any moment: what is not
on disk is lost, whoever waits is cut off, and it starts again from what is left, from the compacted log as well as
from the whole.

Everything that happens is an event on one queue; time, latency and faults come from one seed. Invariants are checked
where they can be broken, and a broken one raises `ViolationError` with its name:

    two owners          no two members believe to hold a partition under the same epoch
    holder unknown      what a member holds, the coordinator knows that it holds, unless it is fenced
    taken needlessly    a member is not asked to give up what it shall keep
    offset went back    a committed offset only grows
    commit lost         what was acknowledged is there after a restart
    wrong transaction   an offset of a transaction counts only if that one has committed (`world_transactions`)
    left behind         nothing waits for a transaction that has ended (`world_transactions`)
    unstable read       a stable read does not show an offset that an open transaction may change
    restart differs     after a replay all that is kept is as before, compacted or not
    unanswered          nobody waits for ever
    no share            when quiet has come, every live member has its share, and no partition is left out
    unexpected          no reply that a correct client would not know what to do with
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

import msgspec

from penstock.domain.group.commands import (
    DONE,
    CommitTransactionOffsets,
    Decision,
    EndTransaction,
    FetchOffsets,
    GroupCommand,
    GroupReply,
    Join,
    Sync,
)
from penstock.domain.group.description import describe
from penstock.domain.group.machine import Group
from penstock.domain.group.records import (
    CurrentStored,
    GroupRecord,
    OffsetStored,
    RecordKey,
    Removed,
)
from penstock.domain.group.table import GroupTable
from penstock.domain.group.values import GroupConfig, Partition, TopicFact
from support.group.world_transactions import Transactions

GROUP: Final = "payments"
CONFIG: Final = GroupConfig(
    initial_rebalance_delay_ms=1_000,
    session_timeout_ms_min=1_000,
    consumer_session_timeout_ms=10_000,
    heartbeat_interval_ms=2_000,
    new_member_join_timeout_ms=20_000,
)
# The longest that a join or a sync may wait: the rebalance timeout of the members, and some time to be answered.
WAIT_MS_MAX: Final = 10_000

OnReply = Callable[[GroupReply | None], None]
State = dict[RecordKey, GroupRecord]


class ViolationError(AssertionError):
    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class SimTopics:
    """Topics that only ever grow."""

    def __init__(self) -> None:
        self.revision = 0
        self._facts: dict[str, TopicFact] = {}

    def set(self, name: str, partition_count: int) -> None:
        self._facts[name] = TopicFact(name.encode().ljust(16, b"."), partition_count)
        self.revision += 1

    def find(self, name: str) -> TopicFact | None:
        return self._facts.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, fact in self._facts.items() if fact.topic_id == topic_id), None)

    def matching(self, expression: str, principal: str) -> tuple[str, ...] | None:
        return tuple(name for name in sorted(self._facts) if name.startswith(expression))

    def names(self) -> list[str]:
        return sorted(self._facts)

    def partitions(self) -> list[Partition]:
        facts = [self._facts[name] for name in self.names()]
        return [(fact.topic_id, number) for fact in facts for number in range(fact.partition_count)]


class Believer(msgspec.Struct):
    """A member process, as the checks see it: what it believes to hold, and under which number."""

    name: str
    member_id: str = ""
    epoch: int = -1
    held: set[Partition] = msgspec.field(default_factory=set)
    is_gone: bool = False


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics = SimTopics()
        # Of requests, and of replies.
        self.loss_rate = 0.02
        # Of applications, when they are to give partitions up.
        self.hang_rate = 0.1
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self.believers: list[Believer] = []
        # The log, and how much of it is on disk. `_ends` are the places where a decision ends.
        self.log: list[GroupRecord] = []
        self._durable = 0
        self._ends: list[int] = [0]
        self._synced_ms = 0
        self.is_up = True
        self.life = 0
        self.table = GroupTable(CONFIG, self.topics)
        self._tickets = 0
        self._waiting: dict[int, tuple[int, OnReply]] = {}
        self._alarm_ms: int | None = None
        self._acknowledged: dict[tuple[str, int], int] = {}
        self.refusals: dict[str, int] = {}
        self.restarts = 0
        self.transactions = Transactions(self)

    # ------------------------------------------------------------------ time

    def at(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._event_count += 1
        heappush(self._events, (self.now_ms + delay_ms, self._event_count, event))

    def run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _number, event = heappop(self._events)
            event()
        self.now_ms = end_ms

    # ------------------------------------------------------------------ the coordinator's shell

    @property
    def group(self) -> Group | None:
        return self.table.get(GROUP)

    def submit(self, command: GroupCommand, on_reply: OnReply) -> None:
        """A request has arrived. The reply is None if the connection is lost before there is one."""
        if not self.is_up:
            on_reply(None)
        elif isinstance(command, CommitTransactionOffsets):
            self.transactions.submit(command, on_reply)
        else:
            self.decide(command, on_reply)

    def decide(self, command: GroupCommand, on_reply: OnReply) -> None:
        if isinstance(command, Join | Sync):
            self._tickets += 1
            command = msgspec.structs.replace(command, ticket=self._tickets)
            self._waiting[self._tickets] = (self.now_ms, on_reply)
        decision = self.table.decide(GROUP, command, self.now_ms)
        open_places = self._open_places()
        self._carry_out(decision)
        if isinstance(command, Join | Sync):
            if decision.reply is not None:
                del self._waiting[self._tickets]
                self._say(on_reply, decision.reply)
        else:
            assert decision.reply is not None
            if isinstance(command, FetchOffsets) and command.requires_stable:
                self._check_stable(decision.reply, open_places)
            self._say(on_reply, decision.reply)

    def _carry_out(self, decision: Decision) -> None:
        for record in decision.records:
            before = self._facts_before(record)
            self.table.apply(GROUP, record)
            self.log.append(record)
            self._check_record(record, before)
            self.transactions.check_record(record)
        if decision.records:
            self._ends.append(len(self.log))
        for answer in decision.answers:
            waiting = self._waiting.pop(answer.ticket, None)
            if waiting is not None:
                self._say(waiting[1], answer.reply)
        self._arm()

    def _say(self, on_reply: OnReply, reply: GroupReply) -> None:
        """Once everything that the reply has seen is on disk, and unless the coordinator stops before."""
        self._synced_ms = max(self._synced_ms, self.now_ms + self.random.randint(0, 6))
        seen, life = len(self.log), self.life

        def durable() -> None:
            if life == self.life:
                self._durable = max(self._durable, seen)
                on_reply(reply)

        self.at(self._synced_ms - self.now_ms, durable)

    def _arm(self) -> None:
        deadline_ms = self.table.next_deadline_ms()
        if deadline_ms is not None and (self._alarm_ms is None or deadline_ms < self._alarm_ms):
            self._alarm_ms = deadline_ms
            life = self.life
            self.at(max(deadline_ms - self.now_ms, 0), lambda: self._ring(life))

    def _ring(self, life: int) -> None:
        if life == self.life and self.is_up:
            self._alarm_ms = None
            for _group_id, decision in self.table.tick(self.now_ms):
                self._carry_out(decision)
            self._arm()

    def end_transaction(self, command: EndTransaction, on_reply: OnReply) -> None:
        """The transaction coordinator says that a transaction has ended."""
        for _group_id, decision in self.table.end_transaction(command, self.now_ms):
            self._carry_out(decision)
        self._say(on_reply, DONE)

    # ------------------------------------------------------------------ stop and start

    def stop(self) -> None:
        if not self.is_up:
            return
        self._check_replay("live", self.table, self.log)
        self.is_up = False
        self.life += 1
        self._alarm_ms = None
        cut = self.random.choice([end for end in self._possible_ends() if end >= self._durable])
        del self.log[cut:]
        self._ends = [end for end in self._ends if end < cut] + [cut]
        for _since_ms, on_reply in self._waiting.values():
            on_reply(None)
        self._waiting.clear()

    def _possible_ends(self) -> list[int]:
        """A decision is one batch, on disk whole or not at all. Where the machine stands half of one, it gets it."""
        found: list[int] = []
        for start, end in zip([0, *self._ends], self._ends, strict=False):
            records = self.log[start:end]
            found += range(start + 1, end) if not _belongs_together(records) else []
            found.append(end)
        return found or [0]

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.restarts += 1
        self.table = self._replayed(self.log)
        self._check_replay("compacted", self.table, _compacted(self.log))
        group = self.group
        self._check_replay("from a snapshot", self.table, [] if group is None else group.snapshot())
        committed = self._committed()
        for place, offset in self._acknowledged.items():
            if committed.get(place, -1) < offset:
                raise ViolationError(
                    "commit lost", f"{place}: {offset} was acknowledged, {committed.get(place)} is left"
                )
        for _group_id, decision in self.table.load(self.now_ms):
            self._carry_out(decision)
        self._arm()

    def _replayed(self, records: list[GroupRecord]) -> GroupTable:
        table = GroupTable(CONFIG, self.topics)
        for record in records:
            table.apply(GROUP, record)
        return table

    def _check_replay(self, how: str, table: GroupTable, records: list[GroupRecord]) -> None:
        replayed = self._replayed(records)
        found, expected = self._state(replayed), self._state(table)
        if found != expected:
            keys = [key for key in {**found, **expected} if found.get(key) != expected.get(key)]
            raise ViolationError("restart differs", f"{how}: {keys[:3]}")
        before, after = describe(table.get(GROUP)), describe(replayed.get(GROUP))
        # A rebalance under way is not kept, nor ids that were given out and not used.
        if before != after and before.members and "Rebalance" not in before.state:
            raise ViolationError("restart differs", f"{how}: {before} is now {after}")

    def _state(self, table: GroupTable) -> State:
        group = table.get(GROUP)
        return {record.key: record for record in ([] if group is None else group.snapshot())}

    def _committed(self) -> dict[tuple[str, int], int]:
        group = self.group
        if group is None:
            return {}
        return {place: stored.offset for place, stored in group.offsets.as_dict().items()}

    # ------------------------------------------------------------------ what must hold

    def _facts_before(self, record: GroupRecord) -> object:
        group = self.group
        if group is None:
            return None
        if isinstance(record, OffsetStored) and record.producer_id < 0:
            return group.offsets.get(record.topic, record.partition)
        if isinstance(record, CurrentStored) and group.consumer is not None:
            return group.consumer.currents.get(record.member_id)
        return None

    def _check_record(self, record: GroupRecord, before: object) -> None:
        if isinstance(record, OffsetStored) and isinstance(before, OffsetStored):
            self._check_growth((record.topic, record.partition), before.offset, record.offset)
        if isinstance(record, CurrentStored) and isinstance(before, CurrentStored) and record.previous_epoch > 0:
            group = self.group
            assert group is not None
            assert group.consumer is not None
            kept = set(before.assigned) & set(group.consumer.target(record.member_id))
            if not kept <= set(record.assigned):
                raise ViolationError("taken needlessly", f"{record.member_id} loses {kept - set(record.assigned)}")

    def _check_growth(self, place: tuple[str, int], before: int, after: int) -> None:
        if after < before:
            raise ViolationError("offset went back", f"{place} from {before} to {after}")

    def violated(self, invariant: str, detail: str) -> None:
        raise ViolationError(invariant, detail)

    def acknowledged(self, topic: str, partition: int, offset: int) -> None:
        place = (topic, partition)
        self._acknowledged[place] = max(offset, self._acknowledged.get(place, -1))

    def _open_places(self) -> set[tuple[str, int]]:
        group = self.group
        pending = {} if group is None else group.offsets.pending_as_dict()
        return {place for offsets in pending.values() for place in offsets}

    def _check_stable(self, reply: GroupReply, open_places: set[tuple[str, int]]) -> None:
        for fetched in getattr(reply, "partitions", ()):
            if fetched.error is None and (fetched.topic, fetched.partition) in open_places:
                raise ViolationError("unstable read", f"{fetched} while a transaction is open")

    def check_beliefs(self, believer: Believer) -> None:
        """Called by a member whenever it believes something new."""
        for other in self.believers:
            if other is not believer and not other.is_gone and other.epoch == believer.epoch:
                shared = other.held & believer.held
                if shared:
                    names = f"{believer.name} and {other.name} at epoch {believer.epoch}"
                    raise ViolationError("two owners", f"{names}: {sorted(shared)[:3]}")
        group = self.group if self.is_up else None
        consumer = None if group is None else group.consumer
        if consumer is None:
            return
        for each in self.believers:
            current = consumer.currents.get(each.member_id)
            if each.is_gone or current is None or each.member_id not in consumer.members:
                continue
            if each.epoch not in (current.epoch, current.previous_epoch):
                # Whatever it asks for, it will be fenced.
                continue
            for partition in each.held:
                holder = consumer.owners.get(partition)
                if holder != each.member_id:
                    raise ViolationError("holder unknown", f"{partition} is with {each.name}, supposed with {holder}")

    def check_nobody_waits(self) -> None:
        for since_ms, _on_reply in self._waiting.values():
            if self.now_ms - since_ms > WAIT_MS_MAX:
                raise ViolationError("unanswered", f"a request waits since {since_ms} ms, it is {self.now_ms} ms")


def _compacted(log: list[GroupRecord]) -> list[GroupRecord]:
    """The last record of every key, where it stands. Tombstones have outlived their use."""
    last = {record.key: index for index, record in enumerate(log)}
    return [record for index, record in enumerate(log) if last[record.key] == index and not isinstance(record, Removed)]


def _belongs_together(records: list[GroupRecord]) -> bool:
    """A member goes, one takes another's place, a group changes its protocol: half of that is nothing sensible."""
    return any(isinstance(record, Removed) for record in records)
