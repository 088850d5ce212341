"""What a cluster of one node answers to tools made for many: elections, reassignments, quorum, features."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka.messages import alter_partition_reassignments as ar
from penstock.codec.kafka.messages import alter_replica_log_dirs as ad
from penstock.codec.kafka.messages import describe_client_quotas as cq
from penstock.codec.kafka.messages import describe_quorum as dq
from penstock.codec.kafka.messages import elect_leaders as el
from penstock.codec.kafka.messages import list_config_resources as lc
from penstock.codec.kafka.messages import list_partition_reassignments as lr
from penstock.codec.kafka.messages import update_features as uf
from penstock.codec.kafka.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.codec.kafka.messages.unregister_broker import UnregisterBrokerRequest

BROKER, CLIENT_METRICS, GROUP = 4, 16, 32
UPGRADE, SAFE_DOWNGRADE = 1, 2


@dialogue(el.ElectLeadersRequest)
def elect_leaders(talk: Talk) -> None:
    topic, absent = talk.topic("led", 2), talk.name("absent")

    def elect(kind: int, *wanted: tuple[str, Sequence[int]]) -> el.ElectLeadersRequest:
        return el.ElectLeadersRequest(kind, tuple(el.TopicPartitions(name, parts) for name, parts in wanted))

    version = talk.version(el.ElectLeadersRequest)
    talk.ask("preferred", elect(0, (topic, (0, 1))))
    talk.ask("unknown", elect(0, (topic, (0, 7)), (absent, (0,))))
    talk.ask("nothing", elect(0))
    if version >= 1:
        talk.ask("unclean", elect(1, (topic, (0,))))
        talk.ask("no such type", elect(9, (topic, (0,))))

    def told(reply: el.ElectLeadersResponse) -> el.ElectLeadersResponse:
        results = [each for each in reply.replica_election_results if each.partition_result]
        return msgspec.structs.replace(reply, replica_election_results=results)

    talk.ask("all", el.ElectLeadersRequest(0, None), show=told)


@dialogue(ar.AlterPartitionReassignmentsRequest)
def partition_reassignments(talk: Talk) -> None:
    topic = talk.topic("placed", 2)

    def place(name: str, index: int, replicas: Sequence[int] | None, *, may: bool = True) -> object:
        partition = ar.ReassignablePartition(index, replicas)
        return ar.AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=may, topics=(ar.ReassignableTopic(name, (partition,)),)
        )

    for step, replicas in (
        ("where it is", (1,)),
        ("cancelled", None),
        ("nowhere", ()),
        ("elsewhere", (9,)),
        ("both", (1, 9)),
        ("twice", (1, 1)),
        ("negative", (-1,)),
    ):
        talk.ask(step, place(topic, 0, replicas))  # type: ignore[arg-type]
    talk.ask("no such partition", place(topic, 7, (1,)))  # type: ignore[arg-type]
    talk.ask("no such topic", place(talk.name("absent"), 0, (1,)))  # type: ignore[arg-type]
    if talk.version(ar.AlterPartitionReassignmentsRequest) >= 1:
        talk.ask("as many as before", place(topic, 0, (1,), may=False))  # type: ignore[arg-type]
    talk.ask("nothing", ar.AlterPartitionReassignmentsRequest())
    talk.ask("all", lr.ListPartitionReassignmentsRequest())
    wanted = lr.ListPartitionReassignmentsTopics
    some = (wanted(topic, (0, 7)), wanted(talk.name("absent"), (0,)))
    talk.ask("some", lr.ListPartitionReassignmentsRequest(topics=some))


@dialogue(ad.AlterReplicaLogDirsRequest)
def alter_replica_log_dirs(talk: Talk) -> None:
    topic = talk.topic("kept", 2)
    found: list[str] = []

    def remember(reply: DescribeLogDirsResponse) -> str:
        found.extend(each.log_dir for each in reply.results)
        return f"{len(reply.results)} directories"

    talk.ask("directories", DescribeLogDirsRequest(topics=()), show=remember)

    def move(path: str, name: str, *indexes: int) -> ad.AlterReplicaLogDirsRequest:
        topics = (ad.AlterReplicaLogDirTopic(name, indexes),)
        return ad.AlterReplicaLogDirsRequest((ad.AlterReplicaLogDir(path, topics),))

    talk.ask("where they are", move(found[0], topic, 0, 1))
    talk.ask("no such directory", move("/no/such/directory", topic, 0))
    talk.ask("not a path", move("somewhere", topic, 0))
    talk.ask("no such partition", move(found[0], topic, 7))
    talk.ask("no such topic", move(found[0], talk.name("absent"), 0))
    talk.ask("nothing", ad.AlterReplicaLogDirsRequest())


@dialogue(dq.DescribeQuorumRequest)
def describe_quorum(talk: Talk) -> None:
    def ask(topic: str, *indexes: int) -> dq.DescribeQuorumRequest:
        wanted = dq.AskedTopic(topic, tuple(dq.AskedPartition(index) for index in indexes))
        return dq.DescribeQuorumRequest((wanted,))

    def own(reply: dq.DescribeQuorumResponse) -> object:
        """How far it has come, and through which door, is each broker's own affair."""
        (partition,) = reply.topics[0].partitions
        (voter,) = partition.current_voters
        return {
            "error_code": reply.error_code,
            "topic": reply.topics[0].topic_name,
            "partition": [partition.partition_index, partition.error_code, partition.leader_id],
            "is_caught_up": voter.log_end_offset + 1 >= partition.high_watermark > 0,
            "voter": [voter.replica_id, voter.last_fetch_timestamp > 0, voter.last_caught_up_timestamp > 0],
            "observers": len(partition.observers),
            "nodes": [(node.node_id, [listener.name for listener in node.listeners]) for node in reply.nodes],
        }

    talk.ask("the metadata", ask("__cluster_metadata", 0), show=own)
    talk.ask("another partition", ask("__cluster_metadata", 1))
    talk.ask("another topic", ask(talk.name("absent"), 0))
    talk.ask("nothing", dq.DescribeQuorumRequest())


