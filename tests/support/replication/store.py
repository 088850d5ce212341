"""The metadata store in a world of replicas: one partition's key with its history, members and nodes.

Proposals travel to it like any message. Their outcome is told, or not; and one whose sender was told "unknown" may be
lost, may have been stored, or may still arrive later.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.domain.replication.membership import MemberRecord
from penstock.domain.replication.progress import Propose
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty, Standing, View


class SimStore:
    def __init__(self, state: PartitionState) -> None:
        self.revision = 1
        self.state = state
        # The revision of the partition's key; the store's own grows with every write.
        self.key_revision = 1
        self.history: list[tuple[int, PartitionState]] = [(1, state)]
        self.members: dict[int, MemberRecord] = {}
        self._lives: dict[int, int] = {}
        self._duties: dict[int, Duty] = {}
        self._view: View | None = None

    @property
    def lives(self) -> Mapping[int, int]:
        """The broker epochs of the nodes that have a key."""
        return self._lives

    def register(self, node: int) -> int:
        self.revision += 1
        self._lives[node] = self.revision
        self._duties[node] = Duty.SERVING
        self._view = None
        return self.revision

    def expire(self, node: int) -> None:
        self._lives.pop(node, None)
        self._view = None

    def set_duty(self, node: int, duty: Duty) -> None:
        self._duties[node] = duty
        self._view = None

    def duty(self, node: int) -> Duty:
        return self._duties[node]

    def admit(self, node: int, record: MemberRecord) -> None:
        self.members[node] = record
        self._view = None

    def is_admitted(self, node: int, life: int) -> bool:
        member = self.members.get(node)
        return member is not None and member.admitted_epoch == life

    def view(self) -> View:
        if self._view is None:
            self._view = {
                node: Standing(life, is_admitted=self.is_admitted(node, life), duty=self._duties[node])
                for node, life in sorted(self._lives.items())
            }
        return self._view

    def put(self, state: PartitionState) -> None:
        self.revision += 1
        self.key_revision = self.revision
        self.state = state
        self.history.append((self.key_revision, state))

    def compare_and_set(self, proposal: Propose) -> bool:
        if proposal.revision != self.key_revision:
            return False
        if any(self._lives.get(join.node) != join.life for join in proposal.joins):
            return False
        self.put(proposal.state)
        return True

    def next_after(self, revision: int) -> tuple[int, PartitionState] | None:
        """What a watch brings to one who has seen everything up to `revision`."""
        if revision >= self.key_revision:
            return None
        # Few are far behind, so the search begins at the end.
        place = len(self.history) - 1
        while place and self.history[place - 1][0] > revision:
            place -= 1
        return self.history[place]
