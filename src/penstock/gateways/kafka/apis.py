"""Which handler serves which Kafka API: the table that the door dispatches by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from penstock.broker.parts import Parts
from penstock.codec.kafka import Request
from penstock.codec.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.codec.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.codec.kafka.messages.add_raft_voter import AddRaftVoterRequest
from penstock.codec.kafka.messages.alter_client_quotas import AlterClientQuotasRequest
from penstock.codec.kafka.messages.alter_configs import AlterConfigsRequest
from penstock.codec.kafka.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from penstock.codec.kafka.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from penstock.codec.kafka.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from penstock.codec.kafka.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest
from penstock.codec.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.codec.kafka.messages.create_acls import CreateAclsRequest
from penstock.codec.kafka.messages.create_delegation_token import CreateDelegationTokenRequest
from penstock.codec.kafka.messages.create_partitions import CreatePartitionsRequest
from penstock.codec.kafka.messages.create_topics import CreateTopicsRequest
from penstock.codec.kafka.messages.delete_acls import DeleteAclsRequest
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest
from penstock.codec.kafka.messages.delete_records import DeleteRecordsRequest
from penstock.codec.kafka.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from penstock.codec.kafka.messages.delete_share_group_state import DeleteShareGroupStateRequest
from penstock.codec.kafka.messages.delete_topics import DeleteTopicsRequest
from penstock.codec.kafka.messages.describe_acls import DescribeAclsRequest
from penstock.codec.kafka.messages.describe_client_quotas import DescribeClientQuotasRequest
from penstock.codec.kafka.messages.describe_cluster import DescribeClusterRequest
from penstock.codec.kafka.messages.describe_configs import DescribeConfigsRequest
from penstock.codec.kafka.messages.describe_delegation_token import DescribeDelegationTokenRequest
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.kafka.messages.describe_log_dirs import DescribeLogDirsRequest
from penstock.codec.kafka.messages.describe_producers import DescribeProducersRequest
from penstock.codec.kafka.messages.describe_quorum import DescribeQuorumRequest
from penstock.codec.kafka.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from penstock.codec.kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.codec.kafka.messages.describe_transactions import DescribeTransactionsRequest
from penstock.codec.kafka.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from penstock.codec.kafka.messages.elect_leaders import ElectLeadersRequest
from penstock.codec.kafka.messages.end_txn import EndTxnRequest
from penstock.codec.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from penstock.codec.kafka.messages.fetch import FetchRequest
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest
from penstock.codec.kafka.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from penstock.codec.kafka.messages.join_group import JoinGroupRequest
from penstock.codec.kafka.messages.leave_group import LeaveGroupRequest
from penstock.codec.kafka.messages.list_config_resources import ListConfigResourcesRequest
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest
from penstock.codec.kafka.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from penstock.codec.kafka.messages.list_transactions import ListTransactionsRequest
from penstock.codec.kafka.messages.metadata import MetadataRequest
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from penstock.codec.kafka.messages.offset_delete import OffsetDeleteRequest
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.kafka.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from penstock.codec.kafka.messages.read_share_group_state import ReadShareGroupStateRequest
from penstock.codec.kafka.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from penstock.codec.kafka.messages.remove_raft_voter import RemoveRaftVoterRequest
from penstock.codec.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from penstock.codec.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest
from penstock.codec.kafka.messages.share_acknowledge import ShareAcknowledgeRequest
from penstock.codec.kafka.messages.share_fetch import ShareFetchRequest
from penstock.codec.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from penstock.codec.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from penstock.codec.kafka.messages.streams_group_describe import StreamsGroupDescribeRequest
from penstock.codec.kafka.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from penstock.codec.kafka.messages.sync_group import SyncGroupRequest
from penstock.codec.kafka.messages.txn_offset_commit import TxnOffsetCommitRequest
from penstock.codec.kafka.messages.unregister_broker import UnregisterBrokerRequest
from penstock.codec.kafka.messages.update_features import UpdateFeaturesRequest
from penstock.codec.kafka.messages.write_share_group_state import WriteShareGroupStateRequest
from penstock.codec.kafka.messages.write_txn_markers import WriteTxnMarkersRequest
from penstock.domain.config.change import ConfigEntry
from penstock.domain.log.fetch_session import FetchSessions
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.cluster_view import ClusterView
from penstock.gateways.kafka.context import Handler
from penstock.gateways.kafka.handlers.acls import AclsHandler
from penstock.gateways.kafka.handlers.cluster_admin import ClusterAdminHandler
from penstock.gateways.kafka.handlers.config_resources import ConfigResourcesHandler
from penstock.gateways.kafka.handlers.configs import ConfigsHandler
from penstock.gateways.kafka.handlers.coordinators import CoordinatorsHandler
from penstock.gateways.kafka.handlers.delegation_tokens import DelegationTokensHandler
from penstock.gateways.kafka.handlers.elections import ElectionsHandler
from penstock.gateways.kafka.handlers.fetch import FetchHandler
from penstock.gateways.kafka.handlers.group.admin import GroupAdminHandler
from penstock.gateways.kafka.handlers.group.membership import GroupsHandler
from penstock.gateways.kafka.handlers.group.offsets import GroupOffsetsHandler
from penstock.gateways.kafka.handlers.group.streams import StreamsGroupsHandler
from penstock.gateways.kafka.handlers.metadata import MetadataHandler
from penstock.gateways.kafka.handlers.offsets import OffsetsHandler
from penstock.gateways.kafka.handlers.produce import ProduceHandler
from penstock.gateways.kafka.handlers.producers import ProducersHandler
from penstock.gateways.kafka.handlers.quotas import QuotasHandler
from penstock.gateways.kafka.handlers.share.desk import ShareDesk
from penstock.gateways.kafka.handlers.share.fetch import ShareFetchHandler
from penstock.gateways.kafka.handlers.share.membership import ShareGroupsHandler
from penstock.gateways.kafka.handlers.share.offsets import ShareOffsetsHandler
from penstock.gateways.kafka.handlers.share.state import ShareStateHandler
from penstock.gateways.kafka.handlers.topics import TopicsHandler
from penstock.gateways.kafka.handlers.transaction.admin import TransactionsAdminHandler
from penstock.gateways.kafka.handlers.transaction.offsets import TransactionOffsetsHandler
from penstock.gateways.kafka.handlers.transaction.requests import TransactionsHandler
from penstock.gateways.kafka.handlers.users import UsersHandler
from penstock.gateways.kafka.leader_hints import LeaderHints, hinted
from penstock.gateways.kafka.sasl import SaslHandler
from penstock.gateways.kafka.versions import ApiVersionsHandler

HandlerTable = dict[type[Request], Callable[[Any, Any], Any]]


def make_handlers(
    parts: Parts,
    admission: Admission,
    *,
    cluster: ClusterView,
    hints: LeaderHints,
    node_entries: Callable[[], Sequence[ConfigEntry]],
    node_settings: Mapping[str, str],
    sasl: SaslHandler,
) -> dict[int, Handler]:
    broker, transactions = parts.broker, parts.transactions
    node_id = cluster.node_id
    sessions = FetchSessions(lambda: parts.site.chance.below(1 << 31))
    topics = TopicsHandler(broker, parts.topics, admission)
    configs = ConfigsHandler(
        broker, parts.topics, admission, node_id=node_id, node_entries=node_entries, node_settings=node_settings
    )
    offsets = OffsetsHandler(broker, admission, parts.site.readers)
    produce = ProduceHandler(broker, admission, transactions, parts.delays)
    fetch = FetchHandler(broker, admission, parts.site.clock, sessions, parts.site.readers)
    metadata = MetadataHandler(broker, admission, cluster)
    coordinators = CoordinatorsHandler(broker, parts.groups, transactions, admission, cluster)
    table: HandlerTable = {
        ProduceRequest: hinted(hints, produce.produce),
        FetchRequest: hinted(hints, fetch.fetch),
        ListOffsetsRequest: offsets.list_offsets,
        OffsetForLeaderEpochRequest: offsets.offset_for_leader_epoch,
        MetadataRequest: metadata.metadata,
        DescribeClusterRequest: metadata.describe_cluster,
        DescribeTopicPartitionsRequest: metadata.describe_topic_partitions,
        CreateTopicsRequest: topics.create_topics,
        DeleteTopicsRequest: topics.delete_topics,
        CreatePartitionsRequest: topics.create_partitions,
        DeleteRecordsRequest: topics.delete_records,
        DescribeConfigsRequest: configs.describe_configs,
        AlterConfigsRequest: configs.alter_configs,
        IncrementalAlterConfigsRequest: configs.incremental_alter_configs,
        DescribeLogDirsRequest: configs.describe_log_dirs,
        InitProducerIdRequest: ProducersHandler(parts.producer_ids, transactions, admission).init_producer_id,
        FindCoordinatorRequest: coordinators.find_coordinator,
        **_cluster_handlers(parts, admission, cluster),
        **_group_handlers(parts, admission),
        **_share_handlers(parts, admission, hints),
        **_transaction_handlers(parts, admission),
        **_access_handlers(parts, admission, sasl),
    }
    versions = ApiVersionsHandler([*(request.api_key for request in table), ApiVersionsRequest.api_key])
    table[ApiVersionsRequest] = versions.api_versions
    return {request.api_key: cast(Handler, handler) for request, handler in table.items()}


def _cluster_handlers(parts: Parts, admission: Admission, cluster: ClusterView) -> HandlerTable:
    admin = ClusterAdminHandler(parts.broker, parts.topics, admission, parts.site.clock, cluster)
    elections = ElectionsHandler(parts.broker, parts.elections, admission)
    resources = ConfigResourcesHandler(parts.topics, admission, node_ids=cluster.node_ids)
    quotas = QuotasHandler(admission)
    return {
        ElectLeadersRequest: elections.elect_leaders,
        ListPartitionReassignmentsRequest: admin.list_partition_reassignments,
        AlterPartitionReassignmentsRequest: admin.alter_partition_reassignments,
        AlterReplicaLogDirsRequest: admin.alter_replica_log_dirs,
        DescribeQuorumRequest: admin.describe_quorum,
        UpdateFeaturesRequest: admin.update_features,
        UnregisterBrokerRequest: admin.unregister_broker,
        AddRaftVoterRequest: admin.add_raft_voter,
        RemoveRaftVoterRequest: admin.remove_raft_voter,
        ListConfigResourcesRequest: resources.list_config_resources,
        DescribeClientQuotasRequest: quotas.describe_client_quotas,
        AlterClientQuotasRequest: quotas.alter_client_quotas,
    }


def _share_handlers(parts: Parts, admission: Admission, hints: LeaderHints) -> HandlerTable:
    members = ShareGroupsHandler(parts.broker, parts.shares, admission)
    messages = ShareFetchHandler(ShareDesk(parts.broker, parts.shares, admission), parts.site.clock)
    offsets = ShareOffsetsHandler(parts.broker, parts.shares, admission)
    state = ShareStateHandler(admission)
    return {
        ShareGroupHeartbeatRequest: members.share_group_heartbeat,
        ShareGroupDescribeRequest: members.share_group_describe,
        ShareFetchRequest: hinted(hints, messages.share_fetch),
        ShareAcknowledgeRequest: hinted(hints, messages.share_acknowledge),
        DescribeShareGroupOffsetsRequest: offsets.describe_share_group_offsets,
        AlterShareGroupOffsetsRequest: offsets.alter_share_group_offsets,
        DeleteShareGroupOffsetsRequest: offsets.delete_share_group_offsets,
        InitializeShareGroupStateRequest: state.initialize,
        ReadShareGroupStateRequest: state.read,
        WriteShareGroupStateRequest: state.write,
        DeleteShareGroupStateRequest: state.delete,
        ReadShareGroupStateSummaryRequest: state.summarize,
    }


def _group_handlers(parts: Parts, admission: Admission) -> HandlerTable:
    members = GroupsHandler(parts.groups, admission, parts.site.chance)
    offsets = GroupOffsetsHandler(parts.broker, parts.groups, admission)
    admin = GroupAdminHandler(parts.broker, parts.groups, parts.shares, admission)
    streams = StreamsGroupsHandler()
    return {
        JoinGroupRequest: members.join_group,
        SyncGroupRequest: members.sync_group,
        HeartbeatRequest: members.heartbeat,
        LeaveGroupRequest: members.leave_group,
        ConsumerGroupHeartbeatRequest: members.consumer_group_heartbeat,
        OffsetCommitRequest: offsets.offset_commit,
        OffsetFetchRequest: offsets.offset_fetch,
        OffsetDeleteRequest: offsets.offset_delete,
        DescribeGroupsRequest: admin.describe_groups,
        ConsumerGroupDescribeRequest: admin.consumer_group_describe,
        ListGroupsRequest: admin.list_groups,
        DeleteGroupsRequest: admin.delete_groups,
        StreamsGroupHeartbeatRequest: streams.streams_group_heartbeat,
        StreamsGroupDescribeRequest: streams.streams_group_describe,
    }


def _transaction_handlers(parts: Parts, admission: Admission) -> HandlerTable:
    producers = TransactionsHandler(parts.broker, parts.transactions, parts.groups, admission)
    offsets = TransactionOffsetsHandler(parts.broker, parts.transactions, parts.groups, admission)
    admin = TransactionsAdminHandler(parts.broker, parts.transactions, parts.markers, admission)
    return {
        AddPartitionsToTxnRequest: producers.add_partitions_to_txn,
        AddOffsetsToTxnRequest: producers.add_offsets_to_txn,
        EndTxnRequest: producers.end_txn,
        TxnOffsetCommitRequest: offsets.txn_offset_commit,
        WriteTxnMarkersRequest: admin.write_txn_markers,
        DescribeProducersRequest: admin.describe_producers,
        DescribeTransactionsRequest: admin.describe_transactions,
        ListTransactionsRequest: admin.list_transactions,
    }


def _access_handlers(parts: Parts, admission: Admission, sasl: SaslHandler) -> HandlerTable:
    acls = AclsHandler(parts.access, admission)
    users = UsersHandler(parts.access, admission, sasl.is_configured)
    tokens = DelegationTokensHandler(admission)
    return {
        SaslHandshakeRequest: sasl.sasl_handshake,
        SaslAuthenticateRequest: sasl.sasl_authenticate,
        DescribeAclsRequest: acls.describe_acls,
        CreateAclsRequest: acls.create_acls,
        DeleteAclsRequest: acls.delete_acls,
        DescribeUserScramCredentialsRequest: users.describe_user_scram_credentials,
        AlterUserScramCredentialsRequest: users.alter_user_scram_credentials,
        CreateDelegationTokenRequest: tokens.create_delegation_token,
        RenewDelegationTokenRequest: tokens.renew_delegation_token,
        ExpireDelegationTokenRequest: tokens.expire_delegation_token,
        DescribeDelegationTokenRequest: tokens.describe_delegation_token,
    }
