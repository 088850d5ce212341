"""What the leader of a partition knows of its followers: how far each of its logs is committed, and who is in sync.

    fetches, own syncs ──► watermarks      the lowest end over the set and who joins it, of what can never be lost
    behind, caught up  ──► Propose ──► the store ──► on_stored: the new set counts
                                            └──► on_unknown: read the key, then on_stored and on_read

Rules:
- A watermark never goes back, and stands still while the set is smaller than the minimum or anybody is eligible.
- Who is about to join is waited for from before the proposal leaves; who is about to go, until that is confirmed.
- A proposal that failed, or whose outcome is unknown, is never taken for done and never repeated: the key is read. If
  it has the same revision as before, the proposal may still be on its way to the store. Then who was about to join is
  waited for until any later change has been stored, because from then on the comparison fails; if there is nothing
  else to change, the state is stored as it is.
- Nobody outside the set is waited for, except who is about to join it.
- One of these lives for one epoch of one leader. It has no clock: `now_ms` is any that does not go back.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.domain.replication.sets import joined_by, without
from penstock.domain.replication.state import NO_LIFE, PartitionState
from penstock.domain.replication.view import View


class GroupLog(enum.IntEnum):
    """The three logs of a partition. They have one leader and one in-sync set, and each a watermark."""

    DATA = 0
    QUEUE_JOURNAL = 1
    SCHEDULE = 2


LOG_COUNT: Final = len(GroupLog)
# Who is told what this leader knows may hear something that was true so long ago.
LOOKS_MS_MAX: Final = 1_000

# Of a log that the follower has not asked for in this epoch and life: it counts for nothing, not even if it is empty.
_NOTHING: Final = -1


class Join(msgspec.Struct, frozen=True):
    """The store compares that the node's key still has this life: who was started anew has to prove itself anew."""

    node: int
    life: int


class Propose(msgspec.Struct, frozen=True):
    """To be stored if the partition's key has `revision` and every joining node its life."""

    state: PartitionState
    revision: int
    joins: tuple[Join, ...] = ()


class _Follower:
    __slots__ = ("goals", "goals_ms", "has_asked", "held", "life", "log_starts")

    def __init__(self, life: int, now_ms: int) -> None:
        self.life = life
        self.held = [_NOTHING] * LOG_COUNT
        self.log_starts = [_NOTHING] * LOG_COUNT
        self.be_patient(now_ms)
        # Since it was last dropped: who is silent is not taken back for what it once held.
        self.has_asked = False

    def be_patient(self, now_ms: int) -> None:
        # Our own end when we last looked and it had reached the one before: what it should hold by now.
        self.goals = [0] * LOG_COUNT
        self.goals_ms = [now_ms] * LOG_COUNT

    def holds(self, ends: Sequence[int]) -> bool:
        return all(held >= end for held, end in zip(self.held, ends, strict=True))


