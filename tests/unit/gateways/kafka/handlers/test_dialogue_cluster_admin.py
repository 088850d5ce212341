"""ElectLeaders, reassignments, log directories, quorum, voters, features, ListConfigResources: one node's answers.

What Apache Kafka answers to the same is compared in tests/conformance/differential/dialogue_one_node.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import add_raft_voter as av
from penstock.codec.kafka.messages import alter_partition_reassignments as ar
from penstock.codec.kafka.messages import alter_replica_log_dirs as ad
from penstock.codec.kafka.messages import describe_quorum as dq
from penstock.codec.kafka.messages import elect_leaders as el
from penstock.codec.kafka.messages import incremental_alter_configs as ic
from penstock.codec.kafka.messages import list_config_resources as lc
from penstock.codec.kafka.messages import list_partition_reassignments as lr
from penstock.codec.kafka.messages import update_features as uf
from penstock.codec.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.codec.kafka.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.codec.kafka.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.codec.kafka.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.domain.security.access import Operation
from penstock.gateways.kafka.handlers.cluster_admin import PARTITIONS_MAX
from support.authorizers import AllButOne
from support.door.conversation import Conversation, TalkingNode, running_node

TOPIC, BROKER, GROUP, CLIENT_METRICS = 2, 4, 32, 16


async def elect(talk: Conversation, kind: int, topic: str, indexes: Sequence[int]) -> el.ElectLeadersResponse:
    request = el.ElectLeadersRequest(kind, (el.TopicPartitions(topic, indexes),))
    return await talk.ask(request, el.ElectLeadersResponse)


async def test_the_only_replica_leads_and_needs_no_election(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", 2)
    for kind in (0, 1):
        (result,) = (await elect(talk, kind, "orders", (0, 1, 7))).replica_election_results
        codes = [each.error_code for each in result.partition_result]
        assert codes[:2] == [ErrorCode.ELECTION_NOT_NEEDED] * 2
        assert codes[2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    whole = await talk.ask(el.ElectLeadersRequest(0, None), el.ElectLeadersResponse)
    assert (whole.error_code, list(whole.replica_election_results)) == (ErrorCode.NONE, [])


async def test_partitions_stay_where_they_are(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    outcomes: dict[object, int] = {}
    for replicas in ((1,), None, (), (2,), (1, 2), (1, 1)):
        partition = ar.ReassignablePartition(0, replicas)
        request = ar.AlterPartitionReassignmentsRequest(topics=(ar.ReassignableTopic("orders", (partition,)),))
        reply = await talk.ask(request, ar.AlterPartitionReassignmentsResponse)
        outcomes[replicas] = reply.responses[0].partitions[0].error_code
    assert outcomes.pop((1,)) == ErrorCode.NONE
    assert outcomes.pop(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert set(outcomes.values()) == {ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    reply = await talk.ask(lr.ListPartitionReassignmentsRequest(), lr.ListPartitionReassignmentsResponse)
    assert (reply.error_code, list(reply.topics)) == (ErrorCode.NONE, [])


async def test_replicas_lie_in_the_one_directory(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    found = await talk.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)

    async def move(path: str, topic: str) -> int:
        asked = ad.AlterReplicaLogDir(path, (ad.AlterReplicaLogDirTopic(topic, (0,)),))
        reply = await talk.ask(ad.AlterReplicaLogDirsRequest((asked,)), ad.AlterReplicaLogDirsResponse)
        return reply.results[0].partitions[0].error_code

    here = found.results[0].log_dir
    assert await move(here, "orders") == ErrorCode.NONE
    assert await move(here, "absent") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await move("/elsewhere", "orders") == ErrorCode.LOG_DIR_NOT_FOUND


async def test_the_node_keeps_the_metadata_alone(node: TalkingNode, talk: Conversation) -> None:
    asked = dq.AskedTopic("__cluster_metadata", (dq.AskedPartition(0),))

    async def described() -> dq.PartitionData:
        reply = await talk.ask(dq.DescribeQuorumRequest((asked,)), dq.DescribeQuorumResponse)
        assert [each.node_id for each in reply.nodes] == [1]
        return reply.topics[0].partitions[0]

    before = await described()
    assert (before.error_code, before.leader_id) == (ErrorCode.NONE, 1)
    assert [each.replica_id for each in before.current_voters] == [1]
    await node.create_topic("orders")
    after = await described()
    assert after.high_watermark > before.high_watermark
    assert after.current_voters[0].log_end_offset == after.high_watermark


async def test_the_voters_stay_as_they_are(talk: Conversation) -> None:
    cluster = (await talk.ask(DescribeClusterRequest(), DescribeClusterResponse)).cluster_id
    door = (av.Listener("CONTROLLER", "127.0.0.1", 9093),)

    async def codes(cluster_id: str | None, voter_id: int, listeners: Sequence[av.Listener]) -> list[int]:
        add = av.AddRaftVoterRequest(cluster_id, 1000, voter_id, bytes(16), listeners)
        added = await talk.ask(add, av.AddRaftVoterResponse)
        removed = await talk.ask(RemoveRaftVoterRequest(cluster_id, voter_id), RemoveRaftVoterResponse)
        assert added.error_message
        assert removed.error_message
        return [added.error_code, removed.error_code]

    for known in (None, cluster):
        assert await codes(known, 2, door) == [ErrorCode.UNSUPPORTED_VERSION] * 2
    assert await codes("another", 2, door) == [ErrorCode.INCONSISTENT_CLUSTER_ID] * 2
    assert await codes(None, -1, door) == [ErrorCode.INVALID_REQUEST] * 2
    assert await codes(None, 2, ()) == [ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION]


@pytest.mark.parametrize(
    ("name", "level", "kind", "expected"),
    [
        ("group.version", 1, 1, ErrorCode.NONE),
        ("transaction.version", 2, 1, ErrorCode.NONE),
        ("group.version", 2, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("group.version", 0, 2, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
async def test_features_are_at_their_level(
    talk: Conversation, name: str, level: int, kind: int, expected: ErrorCode
) -> None:
    update = uf.FeatureUpdateKey(name, level, upgrade_type=kind)
    reply = await talk.ask(uf.UpdateFeaturesRequest(feature_updates=(update,)), uf.UpdateFeaturesResponse)
    assert reply.error_code == expected
    assert bool(reply.error_message) == (expected is not ErrorCode.NONE)


async def test_a_running_node_is_not_unregistered_and_others_do_not_exist(talk: Conversation) -> None:
    for node_id, expected in ((1, ErrorCode.INVALID_REQUEST), (2, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        reply = await talk.ask(UnregisterBrokerRequest(node_id), UnregisterBrokerResponse)
        assert reply.error_code == expected
        assert reply.error_message


async def test_what_has_settings_is_listed(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    change = ic.AlterableConfig("share.record.lock.duration.ms", 0, "5000")
    resource = ic.AlterConfigsResource(GROUP, "workers", (change,))
    await talk.ask(ic.IncrementalAlterConfigsRequest((resource,)), ic.IncrementalAlterConfigsResponse)

    async def listed(*kinds: int, version: int = 1) -> list[tuple[int, str]]:
        request = lc.ListConfigResourcesRequest(kinds)
        reply = await talk.ask(request, lc.ListConfigResourcesResponse, version)
        assert reply.error_code == ErrorCode.NONE
        return [(each.resource_type, each.resource_name) for each in reply.config_resources]

    assert await listed(GROUP) == [(GROUP, "workers")]
    assert await listed(BROKER) == [(BROKER, "1")]
    assert (TOPIC, "orders") in await listed(TOPIC)
    assert {(GROUP, "workers"), (BROKER, "1"), (TOPIC, "orders")} <= set(await listed())
    assert await listed(version=0) == []
    refused = await talk.ask(lc.ListConfigResourcesRequest((3,)), lc.ListConfigResourcesResponse)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_more_partitions_than_a_request_may_name_are_refused(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    many = range(PARTITIONS_MAX + 1)
    assert (await elect(talk, 0, "orders", tuple(many))).error_code == ErrorCode.INVALID_REQUEST
    partitions = tuple(ar.ReassignablePartition(index, (1,)) for index in many)
    request = ar.AlterPartitionReassignmentsRequest(topics=(ar.ReassignableTopic("orders", partitions),))
    reply = await talk.ask(request, ar.AlterPartitionReassignmentsResponse)
    assert (reply.error_code, list(reply.responses)) == (ErrorCode.INVALID_REQUEST, [])
    assert str(PARTITIONS_MAX) in (reply.error_message or "")


TOUCHED = (el.TopicPartitions("orders", (0,)),)
PLACED = (ar.ReassignableTopic("orders", (ar.ReassignablePartition(0, (1,)),)),)
MOVED = (ad.AlterReplicaLogDir("/x", (ad.AlterReplicaLogDirTopic("orders", (0,)),)),)
GUARDED: list[tuple[Operation, wire.Request]] = [
    (Operation.ALTER, el.ElectLeadersRequest(0, TOUCHED)),
    (Operation.ALTER, ar.AlterPartitionReassignmentsRequest(topics=PLACED)),
    (Operation.DESCRIBE, lr.ListPartitionReassignmentsRequest()),
    (Operation.ALTER, ad.AlterReplicaLogDirsRequest(MOVED)),
    (Operation.DESCRIBE, dq.DescribeQuorumRequest()),
    (Operation.ALTER, uf.UpdateFeaturesRequest()),
    (Operation.ALTER, UnregisterBrokerRequest(2)),
    (Operation.DESCRIBE_CONFIGS, lc.ListConfigResourcesRequest()),
    (Operation.ALTER, av.AddRaftVoterRequest()),
    (Operation.ALTER, RemoveRaftVoterRequest()),
]


@pytest.mark.parametrize(("operation", "request_"), GUARDED, ids=lambda each: type(each).__name__)
async def test_the_cluster_is_guarded(operation: Operation, request_: wire.Request) -> None:
    api = wire.APIS[request_.api_key]
    async with running_node(authorizer=AllButOne(operation)) as node:
        talk = await node.connect()
        for version in range(api.version_min, api.version_max + 1):
            reply = await talk.ask(request_, api.response, version)
            assert "error_code=<ErrorCode.CLUSTER" in repr(reply) or "error_code=31" in repr(reply), reply
