from __future__ import annotations

from penstock.domain.security.access import (
    ANONYMOUS,
    CLUSTER,
    OPERATIONS_OF,
    AllowAll,
    Authorizer,
    Operation,
    Principal,
    Resource,
    ResourceType,
    authorized_operations,
    group,
    topic,
)


class OnlyReading:
    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return operation in (Operation.READ, Operation.DESCRIBE)


def test_a_principal_is_written_as_kafka_writes_it() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert str(Principal("User", "alice", tenant="shop")) == "User:alice"


def test_numbers_are_kafkas() -> None:
    assert (Operation.READ, Operation.WRITE, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE) == (3, 4, 11, 12)
    assert (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER) == (2, 3, 4)
    assert (topic("a").type, group("a").type, CLUSTER.name) == (2, 3, "kafka-cluster")


def test_the_default_allows_all() -> None:
    authorizer: Authorizer = AllowAll()
    for kind, operations in OPERATIONS_OF.items():
        for operation in operations:
            assert authorizer.authorize(ANONYMOUS, operation, Resource(kind, "x"))


def test_authorized_operations_are_a_bit_for_each() -> None:
    # What Kafka answers for a topic with everything allowed: bits 3 to 8, 10 and 11.
    assert authorized_operations(AllowAll(), ANONYMOUS, topic("a")) == 0b1101_1111_1000
    assert authorized_operations(OnlyReading(), ANONYMOUS, topic("a")) == 1 << 3 | 1 << 8
    assert authorized_operations(OnlyReading(), ANONYMOUS, CLUSTER) == 1 << 8
    assert authorized_operations(AllowAll(), ANONYMOUS, Resource(ResourceType.ANY, "a")) == 0
