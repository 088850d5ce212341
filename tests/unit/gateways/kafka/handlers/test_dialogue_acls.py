"""CreateAcls, DescribeAcls, DeleteAcls, and that what they say holds at once for every door of the node."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.codec.kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.codec.kafka.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.security.access import CLUSTER, Operation, ResourceType
from penstock.domain.security.acl import PatternType, Permission
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, outcome, produce

EVERYBODY = "User:*"
ANONYMOUS = "User:ANONYMOUS"


def rule(
    operation: Operation,
    name: str = "orders",
    *,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    principal: str = ANONYMOUS,
    host: str = "*",
) -> AclCreation:
    return AclCreation(kind, name, pattern, principal, host, operation, permission)


async def create(talk: Conversation, *rules: AclCreation, version: int = 3) -> list[ErrorCode]:
    response = await talk.ask(CreateAclsRequest(creations=rules), CreateAclsResponse, version)
    assert all(bool(result.error_message) == bool(result.error_code) for result in response.results)
    return [ErrorCode(result.error_code) for result in response.results]


async def describe(talk: Conversation, name: str | None = None, **parts: int) -> DescribeAclsResponse:
    request = DescribeAclsRequest(
        resource_type_filter=parts.get("kind", ResourceType.ANY),
        resource_name_filter=name,
        pattern_type_filter=parts.get("pattern", PatternType.MATCH),
        operation=parts.get("operation", Operation.ANY),
        permission_type=parts.get("permission", Permission.ANY),
    )
    return await talk.ask(request, DescribeAclsResponse, parts.get("version", 3))


async def delete(talk: Conversation, name: str | None = None, **parts: int) -> DeleteAclsFilterResult:
    asked = DeleteAclsFilter(
        resource_type_filter=parts.get("kind", ResourceType.ANY),
        resource_name_filter=name,
        pattern_type_filter=PatternType.MATCH,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    response = await talk.ask(DeleteAclsRequest(filters=(asked,)), DeleteAclsResponse, parts.get("version", 3))
    (result,) = response.filter_results
    return result


async def send(talk: Conversation, topic: str) -> ErrorCode:
    response = await talk.ask(produce(topic, batch(b"a")), ProduceResponse, 12)
    return ErrorCode(outcome(response)[0])


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_rules_are_created_described_and_deleted(talk: Conversation, version: int) -> None:
    prefix = rule(Operation.READ, "ord", pattern=PatternType.PREFIXED)
    whole = rule(Operation.WRITE, principal="User:alice", permission=Permission.DENY)
    assert await create(talk, prefix, whole, rule(Operation.READ, "other"), version=version) == [ErrorCode.NONE] * 3
    # Said again, it stays one rule.
    assert await create(talk, whole, version=version) == [ErrorCode.NONE]
    found = await describe(talk, "orders", kind=ResourceType.TOPIC, version=version)
    allowed, denied = ((each.resource_name, each.pattern_type, each.acls) for each in found.resources)
    assert allowed == ("ord", 4, (AclDescription(ANONYMOUS, "*", Operation.READ, Permission.ALLOW),))
    assert denied == ("orders", 3, (AclDescription("User:alice", "*", Operation.WRITE, Permission.DENY),))
    deleted = await delete(talk, "orders", kind=ResourceType.TOPIC, version=version)
    assert [acl.resource_name for acl in deleted.matching_acls] == ["ord", "orders"]
    assert [resource.resource_name for resource in (await describe(talk)).resources] == ["other"]
    assert not (await delete(talk, "orders")).matching_acls


async def test_rule_holds_for_a_connection_that_is_open(node: TalkingNode, talk: Conversation) -> None:
    """Also for a producer that has a route of its own by now."""
    await node.create_topic("orders")
    admin = await node.connect()
    for _ in range(3):
        assert await send(talk, "orders") == ErrorCode.NONE
    assert await create(admin, rule(Operation.ALL, principal=EVERYBODY, permission=Permission.DENY)) == [ErrorCode.NONE]
    assert await send(talk, "orders") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await delete(admin, "orders")
    assert await send(talk, "orders") == ErrorCode.NONE


async def test_rules_survive_a_restart(tmp_path: Path) -> None:
    async with running_node(data_dir=str(tmp_path)) as node:
        await node.create_topic("orders")
        await create(await node.connect(), rule(Operation.WRITE, principal="User:alice"))
    async with running_node(data_dir=str(tmp_path)) as node:
        talk = await node.connect()
        assert await send(talk, "orders") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert len((await describe(talk)).resources) == 1


async def test_many_rules_take_several_transactions(talk: Conversation) -> None:
    rules = [rule(Operation.READ, f"topic-{number:03}") for number in range(300)]
    assert await create(talk, *rules) == [ErrorCode.NONE] * 300
    assert len((await describe(talk)).resources) == 300
    assert len((await delete(talk)).matching_acls) == 300
    assert not (await describe(talk)).resources


async def test_bad_rules_are_refused_and_good_ones_beside_them_kept(talk: Conversation) -> None:
    bad = [
        rule(Operation.ANY),
        rule(Operation(0)),
        rule(Operation.READ, host="10.0.0.1"),
        rule(Operation.READ, principal="alice"),
        AclCreation(99, "x", 3, ANONYMOUS, "*", 3, 3),
    ]
    assert await create(talk, *bad, rule(Operation.READ)) == [*[ErrorCode.INVALID_REQUEST] * len(bad), ErrorCode.NONE]
    assert len((await describe(talk)).resources) == 1


async def test_filter_that_is_not_understood_is_refused(talk: Conversation) -> None:
    assert (await describe(talk, operation=0)).error_code == ErrorCode.INVALID_REQUEST
    assert (await describe(talk, pattern=99)).error_code == ErrorCode.INVALID_REQUEST
    assert (await delete(talk, kind=0)).error_code == ErrorCode.INVALID_REQUEST


async def test_who_may_not_change_the_cluster_may_not_change_rules(talk: Conversation) -> None:
    only_looking = rule(Operation.DESCRIBE, CLUSTER.name, kind=ResourceType.CLUSTER)
    assert await create(talk, only_looking) == [ErrorCode.NONE]
    forbidden = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await create(talk, rule(Operation.READ)) == [forbidden]
    assert (await delete(talk)).error_code == forbidden
    assert len((await describe(talk)).resources) == 1


async def test_who_may_not_see_the_cluster_may_not_see_rules(talk: Conversation) -> None:
    for_another = rule(Operation.ALL, CLUSTER.name, kind=ResourceType.CLUSTER, principal="User:alice")
    assert await create(talk, for_another) == [ErrorCode.NONE]
    assert (await describe(talk)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_request_with_bytes_behind_it_is_answered(talk: Conversation) -> None:
    """As segmentio/kafka-go sends DescribeAcls: with one byte too many."""
    everything = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        pattern_type_filter=PatternType.ANY,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    exact = talk.frame(everything, 3)
    talk.send_bytes(struct.pack(">i", len(exact) - 4 + 1) + exact[4:] + b"\0")
    assert (await talk.hear(DescribeAclsResponse)).error_code == ErrorCode.NONE
    await talk.expect_open()
