"""What goes wrong in a world of replicas, and what a person does there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.domain.replication.election import hand_over, leave, mended
from penstock.domain.replication.membership import DirectoryRecord, epochs_to_keep
from penstock.domain.replication.progress import LOG_COUNT, Propose
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty
from support.replication.log import SimLog
from support.replication.node import Follow, Lead, Node

if TYPE_CHECKING:
    from support.replication.world import World
# A few steps, or longer than it takes another node to be started anew and admitted.
PAUSES_MS = (10, 50, 300)


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self.are_on = True
        self.wiped_count = self.restored_count = self.damaged_count = 0
        self._directories = 0
        # What each disk had in an earlier life, as somebody has copied it.
        self._copies: dict[int, tuple[DirectoryRecord, list[SimLog]]] = {}

    def acts(self) -> list[tuple[Callable[[], None], float]]:
        return [
            (self._expire, 1),
            (self._come_back, 4),
            (self._crash, 2),
            (self._pause, 1),
            (self._start, 4),
            (self._change_minimum, 1),
            (self._leave, 2),
            (self._mend, 3),
            (self._drain, 1),
        ]

    def end(self) -> None:
        self.are_on = False
        for node in self._world.nodes:
            if not node.is_alive:
                self._world.start(node)
            elif node.id in self._world.store.lives:
                self._world.store.set_duty(node.id, Duty.SERVING)

    # Sessions

    def _expire(self) -> None:
        if self._random.random() < 0.6:
            self._world.store.expire(self._random.randrange(len(self._world.nodes)))

    def _come_back(self) -> None:
        self.come_back(self._world.pick())

    def come_back(self, node: Node) -> None:
        """A node that finds its key gone is another life; and its disk knows of it before it asks to be admitted."""
        store = self._world.store
        if store.lives.get(node.id) != node.life:
            self._world.start(node)
        if node.life not in node.directory.epochs:
            epochs = epochs_to_keep(store.members.get(node.id), node.directory, node.life)
            node.directory = replace(node.directory, epochs=epochs)

    # Crashes and disks

    def _crash(self) -> None:
        node = self._world.pick()
        if self._random.random() < 0.5:
            node.crash()
            if self._random.random() < 0.3:
                self._start_again(node)

    def _pause(self) -> None:
        node = self._world.pick()
        node.paused_until_ms = self._world.now_ms + self._random.choice(PAUSES_MS)

    def _start(self) -> None:
        dead = [node for node in self._world.nodes if not node.is_alive]
        if dead:
            self._start_again(self._random.choice(dead))

    def _start_again(self, node: Node) -> None:
        chance = self._random.random()
        wiped_share = self._world.temper.wiped_share
        if chance < wiped_share and self.is_spare(node):
            self._wipe(node)
        elif chance < wiped_share + 0.15 and self.is_spare(node):
            self._restore(node)
        elif chance < wiped_share + 0.35:
            self._copies[node.id] = (node.directory, [log.copy() for log in node.logs])
        self._world.start(node)
        if self._random.random() < 0.5:
            self.come_back(node)

    def is_spare(self, node: Node) -> bool:
        """Somebody else who may lead holds everything, and no other disk is lost at the same time: no rule helps
        against losing the last one, and two disks of three are one more than a minimum of two is a promise about."""
        world, state = self._world, self._world.store.state
        if any(other.is_untrusted for other in world.nodes):
            return False
        others = [world.nodes[other] for other in (*state.in_sync, *state.eligible) if other != node.id]
        return any(world.book.is_held_by(other.logs) for other in others)

    def _wipe(self, node: Node) -> None:
        self.wiped_count += 1
        self._directories += 1
        node.lose([SimLog() for _ in range(LOG_COUNT)])
        node.directory = replace(node.directory, directory_id=f"wiped{self._directories}", epochs=())
        node.is_untrusted = True

    def _restore(self, node: Node) -> None:
        """From a copy of a life before the one that was admitted last: a younger one cannot be told apart."""
        if node.id not in self._copies:
            return
        directory, logs = self._copies[node.id]
        if self._world.store.members[node.id].admitted_epoch in directory.epochs:
            return
        self.restored_count += 1
        node.lose([log.copy() for log in logs])
        node.directory = directory
        node.is_untrusted = True

    # What nodes do about themselves

    def _leave(self) -> None:
        node = self._world.pick()
        store = self._world.store
        if self._random.random() < 0.6 or node.state is None or node.revision != store.key_revision:
            return
        is_whole = self._random.random() < 0.5 or not self.is_spare(node)
        left: PartitionState | None = None
        if isinstance(node.role, Lead):
            left = hand_over(node.state, node.id, node.view, minimum=node.minimum, is_whole=is_whole)
        elif isinstance(node.role, Follow):
            left = leave(node.state, node.id, minimum=node.minimum, is_whole=is_whole)
        if left is None or not self._world.change(Propose(left, node.revision)):
            return
        node.adopt(store.state, store.key_revision)
        if not is_whole:
            self._damage(node)

    def _damage(self, node: Node) -> None:
        self.damaged_count += 1
        kept = [log.copy() for log in node.logs]
        for log in kept:
            log.cut(self._random.randint(0, log.end))
        node.lose(kept)

    def _mend(self) -> None:
        self.mend(self._world.pick())

    def mend(self, node: Node) -> None:
        if node.state is None or node.revision != self._world.store.key_revision or not node.is_whole:
            return
        after = mended(node.state, node.id) if isinstance(node.role, Follow) else None
        if after is not None:
            self._world.change(Propose(after, node.revision))

    def _drain(self) -> None:
        node = self._world.pick()
        if node.id in self._world.store.lives:
            duty = Duty.DRAINING if self._random.random() < 0.3 else Duty.SERVING
            self._world.store.set_duty(node.id, duty)

    def _change_minimum(self) -> None:
        if self._random.random() < 0.1:
            self._world.minimum = self._random.choice((1, 2, 2))
