"""Other nodes in a node's metadata, written as they and the controller would: none of them runs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cluster.catalog.nodes import NodeRecord
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.values import encode
from penstock.domain.replication.membership import MemberRecord
from penstock.domain.replication.state import NO_LEADER, NO_LIFE, PartitionState
from penstock.domain.replication.view import Duty
from support.door.conversation import TalkingNode

KEYS = KeySpace()


class OtherNodes:
    """Those that a node believes to live beside itself."""

    def __init__(self, node: TalkingNode) -> None:
        self._node = node
        self._store = node.catalog._store
        self.lives: dict[int, int] = {}

    async def come(self, node_id: int, *, port: int = 9000, duty: Duty = Duty.SERVING) -> None:
        """Found at host-{id}, in rack-{id}."""
        record = NodeRecord(
            node_id, f"host-{node_id}", port, rack=f"rack-{node_id}", internal=f"host-{node_id}:1", status=duty
        )
        put = await self._store.txn(puts={KEYS.node(node_id): encode(record)})
        self.lives[node_id] = put.revision
        member = MemberRecord(directory_id=f"directory-{node_id}", admitted_epoch=put.revision)
        await self._change({KEYS.member(node_id): encode(member)})

    async def lead(
        self,
        topic: str,
        index: int,
        leader: int,
        *,
        epoch: int = 4,
        replicas: Sequence[int] = (),
        in_sync: Sequence[int] = (),
        eligible: Sequence[int] = (),
    ) -> None:
        """`leader` alone has it, unless told otherwise."""
        described = self._node.catalog.by_name(topic)
        assert described is not None
        state = PartitionState(
            leader=leader,
            life=self.lives.get(leader, NO_LIFE),
            epoch=epoch,
            replicas=tuple(replicas) or (leader,),
            in_sync=tuple(in_sync) or tuple(replicas) or (leader,),
            eligible=tuple(eligible),
        )
        await self._change({KEYS.partition(described.topic_id, index): encode(state)})

    async def lead_nowhere(self, topic: str, index: int, *, replicas: Sequence[int]) -> None:
        await self.lead(topic, index, NO_LEADER, replicas=replicas)

    async def _change(self, puts: dict[str, bytes]) -> None:
        changed = await self._store.txn(puts=puts)
        await self._node.catalog.wait_for(changed.revision)
