"""Who leads a partition and who holds what is committed, as the metadata store has it. One value for all three logs of
a partition: data, queue journal, schedule.

    in_sync     holds everything that is committed, and is waited for before anything more is
    eligible    left the set when it fell below the minimum: holds everything that is committed, and nothing is added
                to that while anybody is in here
    mending     took itself out because its log is damaged or shorter than it told: joins again when it says so itself
    unsure      in sync until a power cut, and may have lost what was in memory alone: leads only when all are back

Rules:
- The store's compare-and-set alone changes it: its *state epoch* is the key's mod revision, 0 while there is no key.
- `in_sync` is empty only if everybody who was in it came back with another or an older disk: then nobody is known to
  hold what is committed, and an unclean election alone gives it a leader.
- `epoch` grows with every election and never goes back. `life` is the broker epoch of the leader that was elected: a
  node leads only where it is its own, so a restarted node never goes on in the epoch of an earlier life.
- `replicas` is in the order of preference, the others in the order of node ids: equal states are equal bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

# As in Kafka's protocol: nobody.
NO_LEADER: Final = -1
NO_LIFE: Final = 0
NO_EPOCH: Final = -1
FIRST_EPOCH: Final = 0
# Of a partition that has no key of its own yet, as the store compares it.
NO_REVISION: Final = 0


class PartitionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of `partitions/{topic id}/{n}`. Fields are only ever added, each with a default."""

    leader: int
    life: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    mending: tuple[int, ...] = ()
    # Of a reassignment under way.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    # The last epoch that an unclean election began: who has nothing of it or of a later one may cut below its
    # watermark, whenever it comes back; -1: none.
    unclean_epoch: int = NO_EPOCH

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    def is_led_by(self, node: int, life: int) -> bool:
        """Whether `node`, in the life that is registered under the broker epoch `life`, may lead.

        A single replica goes on in its epoch over restarts: there is nobody whose log could differ from its own, and a
        start with 10,000 partitions would write 10,000 keys. If its recovery cut something off, it begins a new epoch
        by itself (`election.renew`).
        """
        return self.leader == node and (self.life == life or self.is_alone(node))

    def is_alone(self, node: int) -> bool:
        """Nobody else has the partition, or is about to."""
        return self.replicas == (node,) and not self.adding


def first_state(replicas: tuple[int, ...], life: int) -> PartitionState:
    """Of a partition that nobody has changed since its topic was made: the first of its replicas leads."""
    return PartitionState(
        leader=replicas[0], life=life, epoch=FIRST_EPOCH, replicas=replicas, in_sync=tuple(sorted(replicas))
    )
