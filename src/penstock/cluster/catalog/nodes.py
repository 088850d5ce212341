"""Which nodes there are: those that live, those that are members for good, and which of them is the controller.

    nodes/{id}     leased. Its create revision is the node's *broker epoch*: it tells one life from the next.
    members/{id}   lasting. Which life was admitted last, and what proved it; the next one is judged by that.
    controller     leased, on the session of the node that holds it.

A node may fetch, lead and be counted on when its life is *admitted*: the epoch in its member record is that of its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from penstock.cluster.catalog.order import Kind, Part
from penstock.cluster.catalog.watch import Listener, MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Event, Range
from penstock.cluster.store.values import decode
from penstock.domain.replication.membership import DirectoryRecord, MemberRecord
from penstock.domain.replication.view import Duty, Standing, View


class NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of `nodes/{id}`. Fields are only ever added, each with a default."""

    node_id: int
    # Where Kafka clients find it.
    host: str
    port: int
    rack: str | None = None
    directory_id: str = ""
    # When its process did; the same in every life of one process.
    started_ms: int = 0
    # Where its data directory lies, on which machine: the same place is held by one process at a time.
    place: str = ""
    # Of all doors, by name.
    doors: dict[str, str] = {}
    # Where other nodes find it.
    internal: str = ""
    status: Duty = Duty.SERVING
    # Its disk takes more.
    has_room: bool = True
    # Of the machine that it runs on.
    boot_id: str = ""
    # What its data directory said when it was opened. Told when the directory has this life's epoch durably: by it the
    # node asks to be admitted.
    directory: DirectoryRecord | None = None


class ControllerRecord(msgspec.Struct, frozen=True):
    """The value of `controller`."""

    node_id: int
    # The life of that node.
    life: int


class LivingNode(msgspec.Struct, frozen=True):
    record: NodeRecord
    # Its broker epoch.
    epoch: int
    mod_revision: int


class Member(msgspec.Struct, frozen=True):
    record: MemberRecord
    mod_revision: int


class ControllerKey(msgspec.Struct, frozen=True):
    record: ControllerRecord
    create_revision: int


class NodesChanged(msgspec.Struct, frozen=True):
    """Some node came, went or told something else; or another one is the controller. The catalog says what is now."""

    node_id: int | None


class NodeImage:
    def __init__(self, keys: KeySpace) -> None:
        self._keys = keys
        self.living: dict[int, LivingNode] = {}
        self.members: dict[int, Member] = {}
        self.controller: ControllerKey | None = None
        # Grows with every change.
        self.generation = 0

    def is_admitted(self, node_id: int) -> bool:
        living, member = self.living.get(node_id), self.members.get(node_id)
        return living is not None and member is not None and member.record.admitted_epoch == living.epoch

    def view(self) -> View:
        """As those see it who elect."""
        return {
            node_id: Standing(
                life=living.epoch,
                is_admitted=self.is_admitted(node_id),
                duty=living.record.status,
                has_room=living.record.has_room,
            )
            for node_id, living in sorted(self.living.items())
        }

    def apply(self, events: Iterable[Event]) -> list[NodesChanged]:
        # Read before anything is changed: all or nothing.
        steps = [step for event in events if (step := self._step(event)) is not None]
        changes = [change for step in steps if (change := step()) is not None]
        self.generation += len(changes)
        return changes

    def events_to(self, current: Range) -> list[Event]:
        present = {entry.key for entry in current.entries}
        known = [*map(self._keys.node, self.living), *map(self._keys.member, self.members)]
        known += [self._keys.controller] if self.controller is not None else []
        gone = [Event(key, None, 0, current.revision) for key in known if key not in present]
        return gone + [
            Event(entry.key, entry.value, entry.create_revision, entry.mod_revision) for entry in current.entries
        ]

    def _step(self, event: Event) -> Callable[[], NodesChanged | None] | None:
        key, value = event.key, event.value
        if key.startswith(self._keys.nodes):
            living = None
            if value is not None:
                living = LivingNode(decode(key, value, NodeRecord), event.create_revision, event.mod_revision)
            return partial(self._put_node, self._keys.node_of(key), living)
        if key.startswith(self._keys.members):
            member = None if value is None else Member(decode(key, value, MemberRecord), event.mod_revision)
            return partial(self._put_member, self._keys.member_of(key), member)
        if key == self._keys.controller:
            controller = None
            if value is not None:
                controller = ControllerKey(decode(key, value, ControllerRecord), event.create_revision)
            return partial(self._put_controller, controller)
        return None

    def _put_node(self, node_id: int, living: LivingNode | None) -> NodesChanged | None:
        if self.living.get(node_id) == living:
            return None
        self.living.pop(node_id, None)
        if living is not None:
            self.living[node_id] = living
        return NodesChanged(node_id)

    def _put_member(self, node_id: int, member: Member | None) -> NodesChanged | None:
        if self.members.get(node_id) == member:
            return None
        self.members.pop(node_id, None)
        if member is not None:
            self.members[node_id] = member
        return NodesChanged(node_id)

    def _put_controller(self, controller: ControllerKey | None) -> NodesChanged | None:
        if self.controller == controller:
            return None
        self.controller = controller
        return NodesChanged(None)


class NodeCatalog:
    """As this node knows it: what it decides by must be compared in the transaction that follows."""

    def __init__(self, watch: MetadataWatch) -> None:
        self._image = NodeImage(watch.keys)
        self._watch = watch.follow(Kind.NODES, self._image)

    def on_change(self, listener: Listener[NodesChanged], part: Part | None = None) -> None:
        self._watch.on_change(listener, part)

    async def start(self) -> None:
        await self._watch.start()

    async def stop(self) -> None:
        await self._watch.stop()

    async def wait_for(self, revision: int) -> None:
        await self._watch.wait_for(revision)

    @property
    def controller(self) -> ControllerKey | None:
        return self._image.controller

    @property
    def generation(self) -> int:
        """Grows with every change: what was told of nodes before may no longer hold."""
        return self._image.generation

    def living(self) -> list[LivingNode]:
        """By id."""
        return [self._image.living[node_id] for node_id in sorted(self._image.living)]

    def node(self, node_id: int) -> LivingNode | None:
        """None: it does not live."""
        return self._image.living.get(node_id)

    def members(self) -> Mapping[int, Member]:
        """All that were ever admitted, and those that are removed."""
        return self._image.members

    def is_admitted(self, node_id: int) -> bool:
        """It lives, and this life may be counted on."""
        return self._image.is_admitted(node_id)

    def view(self) -> View:
        return self._image.view()

    def serving(self) -> list[LivingNode]:
        """Those that new partitions are placed on, by id."""
        return [
            living
            for living in self.living()
            if living.record.status is Duty.SERVING and self.is_admitted(living.record.node_id)
        ]
