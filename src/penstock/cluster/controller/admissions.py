"""Who asks to be admitted, what may be believed of its logs, and what its member record is to be."""

from __future__ import annotations

from penstock.cluster.catalog.nodes import LivingNode, Member, NodeCatalog
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, Compare, CreateRevisionIs, ModRevisionIs
from penstock.domain.replication.membership import MemberRecord, Trust, Verdict, judge
from penstock.domain.replication.state import NO_LIFE


class Admissions:
    def __init__(self, nodes: NodeCatalog, keys: KeySpace, *, cluster_id: str) -> None:
        self._nodes = nodes
        self._keys = keys
        self._cluster_id = cluster_id

    def asking(self) -> list[LivingNode]:
        """Those whose directories have the epoch of this life; by id. One that was removed asks in vain."""
        return [
            node
            for node in self._nodes.living()
            if node.record.directory is not None
            and not self._nodes.is_admitted(node.record.node_id)
            and not self._is_removed(node.record.node_id)
        ]

    def verdict(self, node: LivingNode) -> Verdict:
        member, directory = self._member(node), node.record.directory
        assert directory is not None, "who has not asked is not judged"
        if member is None or member.record.admitted_epoch == NO_LIFE:
            # Nothing was ever promised in its name.
            return Verdict(Trust.FULL)
        return judge(
            member.record,
            directory,
            node_id=node.record.node_id,
            cluster_id=self._cluster_id,
            boot_id=node.record.boot_id,
        )

    def record(self, node: LivingNode) -> MemberRecord:
        member = self._member(node)
        return MemberRecord(
            directory_id=node.record.directory_id,
            admitted_epoch=node.epoch,
            boot_id=node.record.boot_id,
            rack=node.record.rack,
            features={} if member is None else member.record.features,
        )

    def compares(self, node: LivingNode) -> list[Compare]:
        """It lives this very life, and nobody has judged it meanwhile."""
        node_id, member = node.record.node_id, self._member(node)
        key = self._keys.member(node_id)
        unjudged = Absent(key) if member is None else ModRevisionIs(key, member.mod_revision)
        return [CreateRevisionIs(self._keys.node(node_id), node.epoch), unjudged]

    def _member(self, node: LivingNode) -> Member | None:
        return self._nodes.members().get(node.record.node_id)

    def _is_removed(self, node_id: int) -> bool:
        member = self._nodes.members().get(node_id)
        return member is not None and member.record.is_removed
