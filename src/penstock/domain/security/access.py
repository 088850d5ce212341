"""Who may do what to which thing: Kafka's model, asked by every door.

Every request carries a `Principal` and passes one `authorize(principal, operation, resource)`. The default
allows all; who is refused learns nothing about the thing, not even whether it exists.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Who asks, after authentication."""

    kind: str
    name: str
    tenant: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


class Operation(IntEnum):
    """Kafka's numbers: they go over the wire in ACL requests and as bits in "authorized operations"."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Resource(msgspec.Struct, frozen=True):
    type: ResourceType
    name: str


# There is one cluster, and this is what Kafka calls it.
CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")


# Some topic, whichever, and whether it exists or not. None has this name.
SOME_TOPIC: Final = Resource(ResourceType.TOPIC, "")


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, name)


class Authorizer(Protocol):
    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Called for every resource of every request, so it answers from memory and at once."""
        ...


class AllowAll:
    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return True


# What can be done to which kind of thing; everything else makes no sense and is never granted.
OPERATIONS_OF: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}


def authorized_operations(authorizer: Authorizer, principal: Principal, resource: Resource) -> int:
    """The bit field that Metadata and DescribeCluster answer: bit n stands for the operation numbered n."""
    bits = 0
    for operation in OPERATIONS_OF.get(resource.type, ()):
        if authorizer.authorize(principal, operation, resource):
            bits |= 1 << operation
    return bits
