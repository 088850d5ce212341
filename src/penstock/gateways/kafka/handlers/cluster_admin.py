"""Reassignments, AlterReplicaLogDirs, quorum and voters, features, UnregisterBroker: how things are.

A partition stays on the nodes where it was placed, but for replicas that the controller adds, in one directory of each,
and the metadata are kept by a store. So nothing moves by these; tools that ask are told how things are, and what cannot
be done is refused by the error that Kafka has for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_partition_reassignments as reassigning
from penstock.codec.kafka.messages import alter_replica_log_dirs as directories
from penstock.codec.kafka.messages import describe_quorum as quorum
from penstock.codec.kafka.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from penstock.codec.kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from penstock.codec.kafka.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from penstock.codec.kafka.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from penstock.codec.kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.codec.kafka.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.codec.kafka.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.codec.kafka.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.cluster_view import ClusterView
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES
from penstock.gateways.kafka.versions import FEATURES

# What Kafka's controller takes in one operation. Tools name what they want in batches of this size or less.
PARTITIONS_MAX: Final = 10_000
FEATURES_MAX: Final = 100
# The topic that Kafka's controllers keep metadata in, and the only one that has a quorum. Ours are in a store; its
# revision counts the changes as the offsets of that topic would.
METADATA_TOPIC: Final = "__cluster_metadata"
# Who keeps the metadata is never elected.
METADATA_EPOCH: Final = 1
# As Kafka calls the door between its controllers; ours is the only one.
CONTROLLER_LISTENER: Final = "CONTROLLER"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
UPGRADE_TYPE_FROM: Final = 1


class _Refused(msgspec.Struct, frozen=True):
    code: ErrorCode
    reason: str


class ClusterAdminHandler:
    def __init__(
        self,
        broker: Broker,
        catalog: TopicCatalog,
        admission: Admission,
        clock: Clock,
        cluster: ClusterView,
    ) -> None:
        self._broker = broker
        self._catalog = catalog
        self._admission = admission
        self._clock = clock
        self._cluster = cluster

    def _refusal(self, operation: Operation, context: RequestContext, partition_count: int = 0) -> _Refused | None:
        if not self._admission.may(context.caller, operation, CLUSTER):
            reason = f"{context.caller} may not {operation.name.lower()} the cluster"
            return _Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, reason)
        if partition_count > PARTITIONS_MAX:
            reason = f"{partition_count} partitions in one request, at most {PARTITIONS_MAX} are taken"
            return _Refused(ErrorCode.INVALID_REQUEST, reason)
        return None

    def _partition(self, topic_name: str, index: int) -> PartitionShell | _Refused:
        found = self._broker.find(topic_name, index)
        return _Refused(ABSENCE_CODES[found.why], found.detail) if isinstance(found, NotHere) else found

    # Reassignments

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        asked = request.topics
        refused = self._refusal(Operation.DESCRIBE, context, sum(len(each.partition_indexes) for each in asked or ()))
        if refused is not None:
            return ListPartitionReassignmentsResponse(error_code=refused.code, error_message=refused.reason)
        wanted = None if asked is None else {each.name: set(each.partition_indexes) for each in asked}
        moving, pace = [], context.pace()
        for name in self._catalog.names() if wanted is None else sorted(wanted):
            found = self._moving(name, None if wanted is None else wanted[name])
            if found:
                moving.append(OngoingTopicReassignment(name, found))
            await pace.rest_if_due()
        return ListPartitionReassignmentsResponse(topics=moving)

    def _moving(self, name: str, indexes: set[int] | None) -> list[OngoingPartitionReassignment]:
        topic = self._catalog.by_name(name)
        return [
            OngoingPartitionReassignment(index, (*state.replicas, *state.adding), state.adding, state.removing)
            for index, stated in (() if topic is None else self._catalog.states(topic.topic_id))
            if (indexes is None or index in indexes) and ((state := stated.state).adding or state.removing)
        ]

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        allows_change = request.allow_replication_factor_change
        refused = self._refusal(Operation.ALTER, context, sum(len(topic.partitions) for topic in request.topics))
        if refused is not None:
            return AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=allows_change, error_code=refused.code, error_message=refused.reason
            )
        responses, pace = [], context.pace()
        for topic in request.topics:
            outcomes = []
            for partition in topic.partitions:
                outcomes.append(self._reassign(topic.name, partition))
                await pace.rest_if_due()
            responses.append(reassigning.ReassignableTopicResponse(topic.name, outcomes))
        return AlterPartitionReassignmentsResponse(allow_replication_factor_change=allows_change, responses=responses)

    def _reassign(
        self, topic: str, partition: reassigning.ReassignablePartition
    ) -> reassigning.ReassignablePartitionResponse:
        problem = self._replicas_problem(topic, partition.partition_index, partition.replicas)
        if problem is None:
            return reassigning.ReassignablePartitionResponse(partition.partition_index)
        return reassigning.ReassignablePartitionResponse(partition.partition_index, problem.code, problem.reason)

    def _replicas_problem(self, topic: str, index: int, replicas: Sequence[int] | None) -> _Refused | None:
        """Why a partition cannot be there; None: it is there already."""
        served = self._broker.topic(topic)
        placed = [] if served is None else list(self._cluster.placements(served, index, 1))
        if index < 0 or not placed:
            return _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {topic[:80]!r}")
        if replicas is None:
            return _Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not on its way to other nodes")
        reason = self._assignment_problem(replicas, placed[0].replicas)
        return None if reason is None else _Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)

    def _assignment_problem(self, replicas: Sequence[int], current: Sequence[int]) -> str | None:
        if not replicas:
            return "a partition is on one node at least"
        strangers = [each for each in replicas if each not in (*self._cluster.node_ids(), *current)]
        if strangers:
            return self._no_node(strangers[0])
        node_id, count = Counter(replicas).most_common(1)[0]
        if count > 1:
            return f"node {node_id} is named {count} times"
        if tuple(replicas) != tuple(current):
            return f"the partition is on {list(current)}, and partitions are not moved to other nodes yet"
        return None

    def _no_node(self, node_id: int) -> str:
        known = self._cluster.node_ids()
        others = f"this one, {known[0]}, is the only one" if len(known) == 1 else f"those that live are {known}"
        return f"there is no node {node_id}: {others}"

    # AlterReplicaLogDirs

    async def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        named = sum(len(topic.partitions) for each in request.dirs for topic in each.topics)
        refused = self._refusal(Operation.ALTER, context, named)
        results, pace = [], context.pace()
        for each in request.dirs:
            problem = refused or self._directory_problem(each.path)
            for topic in each.topics:
                outcomes = []
                for index in topic.partitions:
                    code = self._placed(topic.name, index, problem)
                    outcomes.append(directories.AlterReplicaLogDirPartitionResult(index, code))
                    await pace.rest_if_due()
                results.append(directories.AlterReplicaLogDirTopicResult(topic.name, outcomes))
        return AlterReplicaLogDirsResponse(results=results)

    def _directory_problem(self, path: str) -> _Refused | None:
        directory = self._broker.space().directory
        if path == directory:
            return None
        return _Refused(ErrorCode.LOG_DIR_NOT_FOUND, f"the node has one directory, {directory}")

    def _placed(self, topic: str, index: int, problem: _Refused | None) -> ErrorCode:
        if problem is not None:
            return problem.code
        found = self._partition(topic, index)
        return found.code if isinstance(found, _Refused) else ErrorCode.NONE

    # DescribeQuorum

    async def describe_quorum(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        refused = self._refusal(Operation.DESCRIBE, context, sum(len(topic.partitions) for topic in request.topics))
        if refused is not None:
            return DescribeQuorumResponse(error_code=refused.code, error_message=refused.reason)
        topics, pace, is_told = [], context.pace(), False
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                partitions.append(self._described_quorum(topic.topic_name, each.partition_index))
                is_told = is_told or partitions[-1].leader_id == self._cluster.controller_id
                await pace.rest_if_due()
            topics.append(quorum.TopicData(topic.topic_name, partitions))
        return DescribeQuorumResponse(topics=topics, nodes=self._quorum_nodes(context) if is_told else ())

    def _quorum_nodes(self, context: RequestContext) -> list[quorum.Node]:
        found = self._cluster.endpoint(self._cluster.controller_id, context.local_address)
        if found is None:
            return []
        return [quorum.Node(found.node_id, (quorum.Listener(CONTROLLER_LISTENER, found.host, found.port),))]

    def _described_quorum(self, topic: str, index: int) -> quorum.PartitionData:
        if topic != METADATA_TOPIC or index != 0:
            reason = f"only {METADATA_TOPIC} has a quorum, and one partition"
            return quorum.PartitionData(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
        # The controller speaks for the store that keeps them.
        node_id, revision, now_ms = self._cluster.controller_id, self._catalog.revision, self._clock.now_ms()
        voter = quorum.ReplicaState(
            node_id, log_end_offset=revision, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
        )
        return quorum.PartitionData(
            index,
            leader_id=node_id,
            leader_epoch=METADATA_EPOCH,
            high_watermark=revision,
            current_voters=(voter,),
        )

    # AddRaftVoter, RemoveRaftVoter

    def add_raft_voter(self, request: AddRaftVoterRequest, context: RequestContext) -> AddRaftVoterResponse:
        refused = self._voter_refusal(request.cluster_id, request.voter_id, context)
        if refused.code is ErrorCode.UNSUPPORTED_VERSION and not any(
            each.name.upper() == CONTROLLER_LISTENER for each in request.listeners
        ):
            reason = f"no address of the voter for {CONTROLLER_LISTENER} is given"
            refused = _Refused(ErrorCode.INVALID_REQUEST, reason)
        return AddRaftVoterResponse(error_code=refused.code, error_message=refused.reason)

    def remove_raft_voter(self, request: RemoveRaftVoterRequest, context: RequestContext) -> RemoveRaftVoterResponse:
        refused = self._voter_refusal(request.cluster_id, request.voter_id, context)
        return RemoveRaftVoterResponse(error_code=refused.code, error_message=refused.reason)

    def _voter_refusal(self, cluster_id: str | None, voter_id: int, context: RequestContext) -> _Refused:
        """As where the voters are fixed: it is the store that votes, if anybody."""
        cluster_id_here = self._cluster.cluster_id
        refused = self._refusal(Operation.ALTER, context)
        if refused is not None:
            return refused
        if cluster_id is not None and cluster_id != cluster_id_here:
            reason = f"this is cluster {cluster_id_here}, not {cluster_id[:80]!r}"
            return _Refused(ErrorCode.INCONSISTENT_CLUSTER_ID, reason)
        if voter_id < 0:
            return _Refused(ErrorCode.INVALID_REQUEST, f"{voter_id} is no node's number")
        reason = "the voters do not change: the metadata are kept by a store, and not by the nodes"
        return _Refused(ErrorCode.UNSUPPORTED_VERSION, reason)

    # UpdateFeatures

    def update_features(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        refused = self._refusal(Operation.ALTER, context) or _features_problem(request.feature_updates)
        if refused is None:
            problems = (_level_problem(update, context.api_version) for update in request.feature_updates)
            refused = next((problem for problem in problems if problem is not None), None)
        if refused is not None:
            return UpdateFeaturesResponse(error_code=refused.code, error_message=refused.reason)
        results = [UpdatableFeatureResult(update.feature) for update in request.feature_updates]
        return UpdateFeaturesResponse(results=results)

    # UnregisterBroker

    def unregister_broker(self, request: UnregisterBrokerRequest, context: RequestContext) -> UnregisterBrokerResponse:
        refused = self._refusal(Operation.ALTER, context)
        if refused is None and request.broker_id in self._cluster.node_ids():
            reason = f"node {request.broker_id} is running, and would register again at once; stop it instead"
            refused = _Refused(ErrorCode.INVALID_REQUEST, reason)
        if refused is None:
            refused = _Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, self._no_node(request.broker_id))
        return UnregisterBrokerResponse(error_code=refused.code, error_message=refused.reason)


def _features_problem(updates: Sequence[FeatureUpdateKey]) -> _Refused | None:
    if len(updates) > FEATURES_MAX:
        reason = f"{len(updates)} features in one request, at most {FEATURES_MAX} are taken"
        return _Refused(ErrorCode.INVALID_REQUEST, reason)
    twice = [name for name, count in Counter(update.feature for update in updates).items() if count > 1]
    if twice:
        return _Refused(ErrorCode.INVALID_REQUEST, f"feature {twice[0][:80]!r} is named more than once")
    return None


def _level_problem(update: FeatureUpdateKey, version: int) -> _Refused | None:
    """There is one level of each feature, the highest, and it is switched on for good."""
    name, wanted = update.feature, update.max_version_level
    level = FEATURES.get(name)

    def refused(reason: str) -> _Refused:
        text = f"level {wanted} of feature {name[:80]!r}: {reason}"
        return _Refused(ErrorCode.INVALID_UPDATE_VERSION, text)

    if version >= UPGRADE_TYPE_FROM and update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return refused(f"type of change {update.upgrade_type} does not exist")
    if level is None:
        return refused("there is no such feature")
    if not 0 <= wanted <= level:
        return refused(f"the levels are 0 to {level}")
    if wanted < level:
        return refused(f"it is at level {level} and cannot be taken back")
    return None