@dialogue(uf.UpdateFeaturesRequest)
def update_features(talk: Talk) -> None:
    def update(*features: tuple[str, int, int]) -> uf.UpdateFeaturesRequest:
        keys = tuple(
            uf.FeatureUpdateKey(name, level, allow_downgrade=kind != UPGRADE, upgrade_type=kind)
            for name, level, kind in features
        )
        # Nothing is to change for the dialogues that follow.
        return uf.UpdateFeaturesRequest(feature_updates=keys, validate_only=True)

    if talk.version(uf.UpdateFeaturesRequest) >= 1:
        talk.ask("as it is", update(("group.version", 1, UPGRADE)))
        talk.ask("two as they are", update(("group.version", 1, UPGRADE), ("transaction.version", 2, UPGRADE)))
        talk.ask("no such type", update(("group.version", 1, 9)))
        talk.ask("good and bad", update(("group.version", 1, UPGRADE), ("transaction.version", 99, UPGRADE)))
    talk.ask("too high", update(("group.version", 99, UPGRADE)))
    talk.ask("negative", update(("group.version", -1, UPGRADE)))
    talk.ask("no such feature", update(("no.such.feature", 1, UPGRADE)))
    talk.ask("lower by mistake", update(("transaction.version", 1, UPGRADE)))
    talk.ask("nothing", update())


@dialogue(UnregisterBrokerRequest)
def unregister_broker(talk: Talk) -> None:
    talk.ask("another", UnregisterBrokerRequest(9))
    talk.ask("negative", UnregisterBrokerRequest(-1))


@dialogue(lc.ListConfigResourcesRequest)
def list_config_resources(talk: Talk) -> None:
    topic = talk.topic("listed")

    def own(reply: lc.ListConfigResourcesResponse) -> lc.ListConfigResourcesResponse:
        found = [each for each in reply.config_resources if each.resource_name in (topic, "1")]
        return msgspec.structs.replace(reply, config_resources=found)

    talk.ask("all", lc.ListConfigResourcesRequest(), show=own)
    if talk.version(lc.ListConfigResourcesRequest) >= 1:
        talk.ask("brokers", lc.ListConfigResourcesRequest((BROKER,)))
        talk.ask("client metrics", lc.ListConfigResourcesRequest((CLIENT_METRICS,)))
        talk.ask("brokers and groups", lc.ListConfigResourcesRequest((BROKER, GROUP)), show=own)
        talk.ask("no such kind", lc.ListConfigResourcesRequest((3,)))
        talk.ask("good and bad", lc.ListConfigResourcesRequest((BROKER, 99)))


@dialogue(cq.DescribeClientQuotasRequest)
def describe_client_quotas(talk: Talk) -> None:
    def ask(*components: tuple[str, int, str | None], strict: bool = False) -> cq.DescribeClientQuotasRequest:
        return cq.DescribeClientQuotasRequest(tuple(cq.ComponentData(*each) for each in components), strict)

    talk.ask("all", ask())
    talk.ask("strictly all", ask(strict=True))
    talk.ask("a user", ask(("user", 0, talk.name("user"))))
    talk.ask("the default user", ask(("user", 1, None), strict=True))
    talk.ask("any client of any user", ask(("user", 2, None), ("client-id", 2, None)))
    talk.ask("an address", ask(("ip", 0, "1.2.3.4")))
    talk.ask("an address and a user", ask(("ip", 2, None), ("user", 2, None)))
    talk.ask("twice", ask(("user", 2, None), ("user", 1, None)))
    talk.ask("no kind", ask(("", 2, None)))
    talk.ask("no such kind", ask(("colour", 2, None)))
    talk.ask("no such match", ask(("user", 9, None)))
    talk.ask("no name", ask(("user", 0, None)))
    talk.ask("a name too many", ask(("user", 2, "x")))