class LeaderProgress:
    __slots__ = (
        "_followers",
        "_is_busy",
        "_is_frozen",
        "_minimum",
        "_must_read",
        "_now_ms",
        "_own_ends",
        "_pending",
        "_silent",
        "_waited",
        "epoch_starts",
        "node",
        "revision",
        "state",
        "watermarks",
    )

    def __init__(
        self,
        node: int,
        state: PartitionState,
        revision: int,
        *,
        minimum: int,
        log_ends: Sequence[int],
        watermarks: Sequence[int],
        now_ms: int,
    ) -> None:
        """Taking over: the epoch begins where the logs end, with the watermarks that were known before."""
        self.node = node
        self.state = state
        self.revision = revision
        self.epoch_starts = tuple(log_ends)
        self.watermarks = list(watermarks)
        self._minimum = minimum
        self._now_ms = now_ms
        # What this node itself can never lose: until it says more, what was committed.
        self._own_ends = list(watermarks)
        self._followers: dict[int, _Follower] = {}
        self._pending: frozenset[int] = frozenset()
        self._silent: frozenset[int] = frozenset()
        self._is_busy = False
        self._must_read = False
        self._waited: list[_Follower] = []
        self._is_frozen = True
        self._set_up()

    @property
    def must_read(self) -> bool:
        """The key has to be read before anything else is proposed."""
        return self._must_read

    @property
    def is_writable(self) -> bool:
        """Whether a write that waits for all would ever be confirmed by the set as it is."""
        return len(self.state.in_sync) >= self._minimum

    @property
    def has_barrier(self) -> bool:
        """All that was there when the epoch began is committed: machines may be loaded and may decide."""
        return all(mark >= start for mark, start in zip(self.watermarks, self.epoch_starts, strict=True))

    def is_even(self, log_ends: Sequence[int]) -> bool:
        """Everybody who is waited for holds everything: nobody falls behind until more is written."""
        return all(book.holds(log_ends) for book in self._waited)

    # What happens

    def on_own_end(self, log: int, end: int) -> bool:
        """This node can no longer lose what lies below `end`. True: the watermark of the log has moved."""
        self._own_ends[log] = end
        return self._advance(log)

    def on_fetch(self, follower: int, log: int, *, offset: int, log_start: int, life: int) -> bool:
        """A replica asks from `offset` on, so it holds everything below. True: the watermark of the log has moved.

        For those fetches alone that `fetch.refuse` lets in and that do not diverge.
        """
        book = self._followers.get(follower)
        if book is None or book.life != life:
            book = self._meet(follower, life)
        book.held[log] = offset
        book.log_starts[log] = log_start
        book.has_asked = True
        return self._advance(log)

    def on_time(self, now_ms: int, log_ends: Sequence[int]) -> None:
        """About every second: what a follower should hold by now is what was there when it last had caught up."""
        self._now_ms = now_ms
        for book in self._waited:
            for log, end in enumerate(log_ends):
                if book.held[log] >= book.goals[log]:
                    book.goals[log] = end
                    book.goals_ms[log] = now_ms

    def on_silence(self, silent: Iterable[int]) -> None:
        """Who has not been heard for longer than anybody may lag. It may hold everything; but while it could be elected
        nobody knows that it was not, and no look is answered."""
        self._silent = frozenset(silent)

    def on_minimum(self, minimum: int) -> bool:
        """True: a watermark has moved."""
        self._minimum = minimum
        return self._set_up()

    def on_stored(self, state: PartitionState, revision: int) -> bool:
        """The store has this: a proposal was confirmed, a watch brought it, or it was read. True: a watermark moved."""
        if revision <= self.revision:
            return False
        assert state.epoch == self.state.epoch, "another epoch has a progress of its own"
        self.state = state
        self.revision = revision
        # What was proposed before has come true by this, or never will: its comparison fails from now on.
        self._pending = frozenset()
        self._is_busy = False
        return self._set_up()

    def on_unknown(self, proposal: Propose) -> None:
        """The proposal failed, or nobody knows. Until the key has been read nothing else is proposed."""
        if proposal.revision == self.revision:
            self._must_read = True

    def on_read(self, state: PartitionState, revision: int) -> bool:
        """What the key says after a proposal without a known outcome. True: a watermark has moved."""
        has_moved = self.on_stored(state, revision)
        self._must_read = False
        self._is_busy = False
        return has_moved

    # What follows

    def behind(self, now_ms: int, lag_ms: int) -> list[int]:
        """Members of the set that have not caught up in some log for longer than `lag_ms`, or are silent."""
        since_ms = now_ms - lag_ms
        members = (node for node in self.state.in_sync if node != self.node)
        return [node for node in members if node in self._silent or self._is_behind(node, since_ms)]

    def caught_up(self, view: View) -> list[int]:
        """Replicas outside the set, and who is to be one, that hold all that is committed, and all that was there when
        the epoch began."""
        return [
            node
            for node in (*self.state.replicas, *self.state.adding)
            if node not in self.state.in_sync
            and node not in self.state.mending
            and (book := self._followers.get(node)) is not None
            and (standing := view.get(node)) is not None
            and standing.may_join
            # Or it would leave again with the next write.
            and standing.has_room
            and standing.life == book.life
            and book.has_asked
            and book.holds(self.watermarks)
            and book.holds(self.epoch_starts)
        ]

    def propose(self, now_ms: int, lag_ms: int, view: View) -> Propose | None:
        """What the store should say instead. It counts when it is confirmed; one at a time."""
        if self._is_busy or self._must_read:
            return None
        leaving = self.behind(now_ms, lag_ms)
        joining = self.caught_up(view)
        wanted = without(self.state, leaving, minimum=self._minimum)
        wanted = joined_by(wanted, joining, minimum=self._minimum)
        if wanted == self.state and not self._pending:
            return None
        for node in leaving:
            self._followers[node].has_asked = False
        for node in joining:
            self._followers[node].be_patient(now_ms)
        self._is_busy = True
        self._pending = self._pending.union(joining)
        self._set_up()
        joins = tuple(Join(node, self._followers[node].life) for node in joining)
        return Propose(wanted, self.revision, joins)

    def may_answer_looks(self, now_ms: int, view: View, followed_ms: Mapping[int, int], *, is_held: bool) -> bool:
        """Whether an answer that only looks is not older than a second: asked at the reply, never by a timer.

        Whoever leads by now has been in one of these sets, and follows nobody. `followed_ms` says when each node surely
        followed this leader in this epoch. Of those who are not there nothing is heard, and one of them may have come
        back and been elected: then the session of this node must be its own still (`is_held`). So must that of a leader
        without anybody else.
        """
        members = self._pending.union(self.state.in_sync, self.state.eligible) - {self.node}
        living = [node for node in members if node in view]
        if not is_held and (len(living) < len(members) or not members):
            return False
        return all(node in followed_ms and now_ms - followed_ms[node] <= LOOKS_MS_MAX for node in living)

    def told_log_start(self, log: int, own_start: int) -> int:
        """The start up to which every member of the set has removed the log, this node included."""
        return min([own_start, *(book.log_starts[log] for book in self._waited)])

    # Bookkeeping

    def _advance(self, log: int) -> bool:
        if self._is_frozen:
            return False
        end = self._own_ends[log]
        for book in self._waited:
            if book.held[log] < end:
                end = book.held[log]
        if end <= self.watermarks[log]:
            return False
        self.watermarks[log] = end
        return True

    def _set_up(self) -> bool:
        """After a change of who is waited for, or for how many."""
        self._is_frozen = len(self.state.in_sync) < self._minimum or bool(self.state.eligible)
        waited = self._pending.union(self.state.in_sync) - {self.node}
        self._waited = [self._followers.get(node) or self._meet(node, NO_LIFE) for node in sorted(waited)]
        moved = [self._advance(log) for log in range(LOG_COUNT)]
        return any(moved)

    def _meet(self, node: int, life: int) -> _Follower:
        """A follower, or a new life of one: nothing that another life held is known of this one."""
        known = self._followers.get(node)
        book = self._followers[node] = _Follower(life, self._now_ms)
        self._waited = [book if one is known else one for one in self._waited]
        return book

    def _is_behind(self, node: int, since_ms: int) -> bool:
        book = self._followers[node]
        return any(
            held < goal and goal_ms < since_ms
            for held, goal, goal_ms in zip(book.held, book.goals, book.goals_ms, strict=True)
        )
