"""DescribeUserScramCredentials, AlterUserScramCredentials: who has a password, never which."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.codec.kafka.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.codec.kafka.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from penstock.domain.security.access import CLUSTER, Operation, ResourceType
from support.door.conversation import Conversation, running_node

SHA_256, SHA_512 = 1, 2


def password(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, b"s\0lt", b"\0" * 32)


async def alter(
    talk: Conversation, *upsertions: ScramCredentialUpsertion, without: tuple[tuple[str, int], ...] = ()
) -> dict[str, ErrorCode]:
    deletions = [ScramCredentialDeletion(name, mechanism) for name, mechanism in without]
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    response = await talk.ask(request, AlterUserScramCredentialsResponse)
    return {result.user: ErrorCode(result.error_code) for result in response.results}


async def describe(talk: Conversation, *names: str) -> dict[str, list[tuple[int, int]] | ErrorCode]:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name) for name in names] or None)
    response = await talk.ask(request, DescribeUserScramCredentialsResponse)
    assert response.error_code == ErrorCode.NONE
    return {
        result.user: ErrorCode(result.error_code)
        if result.error_code
        else [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


async def test_passwords_come_and_go(talk: Conversation) -> None:
    assert await describe(talk) == {}
    assert await describe(talk, "alice") == {"alice": ErrorCode.RESOURCE_NOT_FOUND}
    assert await alter(talk, password("alice"), password("alice", SHA_512, 8192), password("bob/ü")) == {
        "alice": ErrorCode.NONE,
        "bob/ü": ErrorCode.NONE,
    }
    assert await describe(talk) == {"alice": [(SHA_256, 4096), (SHA_512, 8192)], "bob/ü": [(SHA_256, 4096)]}
    assert await alter(talk, password("alice", iterations=5000), without=(("alice", SHA_512),)) == {
        "alice": ErrorCode.NONE
    }
    assert await describe(talk, "alice") == {"alice": [(SHA_256, 5000)]}
    assert await alter(talk, without=(("alice", SHA_256),)) == {"alice": ErrorCode.NONE}
    assert list(await describe(talk)) == ["bob/ü"]


@pytest.mark.parametrize(
    ("upsertions", "without", "error"),
    [
        ([password("")], (), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([password("alice", iterations=1)], (), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([password("alice", mechanism=7)], (), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([password("alice"), password("alice", iterations=5000)], (), ErrorCode.DUPLICATE_RESOURCE),
        ([password("alice")], (("alice", SHA_256),), ErrorCode.DUPLICATE_RESOURCE),
        ([], (("alice", SHA_256),), ErrorCode.RESOURCE_NOT_FOUND),
        ([], (("alice", 0),), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([password("alice", SHA_512)], (("alice", SHA_256),), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
async def test_bad_change_changes_nothing_of_that_user(
    talk: Conversation,
    upsertions: list[ScramCredentialUpsertion],
    without: tuple[tuple[str, int], ...],
    error: ErrorCode,
) -> None:
    answered = await alter(talk, password("bob"), *upsertions, without=without)
    assert answered.pop("bob") == ErrorCode.NONE
    assert list(answered.values()) == [error]
    assert list(await describe(talk)) == ["bob"]


async def test_user_named_twice_is_told_so(talk: Conversation) -> None:
    assert await describe(talk, "alice", "alice") == {"alice": ErrorCode.DUPLICATE_RESOURCE}


async def test_passwords_survive_a_restart(tmp_path: Path) -> None:
    async with running_node(data_dir=str(tmp_path)) as node:
        await alter(await node.connect(), password("alice"))
    async with running_node(data_dir=str(tmp_path)) as node:
        assert await describe(await node.connect()) == {"alice": [(SHA_256, 4096)]}


async def test_who_may_not_touch_the_cluster_may_not_touch_users(talk: Conversation) -> None:
    for_another = AclCreation(ResourceType.CLUSTER, CLUSTER.name, 3, "User:alice", "*", Operation.ALL, 3)
    await talk.ask(CreateAclsRequest(creations=(for_another,)), CreateAclsResponse)
    assert await alter(talk, password("bob")) == {"bob": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    request = DescribeUserScramCredentialsRequest(users=None)
    response = await talk.ask(request, DescribeUserScramCredentialsResponse)
    assert (response.error_code, list(response.results)) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
