"""Who leads a partition: pure choices over its state and a view of the nodes. None: nothing changes.

    the leader, while it lives in the life that was elected
    else the first of `replicas` that is in sync and can lead
    else the first that is eligible: it alone is the set then, and the former set is eligible beside it
    else nobody; the sets stay as they are, because whoever of them comes back first holds everything

Rules:
- Every change of the leader is a new epoch, with the life of the one who was elected.
- The dead leave the set in the same step, and those who drain as far as the minimum allows: writers wait for nobody who
  is known to be gone.
- Who is `unsure` does not lead while the others are away. As soon as somebody leads who is sure, the unsure have no
  say any more: they leave, and come back as followers do.
- Nobody here trusts a clock: what is chosen counts when the store has compared and set it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock.domain.replication.sets import without
from penstock.domain.replication.state import NO_LEADER, NO_LIFE, PartitionState
from penstock.domain.replication.view import Duty, Standing, View

# A transaction of the store holds 128 comparisons; a partition and its joiners need two.
CHANGES_A_STEP_MAX: Final = 60
# Below this share of leaders away from their place, moving them costs more than it evens out.
AWAY_SHARE_MIN: Final = 0.1

# What a caller calls a partition.
Key = TypeVar("Key")


def choose(state: PartitionState, view: View, *, minimum: int) -> PartitionState | None:
    """What the controller makes of a partition when nodes have come or gone."""
    if _goes_on_alone(state):
        return None
    leader = _leader_for(state, view)
    if leader == NO_LEADER:
        return _led_by_nobody(state) if state.has_leader else None
    led = state if _is_leading(state, leader, view) else led_by(state, leader, view[leader].life)
    chosen = _without_the_gone(led, view, minimum)
    return None if chosen == state else chosen


def hand_over(state: PartitionState, leader: int, view: View, *, minimum: int, is_whole: bool) -> PartitionState | None:
    """By a leader that cannot do its work. None: nobody can take it; it keeps the seat and refuses.

    `is_whole`: it holds everything that it has promised (a full disk), and may lead again if the set is small. Then
    only one with room can do better. What is damaged here, anybody can who holds it: also who is eligible alone.
    """
    if state.leader != leader:
        return None
    members = _able(state, state.in_sync, view)
    if not is_whole and set(members) <= {leader}:
        members = _able(state, state.eligible, view)
    able = [node for node in members if node != leader and view[node].duty is not Duty.DRAINING]
    if is_whole:
        able = [node for node in able if view[node].has_room]
    able.sort(key=lambda node: not view[node].has_room)
    if not able:
        return None
    led = led_by(state, able[0], view[able[0]].life)
    return _left_by(led, leader, minimum=minimum, is_whole=is_whole)


def leave(state: PartitionState, node: int, *, minimum: int, is_whole: bool) -> PartitionState | None:
    """By a follower that can no longer keep up (damage, a failed sync, a full disk): before anything else, because as
    long as it stands there writers wait for it, and it can be elected. Who is in no set and damaged says so too, or its
    next fetch would bring it back."""
    if node == state.leader or node not in {*state.replicas, *state.adding}:
        return None
    members = {*state.in_sync, *state.eligible}
    if node not in members and (is_whole or node in state.mending):
        return None
    if not members - {node}:
        # Nobody leads, and nobody else holds what is committed: giving up the seat would not help anybody.
        return None
    left = promote_eligible(_left_by(state, node, minimum=minimum, is_whole=is_whole))
    return None if left == state else left


def mended(state: PartitionState, node: int) -> PartitionState | None:
    """By a follower whose log is whole again: it may be taken back into the set.

    Not before it holds again everything that it has told the leader of this epoch, or all that the leader has: a fetch
    of before may still be on its way, and would count.
    """
    if node not in state.mending:
        return None
    return replace(state, mending=tuple(other for other in state.mending if other != node))


def renew(state: PartitionState, node: int, life: int) -> PartitionState:
    """A new epoch for the single replica whose recovery cut something off: readers must not go on behind it."""
    assert state.replicas == (node,)
    return led_by(state, node, life)


def elect_preferred(state: PartitionState, view: View) -> PartitionState | None:
    """By somebody's wish: the first of the replicas leads. None: it cannot, or does already."""
    first = state.replicas[0] if state.replicas else NO_LEADER
    return led_by(state, first, view[first].life) if first != NO_LEADER and _may_go_home(state, view) else None


def elect_unclean(state: PartitionState, view: View, *, minimum: int) -> PartitionState | None:
    """By somebody's explicit wish: the first that lives, whatever it lacks. None: nobody lives, or it is not needed."""
    clean = choose(state, view, minimum=minimum)
    if _goes_on_alone(state) or _leader_for(state, view) != NO_LEADER:
        return clean
    living = [node for node in state.replicas if node in view and view[node].is_admitted]
    # Rather one that held everything before its memory was lost than one that was far behind or has holes.
    living.sort(key=lambda node: (node not in state.unsure, node in state.mending))
    return _led_by_remains(state, living[0], view) if living else None


