"""Users of a cluster: who has a password (SCRAM credentials), never which."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.base.chance import SYSTEM_CHANCE
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.codec.kafka.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from penstock.domain.security.scram import SALT_BYTES, Mechanism, salt_password
from penstock.net.errors import BrokerError


class UserCredential(msgspec.Struct, frozen=True):
    mechanism: str
    iterations: int


class UserInfo(msgspec.Struct, frozen=True):
    user: str
    credentials: tuple[UserCredential, ...]


async def list_users(client: ClusterClient) -> list[UserInfo]:
    return await _describe(client, None)


async def find_user(client: ClusterClient, name: str) -> UserInfo | None:
    found = await _describe(client, [name])
    return found[0] if found else None


async def _describe(client: ClusterClient, names: Sequence[str] | None) -> list[UserInfo]:
    users = None if names is None else [UserName(name) for name in names]
    request = DescribeUserScramCredentialsRequest(users=users)
    reply = await (await client.controller()).call(request, DescribeUserScramCredentialsResponse)
    if reply.error_code:
        raise BrokerError(reply.error_code, "users", reply.error_message)
    found = []
    for result in reply.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        if result.error_code:
            raise BrokerError(result.error_code, f"user {result.user!r}", result.error_message)
        infos = [
            UserCredential(Mechanism(info.mechanism).sasl_name, info.iterations) for info in result.credential_infos
        ]
        found.append(UserInfo(result.user, tuple(infos)))
    return sorted(found, key=lambda info: info.user)


def salted(name: str, password: str, mechanism: Mechanism, *, iterations: int) -> ScramCredentialUpsertion:
    """The password stays here: the broker is sent what it was hashed to, with a salt of its own."""
    salt = SYSTEM_CHANCE.bytes(SALT_BYTES)
    hashed = salt_password(mechanism, password, salt=salt, iterations=iterations)
    return ScramCredentialUpsertion(name, mechanism, iterations, salt, hashed)


async def set_password(client: ClusterClient, credentials: Sequence[ScramCredentialUpsertion]) -> None:
    await _alter(client, AlterUserScramCredentialsRequest(upsertions=tuple(credentials)))


async def delete_user(client: ClusterClient, info: UserInfo) -> None:
    mechanisms = [Mechanism[each.mechanism.replace("-", "_")] for each in info.credentials]
    deletions = tuple(ScramCredentialDeletion(info.user, mechanism) for mechanism in mechanisms)
    await _alter(client, AlterUserScramCredentialsRequest(deletions=deletions))


async def _alter(client: ClusterClient, request: AlterUserScramCredentialsRequest) -> None:
    reply = await (await client.controller()).call(request, AlterUserScramCredentialsResponse)
    for result in reply.results:
        if result.error_code:
            raise BrokerError(result.error_code, f"user {result.user!r}", result.error_message)
