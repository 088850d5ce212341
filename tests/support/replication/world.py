"""Three replicas of one partition, its logs, a store, a controller and everything that can go wrong, from one seed.

Every step is one of a list, drawn by the seed: somebody writes, syncs, fetches; a message arrives, late or never; a
proposal reaches the store, or nobody knows; a watch brings the next change; sessions end; nodes crash and lose what was
not synced, come back at once, with a wiped disk or an older copy, drain, leave the set with a damaged log, hand over;
the minimum changes. After the steps comes quiet: no more faults, and everything must come together.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.domain.replication.membership import DirectoryRecord, MemberRecord
from penstock.domain.replication.progress import LOG_COUNT, GroupLog, Propose
from penstock.domain.replication.state import PartitionState, first_state
from support.replication.controller import Controller
from support.replication.faults import Faults
from support.replication.invariants import (
    MINIMUM,
    NOBODY_LEAVING_JOINS,
    ONE_LEADER,
    QUIET,
    SET_TRUTH,
    BrokenError,
    CommittedBook,
)
from support.replication.node import FetchReply, FetchRequest, Follow, Lead, Node
from support.replication.store import SimStore

NODES: Final = 3
STEPS: Final = 1_500
QUIET_ROUNDS: Final = 120
# Of the messages on their way: any of so many may come first.
REORDERED_MAX: Final = 6
LOST_SHARE: Final = 0.08


class Fate(enum.Enum):
    """Of a proposal."""

    TOLD = enum.auto()
    NOT_TOLD = enum.auto()
    LOST = enum.auto()
    # It arrives when nobody waits for it any more.
    LATE = enum.auto()


class Temper(msgspec.Struct, frozen=True):
    """What a world is rich in: some coincidences need three rare things in a row."""

    # How often each fate, of a hundred.
    fates: tuple[int, int, int, int] = (82, 4, 4, 10)
    stalled_share: float = 0.04
    # Of those who are started anew.
    wiped_share: float = 0.15
    # A leader that looks seldom leaves more time for what comes late.
    proposing: float = 1.0


TEMPERS: Final = (
    Temper(),
    Temper(),
    Temper(fates=(40, 5, 5, 50), wiped_share=0.6, proposing=0.5),
    Temper(stalled_share=0.3),
)
# What the weight of an act is multiplied with.
SHARES: Final = (0.4, 1.0, 1.0, 2.5)
LAG_MS: Final = (40, 150, 600)
BOOT: Final = "boot"
CLUSTER: Final = "cluster"


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.temper = self.random.choice(TEMPERS)
        self.lag_ms = self.random.choice(LAG_MS)
        self.minimum = self.random.choice((1, 2, 2, 2))
        self.book = CommittedBook(LOG_COUNT)
        self.store = SimStore(first_state((0, 1, 2), 0))
        self.nodes = [
            Node(self, number, DirectoryRecord(directory_id=f"d{number}", cluster_id=CLUSTER, node_id=number))
            for number in range(NODES)
        ]
        self.messages: list[FetchRequest | FetchReply] = []
        self.proposals: list[tuple[Node, int, Lead, Propose]] = []
        # Believed lost by whoever waited for them.
        self.stalled: list[FetchRequest | FetchReply] = []
        self.late: list[Propose] = []
        self.leaders: dict[int, tuple[int, int]] = {}
        self.value = 0
        self.controller = Controller(self)
        self.faults = Faults(self)
        self._form_cluster()

    def _form_cluster(self) -> None:
        for node in self.nodes:
            node.life = self.store.register(node.id)
            node.directory = replace(node.directory, epochs=(node.life,), boot_id=BOOT)
            self.store.admit(
                node.id, MemberRecord(directory_id=node.directory.directory_id, admitted_epoch=node.life, boot_id=BOOT)
            )
        self.store.put(replace(self.store.state, life=self.nodes[0].life))
        for node in self.nodes:
            node.minimum = self.minimum
            node.view = self.store.view()
            node.adopt(self.store.state, self.store.key_revision)

    # The story

    def run(self, steps: int = STEPS) -> None:
        acts, weights = zip(*self.acts(), strict=True)
        # Every world has much of something and little of another: coincidences need both.
        shares = [weight * self.random.choice(SHARES) for weight in weights]
        for act in self.random.choices(acts, shares, k=steps):
            self.now_ms += 1
            act()
        self.calm()

    def acts(self) -> list[tuple[Callable[[], None], float]]:
        return [
            (self.write, 14),
            (self.sync, 16),
            (self.ask, 30),
            (self.deliver, 55),
            (self.deliver_late, 4),
            (self.propose, 14 * self.temper.proposing),
            (self.decide, 10),
            (self.watch, 14),
            (self.read, 5 * self.temper.proposing),
            (self.controller.act, 6),
            *self.faults.acts(),
        ]

    def pick(self) -> Node:
        """Somebody who can do something now."""
        awake = [node for node in self.nodes if self.is_awake(node)]
        if awake:
            return self.random.choice(awake)
        node = self.random.choice(self.nodes)
        node.paused_until_ms = 0
        if not node.is_alive:
            self.start(node)
        return node

    def is_awake(self, node: Node) -> bool:
        return node.is_alive and node.paused_until_ms <= self.now_ms

    # What nodes do

    def write(self) -> None:
        node = self.pick()
        if isinstance(node.role, Lead):
            self.value += 1
            # Companions are written less than data.
            log = self.random.choice((GroupLog.DATA, GroupLog.DATA, GroupLog.QUEUE_JOURNAL, GroupLog.SCHEDULE))
            node.append(log, "row", self.value)

    def sync(self) -> None:
        node = self.pick()
        number = self.random.randrange(LOG_COUNT + 1)
        for log in range(LOG_COUNT) if number == LOG_COUNT else (number,):
            node.sync(log)

    def ask(self) -> None:
        request = self.pick().ask()
        if request is not None:
            self.messages.append(request)

    def deliver(self) -> None:
        if not self.messages:
            return
        message = self.messages.pop(self.random.randrange(min(len(self.messages), REORDERED_MAX)))
        fate = self.random.random()
        if fate < self.temper.stalled_share:
            self.stalled.append(message)
        elif fate >= self.temper.stalled_share + LOST_SHARE:
            self._hand_on(message)

    def deliver_late(self) -> None:
        """What was believed lost: other leaders, other lives later."""
        if self.stalled:
            self._hand_on(self.stalled.pop(self.random.randrange(len(self.stalled))))
        if self.late:
            self.change(self.late.pop(self.random.randrange(len(self.late))))

    def _hand_on(self, message: FetchRequest | FetchReply) -> None:
        node = self.nodes[message.follower if isinstance(message, FetchReply) else message.leader]
        if not node.is_alive:
            return
        if not self.is_awake(node):
            self.stalled.append(message)
        elif isinstance(message, FetchReply):
            node.take(message)
        elif (reply := node.answer(message)) is not None:
            self.messages.append(reply)

    def propose(self) -> None:
        node = self.pick()
        if not isinstance(node.role, Lead):
            return
        proposal = node.propose(self.lag_ms)
        if proposal is not None:
            self._check_joins(node, proposal)
            self.proposals.append((node, node.life, node.role, proposal))

    def decide(self) -> None:
        """A proposal reaches the store, or is lost on its way there; and its sender hears of it, or not."""
        if not self.proposals:
            return
        node, life, role, proposal = self.proposals.pop(self.random.randrange(len(self.proposals)))
        fate = self._fate_of(proposal)
        is_stored = fate in (Fate.TOLD, Fate.NOT_TOLD) and self.change(proposal)
        if not node.is_alive or node.life != life or node.role is not role:
            return
        if is_stored and fate is Fate.TOLD:
            node.adopt(self.store.state, self.store.key_revision)
        else:
            role.progress.on_unknown(proposal)

    def _fate_of(self, proposal: Propose) -> Fate:
        if not self.faults.are_on:
            return Fate.TOLD
        fate = self.random.choices(list(Fate), self.temper.fates)[0]
        if fate is Fate.LATE:
            self.late.append(proposal)
        return fate

    def watch(self) -> None:
        node = self.pick()
        found = self.store.next_after(node.revision)
        if found is not None:
            node.adopt(found[1], found[0])
        node.view = self.store.view()
        node.see_minimum(self.minimum)

    def read(self) -> None:
        node = self.pick()
        if isinstance(node.role, Lead) and node.role.progress.must_read:
            node.read(self.store.state, self.store.key_revision)

    def start(self, node: Node) -> None:
        node.is_alive = True
        node.forget()
        node.life = self.store.register(node.id)
        node.view = self.store.view()

    def is_admitted(self, node: Node) -> bool:
        return self.store.lives.get(node.id) == node.life and self.store.is_admitted(node.id, node.life)

    # What must hold

    def change(self, proposal: Propose) -> bool:
        is_stored = self.store.compare_and_set(proposal)
        if is_stored:
            self.check_members()
        return is_stored

    def check_members(self) -> None:
        for member in (*self.store.state.in_sync, *self.store.state.eligible):
            node = self.nodes[member]
            if not node.is_untrusted and not self.book.is_held_by(node.logs):
                ends = [log.durable_end for log in node.logs]
                raise BrokenError(SET_TRUTH, f"node {member} has {ends} of {self.book.lengths()}: {self.store.state}")

    def on_taken_over(self, node: Node, state: PartitionState) -> None:
        known = self.leaders.setdefault(state.epoch, (node.id, node.life))
        if known != (node.id, node.life):
            raise BrokenError(ONE_LEADER, f"epoch {state.epoch} is led by {known} and {(node.id, node.life)}")
        if self.store.state.epoch == state.epoch and not self.book.is_held_by(node.logs):
            raise BrokenError(SET_TRUTH, f"node {node.id} leads epoch {state.epoch} without all that is committed")

    def on_committed(self, node: Node, log: int, since: int, end: int) -> None:
        assert isinstance(node.role, Lead)
        new = self.book.note(log, node.logs[log], since=since, end=end, epoch=node.role.progress.state.epoch)
        if not new:
            return
        self.check_members()
        holders = sum(self._has_held(other, log, end) for other in self.nodes)
        if holders < node.minimum:
            raise BrokenError(MINIMUM, f"log {log} is committed to {end} by {holders} of {node.minimum}")

    def _has_held(self, node: Node, log: int, end: int) -> bool:
        place, entry = end - 1, self.book.entries[log][-1]
        disks = [node.logs, *node.lost]
        return any(logs[log].durable_end >= end and logs[log].entries[place] == entry for logs in disks)

    def _check_joins(self, node: Node, proposal: Propose) -> None:
        for join in proposal.joins:
            if not node.view[join.node].may_join:
                raise BrokenError(NOBODY_LEAVING_JOINS, f"node {join.node} is {node.view[join.node].duty.value}")

    # Quiet

    def calm(self) -> None:
        """First without one of them, if it can be spared; then with all."""
        self.faults.end()
        for node in self.nodes:
            node.paused_until_ms = 0
        self.lag_ms = STEPS * QUIET_ROUNDS
        while self.stalled or self.late:
            self.deliver_late()
        absent = self.random.choice(self.nodes)
        if self.faults.is_spare(absent):
            absent.crash()
            self.store.expire(absent.id)
            self._settle([node for node in self.nodes if node is not absent])
            self.start(absent)
        self._settle(self.nodes)

    def _settle(self, present: list[Node]) -> None:
        for _ in range(self.quiet_rounds()):
            self.now_ms += 1
            self._do_every_duty(present)
            if self.is_calm(present):
                return
        ends = [[log.end for log in node.logs] for node in self.nodes]
        marks = [[log.watermark for log in node.logs] for node in self.nodes]
        raise BrokenError(QUIET, f"ends {ends}, watermarks {marks}: {self.store.state}")

    def _do_every_duty(self, present: list[Node]) -> None:
        self.controller.act()
        for node in present:
            self.faults.come_back(node)
            while (found := self.store.next_after(node.revision)) is not None:
                node.adopt(found[1], found[0])
            node.view = self.store.view()
            node.see_minimum(self.minimum)
            node.read(self.store.state, self.store.key_revision)
            self.faults.mend(node)
            for log in range(LOG_COUNT):
                node.sync(log)
            self.do_more(node)
            request = node.ask()
            if request is not None:
                self.messages.append(request)
            if isinstance(node.role, Lead) and (proposal := node.propose(self.lag_ms)) is not None:
                self.proposals.append((node, node.life, node.role, proposal))
        while self.messages:
            self._hand_on(self.messages.pop(0))
        while self.proposals:
            self.decide()

    def quiet_rounds(self) -> int:
        return QUIET_ROUNDS

    def do_more(self, node: Node) -> None:
        """Of a world with more in it."""

    def is_calm(self, present: list[Node]) -> bool:
        state = self.store.state
        if not state.in_sync:
            # Whoever held everything lost its disk, one after the other: it waits for a person, and says so.
            return not state.has_leader
        leader = self.nodes[state.leader] if state.has_leader else None
        if leader is None or state.in_sync != tuple(node.id for node in present) or state.eligible:
            return False
        if not all(isinstance(node.role, Follow) for node in present if node is not leader):
            return False
        return all(
            node.logs[number].entries == leader.logs[number].entries
            and node.logs[number].watermark == leader.logs[number].end
            for node in present
            for number in range(LOG_COUNT)
        )
