"""Delegation tokens, streams groups, brokers' own requests about share groups: understood, and refused with the reason.

What Apache Kafka answers where they are off is compared in tests/conformance/differential/dialogue_not_served.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import create_delegation_token as ct
from penstock.codec.kafka.messages import delete_share_group_state as ds
from penstock.codec.kafka.messages import initialize_share_group_state as gs
from penstock.codec.kafka.messages import read_share_group_state as rs
from penstock.codec.kafka.messages import read_share_group_state_summary as ss
from penstock.codec.kafka.messages import streams_group_describe as sd
from penstock.codec.kafka.messages import write_share_group_state as ws
from penstock.codec.kafka.messages.describe_delegation_token import DescribeDelegationTokenRequest
from penstock.codec.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from penstock.codec.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from penstock.codec.kafka.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from penstock.domain.security.access import Operation, Resource, ResourceType
from support.authorizers import AllButOne
from support.door.conversation import Conversation, running_node
from support.door.sasl_phrases import USER, log_in, login_config

TOKENS = [
    ct.CreateDelegationTokenRequest(max_lifetime_ms=-1),
    RenewDelegationTokenRequest(b"token", 1000),
    ExpireDelegationTokenRequest(b"token", 1000),
    DescribeDelegationTokenRequest(None),
]
BOB = Resource(ResourceType.USER, "User:bob")


@pytest.fixture
async def alice() -> AsyncIterator[Conversation]:
    """Logged in; what she may not do is to make tokens of Bob."""
    authorizer = AllButOne(Operation.CREATE_TOKENS, BOB)
    async with running_node(kafka=login_config(), authorizer=authorizer) as node:
        talk = await node.connect()
        await log_in(talk)
        yield talk


async def code_of(talk: Conversation, request: wire.Request) -> int:
    reply = await talk.ask(request, wire.APIS[request.api_key].response)
    code: int = reply.error_code  # type: ignore[attr-defined]
    return code


@pytest.mark.parametrize("request_", TOKENS, ids=lambda each: type(each).__name__)
async def test_who_has_not_logged_in_may_not_ask_for_tokens(talk: Conversation, request_: wire.Request) -> None:
    assert await code_of(talk, request_) == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize("request_", TOKENS, ids=lambda each: type(each).__name__)
async def test_tokens_are_off(alice: Conversation, request_: wire.Request) -> None:
    assert await code_of(alice, request_) == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


async def test_tokens_of_others_need_leave(alice: Conversation) -> None:
    async def create(owner: str, renewer: str = "User") -> ct.CreateDelegationTokenResponse:
        renewers = (ct.CreatableRenewers(renewer, "carol"),)
        request = ct.CreateDelegationTokenRequest("User", owner, renewers, 1000)
        return await alice.ask(request, ct.CreateDelegationTokenResponse)

    refused = await create("bob")
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", USER)
    assert (await create(USER)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert (await create("dave")).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert (await create(USER, "Group")).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


async def test_streams_groups_are_off(talk: Conversation) -> None:
    beat = await talk.ask(StreamsGroupHeartbeatRequest("pipes", "member"), StreamsGroupHeartbeatResponse)
    assert beat.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in (beat.error_message or "")
    described = await talk.ask(sd.StreamsGroupDescribeRequest(("pipes", "more")), sd.StreamsGroupDescribeResponse)
    told = [(each.group_id, each.error_code) for each in described.groups]
    assert told == [("pipes", ErrorCode.UNSUPPORTED_VERSION), ("more", ErrorCode.UNSUPPORTED_VERSION)]


TOPIC_ID = bytes(range(16))
STATE = [
    gs.InitializeShareGroupStateRequest("g", (gs.InitializeStateData(TOPIC_ID, (gs.PartitionData(7),)),)),
    rs.ReadShareGroupStateRequest("g", (rs.ReadStateData(TOPIC_ID, (rs.PartitionData(7),)),)),
    ws.WriteShareGroupStateRequest("g", (ws.WriteStateData(TOPIC_ID, (ws.PartitionData(7),)),)),
    ds.DeleteShareGroupStateRequest("g", (ds.DeleteStateData(TOPIC_ID, (ds.PartitionData(7),)),)),
    ss.ReadShareGroupStateSummaryRequest("g", (ss.ReadStateSummaryData(TOPIC_ID, (ss.PartitionData(7),)),)),
]


@pytest.mark.parametrize("request_", STATE, ids=lambda each: type(each).__name__)
async def test_other_brokers_do_not_touch_the_state_of_share_groups(request_: wire.Request) -> None:
    api = wire.APIS[request_.api_key]
    for refused, expected in (
        (Operation.ALTER, ErrorCode.INVALID_REQUEST),
        (Operation.CLUSTER_ACTION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        async with running_node(authorizer=AllButOne(refused)) as node:
            talk = await node.connect()
            for version in range(api.version_min, api.version_max + 1):
                reply = await talk.ask(request_, api.response, version)
                (topic,) = reply.results  # type: ignore[attr-defined]
                (partition,) = topic.partitions
                assert (topic.topic_id, partition.partition, partition.error_code) == (TOPIC_ID, 7, expected)
                assert partition.error_message
