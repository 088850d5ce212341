"""DescribeClientQuotas and AlterClientQuotas: nobody has limits, and whoever sets one is told that it has no effect.

What Apache Kafka answers to the same is compared in tests/conformance/differential/dialogue_one_node.py.
"""

from __future__ import annotations

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_client_quotas as aq
from penstock.codec.kafka.messages import describe_client_quotas as cq
from penstock.domain.security.access import Operation
from penstock.gateways.kafka.handlers.quotas import CHANGES_MAX
from support.authorizers import AllButOne
from support.door.conversation import Conversation, running_node

ALICE = aq.EntityData("user", "alice")
EVERYBODY = aq.EntityData("user", None)
ADDRESS = aq.EntityData("ip", "127.0.0.1")
RATE = aq.OpData("producer_byte_rate", 1024.0)
REMOVED = aq.OpData("producer_byte_rate", 0.0, remove=True)


async def test_nobody_has_limits(talk: Conversation) -> None:
    async def ask(*components: cq.ComponentData) -> cq.DescribeClientQuotasResponse:
        return await talk.ask(cq.DescribeClientQuotasRequest(components), cq.DescribeClientQuotasResponse)

    for components in ((), (cq.ComponentData("user", 2, None), cq.ComponentData("client-id", 0, "mine"))):
        reply = await ask(*components)
        assert (reply.error_code, list(reply.entries or ())) == (ErrorCode.NONE, [])
    user = cq.ComponentData("user", 2, None)
    assert (await ask(user, user)).error_code == ErrorCode.INVALID_REQUEST
    assert (await ask(cq.ComponentData("colour", 2, None))).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await ask(*[user] * 5_000)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("entity", [(ALICE,), (EVERYBODY,), (ALICE, aq.EntityData("client-id", "mine"))])
async def test_a_limit_that_would_have_no_effect_is_refused(
    talk: Conversation, entity: tuple[aq.EntityData, ...]
) -> None:
    for changes in ((RATE,), (REMOVED, aq.OpData("request_percentage", 12.5))):
        request = aq.AlterClientQuotasRequest((aq.EntryData(entity, changes),))
        (told,) = (await talk.ask(request, aq.AlterClientQuotasResponse)).entries
        assert (told.error_code, tuple(told.entity)) == (ErrorCode.UNSUPPORTED_VERSION, entity)
        assert "limit" in (told.error_message or "")


async def test_taking_away_a_limit_that_is_not_there_succeeds(talk: Conversation) -> None:
    entries = (aq.EntryData((ALICE,), (REMOVED,)), aq.EntryData((ALICE,), (RATE,)), aq.EntryData((ADDRESS,), ()))
    reply = await talk.ask(aq.AlterClientQuotasRequest(entries), aq.AlterClientQuotasResponse)
    codes = [each.error_code for each in reply.entries]
    assert codes == [ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE]


@pytest.mark.parametrize(
    "entry",
    [
        aq.EntryData((), (RATE,)),
        aq.EntryData((aq.EntityData("colour", "red"),), (RATE,)),
        aq.EntryData((aq.EntityData("user", ""),), (RATE,)),
        aq.EntryData((ADDRESS, ALICE), (RATE,)),
        aq.EntryData((ADDRESS,), (RATE,)),
        aq.EntryData((ALICE,), (aq.OpData("connection_creation_rate", 1.0),)),
        aq.EntryData((ALICE,), (RATE, REMOVED)),
        aq.EntryData((ALICE,), tuple(aq.OpData(str(n), 0.0, remove=True) for n in range(CHANGES_MAX + 1))),
        aq.EntryData((ALICE,) * 4, (REMOVED,)),
        aq.EntryData((ALICE,), (aq.OpData("producer_byte_rate", 0.0),)),
        aq.EntryData((ALICE,), (aq.OpData("producer_byte_rate", 1.5),)),
        aq.EntryData((ALICE,), (aq.OpData("producer_byte_rate", float("nan")),)),
    ],
)
async def test_what_is_no_limit_is_named(talk: Conversation, entry: aq.EntryData) -> None:
    (told,) = (await talk.ask(aq.AlterClientQuotasRequest((entry,)), aq.AlterClientQuotasResponse)).entries
    assert told.error_code == ErrorCode.INVALID_REQUEST
    assert told.error_message


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        (Operation.DESCRIBE_CONFIGS, cq.DescribeClientQuotasRequest()),
        (Operation.ALTER_CONFIGS, aq.AlterClientQuotasRequest((aq.EntryData((ALICE,), (REMOVED,)),))),
    ],
)
async def test_limits_are_guarded(operation: Operation, request_: wire.Request) -> None:
    async with running_node(authorizer=AllButOne(operation)) as node:
        talk = await node.connect()
        reply = await talk.ask(request_, wire.APIS[request_.api_key].response)
        assert f"error_code={int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}" in repr(reply), reply
