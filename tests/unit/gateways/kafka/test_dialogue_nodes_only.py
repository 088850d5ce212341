"""What only nodes of a cluster may say, said at the public door: refused, or not understood at all."""

from __future__ import annotations

import msgspec
import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import batch, fetch, outcome, produce

INTERNAL = [api for api in wire.APIS.values() if api.is_internal]


def as_replica(request: FetchRequest, node_id: int, version: int) -> FetchRequest:
    if version >= 15:
        return msgspec.structs.replace(request, replica_state=ReplicaState(node_id, 7))
    return msgspec.structs.replace(request, replica_id=node_id)


@pytest.mark.parametrize("version", range(4, 19))
async def test_fetch_of_a_replica_is_forbidden_and_the_connection_kept(
    node: TalkingNode, talk: Conversation, version: int
) -> None:
    topic_id = await node.create_topic("orders")
    outcome(await talk.ask(produce("orders", batch(b"a")), wire.ProduceResponse, 9))
    request = fetch("orders", topic_id=topic_id)
    for node_id in (0, 3):
        refused = await talk.ask(as_replica(request, node_id, version), FetchResponse, version)
        codes = [partition.error_code for topic in refused.responses for partition in topic.partitions]
        if version >= 7:
            assert (refused.error_code, codes) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        else:
            assert codes == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    taken = await talk.ask(as_replica(request, -1, version), FetchResponse, version)
    assert taken.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert taken.responses[0].partitions[0].records


async def test_requests_between_nodes_are_not_told_of(talk: Conversation) -> None:
    told = await talk.ask(ApiVersionsRequest("test", "1"), ApiVersionsResponse)
    assert len(told.api_keys) > 60
    assert not {api.api_key for api in told.api_keys} & {api.key for api in INTERNAL}


@pytest.mark.parametrize("api", INTERNAL, ids=lambda api: api.name)
async def test_requests_between_nodes_end_the_connection(node: TalkingNode, api: wire.Api) -> None:
    talk, other = await node.connect(), await node.connect()
    await talk.send(api.request())
    await talk.expect_closed()
    await other.expect_open()
