"""Which handler serves which Kafka API: the table that the door dispatches by."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from penstock.broker.parts import Parts
from penstock.codec.wire import Request
from penstock.codec.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.codec.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.codec.wire.messages.add_raft_voter import AddRaftVoterRequest
from penstock.codec.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from penstock.codec.wire.messages.alter_configs import AlterConfigsRequest
from penstock.codec.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from penstock.codec.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from penstock.codec.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from penstock.codec.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from penstock.codec.wire.messages.api_versions import ApiVersionsRequest
from penstock.codec.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.codec.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.codec.wire.messages.create_acls import CreateAclsRequest
from penstock.codec.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from penstock.codec.wire.messages.create_partitions import CreatePartitionsRequest
from penstock.codec.wire.messages.create_topics import CreateTopicsRequest
from penstock.codec.wire.messages.delete_acls import DeleteAclsRequest
from penstock.codec.wire.messages.delete_groups import DeleteGroupsRequest
from penstock.codec.wire.messages.delete_records import DeleteRecordsRequest
from penstock.codec.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from penstock.codec.wire.messages.delete_share_group_state import DeleteShareGroupStateRequest
from penstock.codec.wire.messages.delete_topics import DeleteTopicsRequest
from penstock.codec.wire.messages.describe_acls import DescribeAclsRequest
from penstock.codec.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from penstock.codec.wire.messages.describe_cluster import DescribeClusterRequest
from penstock.codec.wire.messages.describe_configs import DescribeConfigsRequest
from penstock.codec.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from penstock.codec.wire.messages.describe_groups import DescribeGroupsRequest
from penstock.codec.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from penstock.codec.wire.messages.describe_producers import DescribeProducersRequest
from penstock.codec.wire.messages.describe_quorum import DescribeQuorumRequest
from penstock.codec.wire.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from penstock.codec.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.codec.wire.messages.describe_transactions import DescribeTransactionsRequest
from penstock.codec.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from penstock.codec.wire.messages.elect_leaders import ElectLeadersRequest
from penstock.codec.wire.messages.end_txn import EndTxnRequest
from penstock.codec.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from penstock.codec.wire.messages.fetch import FetchRequest
from penstock.codec.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.codec.wire.messages.heartbeat import HeartbeatRequest
from penstock.codec.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from penstock.codec.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.wire.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from penstock.codec.wire.messages.join_group import JoinGroupRequest
from penstock.codec.wire.messages.leave_group import LeaveGroupRequest
from penstock.codec.wire.messages.list_config_resources import ListConfigResourcesRequest
from penstock.codec.wire.messages.list_groups import ListGroupsRequest
from penstock.codec.wire.messages.list_offsets import ListOffsetsRequest
from penstock.codec.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from penstock.codec.wire.messages.list_transactions import ListTransactionsRequest
from penstock.codec.wire.messages.metadata import MetadataRequest
from penstock.codec.wire.messages.offset_commit import OffsetCommitRequest
from penstock.codec.wire.messages.offset_delete import OffsetDeleteRequest
from penstock.codec.wire.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from penstock.codec.wire.messages.produce import ProduceRequest
from penstock.codec.wire.messages.read_share_group_state import ReadShareGroupStateRequest
from penstock.codec.wire.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from penstock.codec.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from penstock.codec.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from penstock.codec.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.codec.wire.messages.sasl_handshake import SaslHandshakeRequest
from penstock.codec.wire.messages.share_acknowledge import ShareAcknowledgeRequest
from penstock.codec.wire.messages.share_fetch import ShareFetchRequest
from penstock.codec.wire.messages.share_group_describe import ShareGroupDescribeRequest
from penstock.codec.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from penstock.codec.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from penstock.codec.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from penstock.codec.wire.messages.sync_group import SyncGroupRequest
from penstock.codec.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from penstock.codec.wire.messages.unregister_broker import UnregisterBrokerRequest
from penstock.codec.wire.messages.update_features import UpdateFeaturesRequest
from penstock.codec.wire.messages.write_share_group_state import WriteShareGroupStateRequest
from penstock.codec.wire.messages.write_txn_markers import WriteTxnMarkersRequest
from penstock.domain.config_change import ConfigEntry
from penstock.domain.fetch_session import FetchSessions
from penstock.gateways.kafka_acls import AclsHandler
from penstock.gateways.kafka_cluster_admin import ClusterAdminHandler
from penstock.gateways.kafka_config_resources import ConfigResourcesHandler
from penstock.gateways.kafka_configs import ConfigsHandler
from penstock.gateways.kafka_context import Handler
from penstock.gateways.kafka_coordinators import CoordinatorsHandler
from penstock.gateways.kafka_delegation_tokens import DelegationTokensHandler
from penstock.gateways.kafka_fetch import FetchHandler
from penstock.gateways.kafka_group_admin import GroupAdminHandler
from penstock.gateways.kafka_group_offsets import GroupOffsetsHandler
from penstock.gateways.kafka_groups import GroupsHandler
from penstock.gateways.kafka_metadata import MetadataHandler
from penstock.gateways.kafka_offsets import OffsetsHandler
from penstock.gateways.kafka_produce import ProduceHandler
from penstock.gateways.kafka_producers import ProducersHandler
from penstock.gateways.kafka_quotas import QuotasHandler
from penstock.gateways.kafka_sasl import SaslHandler
from penstock.gateways.kafka_share_desk import ShareDesk
from penstock.gateways.kafka_share_fetch import ShareFetchHandler
from penstock.gateways.kafka_share_groups import ShareGroupsHandler
from penstock.gateways.kafka_share_offsets import ShareOffsetsHandler
from penstock.gateways.kafka_share_state import ShareStateHandler
from penstock.gateways.kafka_streams_groups import StreamsGroupsHandler
from penstock.gateways.kafka_topics import TopicsHandler
from penstock.gateways.kafka_transactions import TransactionsHandler
from penstock.gateways.kafka_transactions_admin import TransactionsAdminHandler
from penstock.gateways.kafka_transactions_offsets import TransactionOffsetsHandler
from penstock.gateways.kafka_users import UsersHandler
from penstock.gateways.kafka_versions import ApiVersionsHandler
from penstock.gateways.node_address import NodeAddress

HandlerTable = dict[type[Request], Callable[[Any, Any], Any]]


def make_handlers(
    parts: Parts,
    *,
    address: Callable[[], NodeAddress],
    node_entries: Callable[[], Sequence[ConfigEntry]],
    node_settings: Mapping[str, str],
    sasl: SaslHandler,
) -> dict[int, Handler]:
    broker, authorizer, transactions = parts.broker, parts.authorizer, parts.transactions
    node_id = address().node_id
    sessions = FetchSessions(lambda: secrets.randbits(31))
    topics = TopicsHandler(broker, parts.topics, authorizer, node_id=node_id)
    configs = ConfigsHandler(
        broker, parts.topics, authorizer, node_id=node_id, node_entries=node_entries, node_settings=node_settings
    )
    offsets = OffsetsHandler(broker, authorizer, parts.readers)
    metadata = MetadataHandler(broker, authorizer, address)
    table: HandlerTable = {
        ProduceRequest: ProduceHandler(broker, authorizer, transactions, parts.delays).produce,
        FetchRequest: FetchHandler(broker, authorizer, parts.clock, sessions, parts.readers).fetch,
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
        InitProducerIdRequest: ProducersHandler(parts.producer_ids, transactions, authorizer).init_producer_id,
        FindCoordinatorRequest: CoordinatorsHandler(parts.groups, transactions, authorizer, address).find_coordinator,
        **_cluster_handlers(parts, address),
        **_group_handlers(parts),
        **_share_handlers(parts),
        **_transaction_handlers(parts),
        **_access_handlers(parts, sasl),
    }
    versions = ApiVersionsHandler([*(request.api_key for request in table), ApiVersionsRequest.api_key])
    table[ApiVersionsRequest] = versions.api_versions
    return {request.api_key: cast(Handler, handler) for request, handler in table.items()}


def _cluster_handlers(parts: Parts, address: Callable[[], NodeAddress]) -> HandlerTable:
    admin = ClusterAdminHandler(parts.broker, parts.topics, parts.authorizer, parts.clock, address)
    resources = ConfigResourcesHandler(parts.topics, parts.authorizer, node_id=address().node_id)
    quotas = QuotasHandler(parts.authorizer)
    return {
        ElectLeadersRequest: admin.elect_leaders,
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


def _share_handlers(parts: Parts) -> HandlerTable:
    members = ShareGroupsHandler(parts.broker, parts.shares, parts.authorizer)
    messages = ShareFetchHandler(ShareDesk(parts.broker, parts.shares, parts.authorizer), parts.clock)
    offsets = ShareOffsetsHandler(parts.broker, parts.shares, parts.authorizer)
    state = ShareStateHandler(parts.authorizer)
    return {
        ShareGroupHeartbeatRequest: members.share_group_heartbeat,
        ShareGroupDescribeRequest: members.share_group_describe,
        ShareFetchRequest: messages.share_fetch,
        ShareAcknowledgeRequest: messages.share_acknowledge,
        DescribeShareGroupOffsetsRequest: offsets.describe_share_group_offsets,
        AlterShareGroupOffsetsRequest: offsets.alter_share_group_offsets,
        DeleteShareGroupOffsetsRequest: offsets.delete_share_group_offsets,
        InitializeShareGroupStateRequest: state.initialize,
        ReadShareGroupStateRequest: state.read,
        WriteShareGroupStateRequest: state.write,
        DeleteShareGroupStateRequest: state.delete,
        ReadShareGroupStateSummaryRequest: state.summarize,
    }


def _group_handlers(parts: Parts) -> HandlerTable:
    members = GroupsHandler(parts.groups, parts.authorizer)
    offsets = GroupOffsetsHandler(parts.broker, parts.groups, parts.authorizer)
    admin = GroupAdminHandler(parts.broker, parts.groups, parts.shares, parts.authorizer)
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


def _transaction_handlers(parts: Parts) -> HandlerTable:
    producers = TransactionsHandler(parts.broker, parts.transactions, parts.groups, parts.authorizer)
    offsets = TransactionOffsetsHandler(parts.broker, parts.transactions, parts.groups, parts.authorizer)
    admin = TransactionsAdminHandler(parts.broker, parts.transactions, parts.markers, parts.authorizer)
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


def _access_handlers(parts: Parts, sasl: SaslHandler) -> HandlerTable:
    acls = AclsHandler(parts.access, parts.authorizer)
    users = UsersHandler(parts.access, parts.authorizer, sasl.is_configured)
    tokens = DelegationTokensHandler(parts.authorizer)
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
