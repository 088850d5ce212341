"""A node in a world of replicas: the shell around the rules, as small as it can be.

What a real shell owes to the rules is here too, each in its place: it fetches a log when what it has is synced, it
counts for its durable end, it uses a reply in the role alone in which it asked, and it reads the key before it goes on
after a proposal without an outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.domain.replication import fetch
from penstock.domain.replication.membership import DirectoryRecord
from penstock.domain.replication.progress import LOG_COUNT, LeaderProgress, Propose
from penstock.domain.replication.state import NO_LIFE, NO_REVISION, PartitionState
from penstock.domain.replication.truncation import Cut, Diverging, answer, plan_cut
from penstock.domain.replication.view import View
from support.replication.invariants import NO_CUT, WATERMARK, BrokenError
from support.replication.log import Entry, SimLog

if TYPE_CHECKING:
    from support.replication.mover import Mover
    from support.replication.world import World


class Lead:
    __slots__ = ("mover", "progress")

    def __init__(self, progress: LeaderProgress) -> None:
        self.progress = progress
        # Of the walk with the release mover, once the barrier is reached.
        self.mover: Mover | None = None


@dataclass(slots=True, eq=False)
class Follow:
    """Compared by identity: a reply belongs to the role in which it was asked for."""

    epoch: int
    leader: int


@dataclass(slots=True, eq=False)
class FetchRequest:
    leader: int
    follower: int
    life: int
    role: Follow
    # Log, end, last epoch.
    asked: list[tuple[int, int, int]]


@dataclass(slots=True, eq=False)
class FetchReply:
    follower: int
    role: Follow
    # Log, end and last epoch as asked; then either where the logs part or more entries; the watermark.
    answers: list[tuple[int, int, int, Diverging | list[Entry], int]]


@dataclass(slots=True, eq=False)
class Node:
    world: World
    id: int
    directory: DirectoryRecord
    is_alive: bool = True
    paused_until_ms: int = 0
    life: int = NO_LIFE
    logs: list[SimLog] = field(default_factory=lambda: [SimLog() for _ in range(LOG_COUNT)])
    role: Lead | Follow | None = None
    state: PartitionState | None = None
    revision: int = NO_REVISION
    # As the watch has brought it.
    view: View = field(default_factory=dict)
    minimum: int = 1
    # Its disk is not the one that was promised, and the controller has not judged it yet.
    is_untrusted: bool = False
    # What its disks had before they were wiped, put back or damaged: they did hold it when it counted.
    lost: list[list[SimLog]] = field(default_factory=list)
    # How far it has told the leader of this role, log by log.
    told: list[int] = field(default_factory=lambda: [0] * LOG_COUNT)

    # The role

    def adopt(self, state: PartitionState, revision: int) -> None:
        if revision <= self.revision:
            return
        self.state, self.revision = state, revision
        if state.is_led_by(self.id, self.life):
            if isinstance(self.role, Lead) and self.role.progress.state.epoch == state.epoch:
                self.role.progress.on_stored(state, revision)
            else:
                self._take_over(state, revision)
        elif not state.has_leader or state.leader == self.id:
            self.role = None
        elif not isinstance(self.role, Follow) or (self.role.epoch, self.role.leader) != (state.epoch, state.leader):
            self.role = Follow(state.epoch, state.leader)
            self.told = [0] * LOG_COUNT
        self.publish()

    def _take_over(self, state: PartitionState, revision: int) -> None:
        for log in self.logs:
            log.epochs.assign(state.epoch, log.end)
        progress = LeaderProgress(
            self.id,
            state,
            revision,
            minimum=self.minimum,
            log_ends=[log.end for log in self.logs],
            watermarks=[log.watermark for log in self.logs],
            now_ms=self.world.now_ms,
        )
        self.role = Lead(progress)
        self.world.on_taken_over(self, state)
        for number, log in enumerate(self.logs):
            progress.on_own_end(number, log.durable_end)

    def publish(self) -> None:
        """The watermarks of a leader are those of its logs, and everybody may see what lies below."""
        if not isinstance(self.role, Lead):
            return
        for number, end in enumerate(self.role.progress.watermarks):
            log = self.logs[number]
            if end > log.watermark:
                since, log.watermark = log.watermark, end
                self.world.on_committed(self, number, since, end)
            elif end < log.watermark:
                raise BrokenError(WATERMARK, f"node {self.id} goes back from {log.watermark} to {end}")

    # Writing and syncing

    def append(self, log: int, kind: str, about: int, intent: int = 0) -> int:
        assert isinstance(self.role, Lead)
        self.logs[log].append((self.role.progress.state.epoch, kind, about, intent))
        return self.logs[log].end - 1

    def sync(self, number: int) -> None:
        log = self.logs[number]
        log.durable_end = log.end
        self.tell_own_end(number)

    def tell_own_end(self, number: int) -> None:
        if isinstance(self.role, Lead) and self.role.progress.on_own_end(number, self.logs[number].durable_end):
            self.publish()

    # Following

    def ask(self) -> FetchRequest | None:
        if not isinstance(self.role, Follow) or not self.world.is_admitted(self):
            return None
        asked = []
        for number, log in enumerate(self.logs):
            # What is not synced could be lost, and the leader takes the offset for held.
            if log.durable_end == log.end:
                asked.append((number, log.end, log.epochs.latest))
                self.told[number] = max(self.told[number], log.end)
        return FetchRequest(self.role.leader, self.id, self.life, self.role, asked) if asked else None

    def answer(self, request: FetchRequest) -> FetchReply | None:
        """As the leader that was asked."""
        if not isinstance(self.role, Lead):
            return None
        progress, life = self.role.progress, request.life
        refusal = fetch.refuse(
            progress.state, self.view, follower=request.follower, life=life, epoch=request.role.epoch
        )
        if refusal is not None:
            return None
        answers = []
        for number, offset, last_epoch in request.asked:
            log = self.logs[number]
            found = answer(log.epochs, log_start=0, log_end=log.end, last_epoch=last_epoch, fetch_offset=offset)
            assert found is None or isinstance(found, Diverging), "no log here begins later"
            if found is None:
                progress.on_fetch(request.follower, number, offset=offset, log_start=0, life=life)
            more = log.entries[offset : offset + self.world.random.randint(1, 4)] if found is None else found
            answers.append((number, offset, last_epoch, more, log.watermark))
        self.publish()
        return FetchReply(request.follower, request.role, answers)

    def take(self, reply: FetchReply) -> None:
        if self.role is not reply.role:
            return
        for number, end, last_epoch, more, watermark in reply.answers:
            log = self.logs[number]
            if (log.end, log.epochs.latest) != (end, last_epoch):
                continue
            if isinstance(more, Diverging):
                self._part(number, log, more)
            else:
                for entry in more:
                    log.append(entry)
                if not more:
                    # The leader has no more: what it was told beyond is of a tail that it never had, nor will.
                    self.told[number] = end
                log.watermark = max(log.watermark, min(watermark, log.end))

    def _part(self, number: int, log: SimLog, diverging: Diverging) -> None:
        assert self.state is not None
        plan = plan_cut(
            log.epochs,
            diverging,
            log_end=log.end,
            watermark=log.watermark,
            unclean_epoch=self.state.unclean_epoch,
        )
        if not isinstance(plan, Cut):
            raise BrokenError(NO_CUT, f"node {self.id}: {plan.reason}")
        log.cut(plan.offset)
        # What it told of the rest never counted, and never will: this leader has something else there.
        self.told[number] = min(self.told[number], plan.offset)

    # Proposing

    def propose(self, lag_ms: int) -> Propose | None:
        assert isinstance(self.role, Lead)
        now_ms, progress = self.world.now_ms, self.role.progress
        progress.on_time(now_ms, [log.end for log in self.logs])
        proposal = progress.propose(now_ms, lag_ms, self.view)
        self.publish()
        return proposal

    def see_minimum(self, minimum: int) -> None:
        self.minimum = minimum
        if isinstance(self.role, Lead) and self.role.progress.on_minimum(minimum):
            self.publish()

    def read(self, state: PartitionState, revision: int) -> None:
        """The key, after a proposal without a known outcome."""
        role = self.role
        if not isinstance(role, Lead):
            return
        if state.is_led_by(self.id, self.life) and state.epoch == role.progress.state.epoch:
            role.progress.on_read(state, revision)
            self.state, self.revision = role.progress.state, role.progress.revision
            self.publish()
        else:
            self.adopt(state, revision)

    def crash(self) -> None:
        self.is_alive = False
        self.role = None
        for log in self.logs:
            log.crash(self.world.random)

    def lose(self, kept: list[SimLog]) -> None:
        """Its disk has this from now on."""
        self.lost.append(self.logs)
        self.logs = kept

    @property
    def is_whole(self) -> bool:
        """It has again what it has told: a fetch of before that is still on its way says nothing wrong."""
        return all(log.durable_end >= told for log, told in zip(self.logs, self.told, strict=True))

    def forget(self) -> None:
        """What a process knew of an earlier life."""
        self.role, self.state, self.revision = None, None, NO_REVISION