def choose_longest(state: PartitionState, view: View, ends: Mapping[int, tuple[int, int]]) -> PartitionState | None:
    """When everybody who held what is committed lost its memory, and all are back: the longest log leads.

    `ends` has the last epoch and the end of each one's log. Something may be lost, and the epoch says so.
    """
    members = members_of(state)
    if not is_lost_by_all(state) or not all(
        node in view and view[node].is_admitted and node in ends for node in members
    ):
        return None
    longest = max((node for node in state.replicas if node in members), key=lambda node: ends[node])
    return _led_by_remains(state, longest, view)


def members_of(state: PartitionState) -> list[int]:
    """Those who hold everything that is committed, or did until a power cut."""
    return sorted({*state.in_sync, *state.eligible})


def is_lost_by_all(state: PartitionState) -> bool:
    """Nobody is left who surely holds what is committed."""
    return bool(state.in_sync) and set(members_of(state)) <= set(state.unsure)


def prefer(
    states: Mapping[Key, PartitionState],
    view: View,
    *,
    share: float = AWAY_SHARE_MIN,
    most: int = CHANGES_A_STEP_MAX,
) -> list[tuple[Key, PartitionState]]:
    """The first replicas lead again, a step at a time, if enough of them are away."""
    away = [key for key, state in states.items() if _may_go_home(state, view)]
    if len(away) < share * len(states):
        return []
    home = [(key, elect_preferred(states[key], view)) for key in away[:most]]
    return [(key, after) for key, after in home if after is not None]


def promote_eligible(state: PartitionState) -> PartitionState:
    """Nobody is in sync any more, and those who are eligible hold everything: they are the set."""
    if state.in_sync:
        return state
    return replace(state, in_sync=state.eligible, eligible=())


def _goes_on_alone(state: PartitionState) -> bool:
    """A single replica keeps its seat while it is away: nobody could take it, and nobody's key is written twice."""
    return state.replicas == (state.leader,) == state.in_sync and not state.unsure and not state.adding


def _leader_for(state: PartitionState, view: View) -> int:
    in_sync = _able(state, state.in_sync, view)
    if _is_leading(state, state.leader, view) and (
        view[state.leader].duty is not Duty.DRAINING or all(view[node].duty is Duty.DRAINING for node in in_sync)
    ):
        return state.leader
    able = in_sync or _able(state, state.eligible, view)
    # Stable, so that the order of preference decides among equals.
    able.sort(key=lambda node: _reluctance(view[node]))
    return able[0] if able else NO_LEADER


def _reluctance(standing: Standing) -> tuple[bool, bool]:
    return standing.duty is Duty.DRAINING, not standing.has_room


def _able(state: PartitionState, members: Iterable[int], view: View) -> list[int]:
    """Those of `members` that can lead, in the order of preference."""
    wanted = set(members).difference(state.unsure)
    return [node for node in state.replicas if node in wanted and node in view and view[node].is_admitted]


def _is_leading(state: PartitionState, node: int, view: View) -> bool:
    """In this very life: what the last one had in memory, another does not know."""
    return (
        state.leader == node
        and node in view
        and view[node].is_admitted
        and view[node].life == state.life
        and node in state.in_sync
        and node not in state.unsure
    )


def _may_go_home(state: PartitionState, view: View) -> bool:
    first = state.replicas[0]
    return (
        state.leader != first
        and _is_leading(state, state.leader, view)
        and first in _able(state, state.in_sync, view)
        and view[first].may_join
        and view[first].has_room
    )


def led_by(state: PartitionState, leader: int, life: int) -> PartitionState:
    led = replace(state, leader=leader, life=life, epoch=state.epoch + 1)
    if leader in state.in_sync:
        return led
    eligible = {*state.eligible, *state.in_sync} - {leader}
    return replace(led, in_sync=(leader,), eligible=tuple(sorted(eligible)))


def _left_by(state: PartitionState, node: int, *, minimum: int, is_whole: bool) -> PartitionState:
    if is_whole:
        return without(state, (node,), minimum=minimum)
    # Its fetches go on, and at the end of its log nobody sees what is missing in the middle: the state has to say it.
    left = without(state, (), minimum=minimum, lost=(node,))
    return replace(left, mending=tuple(sorted({*left.mending, node})))


def _led_by_nobody(state: PartitionState) -> PartitionState:
    return replace(state, leader=NO_LEADER, life=NO_LIFE, epoch=state.epoch + 1)


def _led_by_remains(state: PartitionState, leader: int, view: View) -> PartitionState:
    epoch = state.epoch + 1
    return replace(
        state,
        leader=leader,
        life=view[leader].life,
        epoch=epoch,
        in_sync=(leader,),
        eligible=(),
        unsure=(),
        mending=tuple(node for node in state.mending if node != leader),
        unclean_epoch=epoch,
    )


def _without_the_gone(state: PartitionState, view: View, minimum: int) -> PartitionState:
    sure = without(state, (), minimum=minimum, lost=state.unsure) if state.unsure else state
    dead = [node for node in sure.in_sync if node not in view and node != sure.leader]
    living = without(sure, dead, minimum=minimum) if dead else sure
    draining = [node for node in living.in_sync if node in view and view[node].duty is Duty.DRAINING]
    spare = max(0, len(living.in_sync) - max(minimum, 1))
    leaving = [node for node in draining if node != living.leader][:spare]
    return without(living, leaving, minimum=minimum) if leaving else living
