"""Rules about who may do what: what they match, what they allow, and which make no sense."""

from __future__ import annotations

import msgspec
import pytest

from penstock.domain.security import access
from penstock.domain.security.access import ANONYMOUS, CLUSTER, Operation, Principal, Resource, ResourceType
from penstock.domain.security.acl import (
    ANSWERS_MAX,
    AccessSettings,
    AclAuthorizer,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    check_binding,
    check_filter,
    is_allowed,
    is_matched,
)

ALICE = Principal("User", "alice")
BOB = Principal("User", "bob")
ORDERS = access.topic("orders")
WRITE = Operation.WRITE
ANYTHING = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def rule(
    operation: Operation,
    name: str = "orders",
    *,
    principal: str = "User:alice",
    deny: bool = False,
    prefixed: bool = False,
) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        "*",
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


def may(operation: Operation, *bindings: AclBinding, principal: Principal = ALICE) -> bool:
    return is_allowed(bindings, principal, operation, ORDERS)


def test_thing_without_a_rule_is_open_to_everybody() -> None:
    assert may(Operation.WRITE)
    assert may(Operation.WRITE, rule(Operation.READ, "other"))
    assert is_allowed([rule(Operation.READ)], BOB, Operation.READ, access.group("orders"))


def test_first_rule_closes_the_thing_to_all_others() -> None:
    assert may(Operation.READ, rule(Operation.READ))
    assert not may(Operation.READ, rule(Operation.READ), principal=BOB)
    assert not may(Operation.WRITE, rule(Operation.READ))


@pytest.mark.parametrize("name", ["orders", "*"])
def test_rule_for_everybody_and_everything_counts(name: str) -> None:
    assert may(Operation.READ, rule(Operation.READ, name, principal="User:*"), principal=BOB)
    assert not may(Operation.READ, rule(Operation.ALL, name, principal="User:*", deny=True), principal=ANONYMOUS)


def test_prefix_covers_what_begins_with_it() -> None:
    assert may(Operation.READ, rule(Operation.READ, "ord", prefixed=True))
    assert not may(Operation.WRITE, rule(Operation.READ, "ord", prefixed=True))
    assert may(Operation.WRITE, rule(Operation.READ, "order-s", prefixed=True))


def test_denial_wins_over_permission() -> None:
    allow, deny = rule(Operation.ALL, principal="User:*"), rule(Operation.WRITE, deny=True)
    assert may(Operation.READ, allow, deny)
    assert not may(Operation.WRITE, allow, deny)
    assert may(Operation.WRITE, allow, deny, principal=BOB)


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_who_may_touch_may_also_look(operation: Operation) -> None:
    assert may(Operation.DESCRIBE, rule(operation))
    assert not may(Operation.DESCRIBE_CONFIGS, rule(operation))
    # Denying to touch does not deny to look.
    assert may(Operation.DESCRIBE, rule(operation, deny=True), rule(Operation.DESCRIBE))


def test_who_may_alter_settings_may_see_them() -> None:
    assert may(Operation.DESCRIBE_CONFIGS, rule(Operation.ALTER_CONFIGS))
    assert not may(Operation.DESCRIBE, rule(Operation.ALTER_CONFIGS))


def test_authorizer_forgets_its_answers_when_rules_change() -> None:
    authorizer = AclAuthorizer()
    assert authorizer.authorize(BOB, Operation.READ, ORDERS)
    authorizer.replace([rule(Operation.READ)])
    assert not authorizer.authorize(BOB, Operation.READ, ORDERS)
    assert not authorizer.authorize(BOB, Operation.READ, ORDERS)
    authorizer.replace([])
    assert authorizer.authorize(BOB, Operation.READ, ORDERS)


def test_authorizer_remembers_no_more_than_its_share() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace([rule(Operation.READ)])
    for number in range(ANSWERS_MAX + 5):
        assert authorizer.authorize(BOB, Operation.READ, access.topic(f"topic-{number}"))
    assert not authorizer.authorize(BOB, Operation.READ, ORDERS)
    assert len(authorizer._answers) <= ANSWERS_MAX


def wanted(name: str | None, pattern: PatternType, **others: object) -> AclFilter:
    return msgspec.structs.replace(ANYTHING, resource_name=name, pattern_type=pattern, **others)


LITERAL, PREFIX, ALL = rule(Operation.READ), rule(Operation.READ, "ord", prefixed=True), rule(Operation.READ, "*")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (wanted(None, PatternType.ANY), [LITERAL, PREFIX, ALL]),
        (wanted("orders", PatternType.ANY), [LITERAL]),
        (wanted("orders", PatternType.MATCH), [LITERAL, PREFIX, ALL]),
        (wanted("ordnance", PatternType.MATCH), [PREFIX, ALL]),
        (wanted(None, PatternType.MATCH), [LITERAL, PREFIX, ALL]),
        (wanted("ord", PatternType.PREFIXED), [PREFIX]),
        (wanted("ord", PatternType.LITERAL), []),
        (wanted(None, PatternType.LITERAL), [LITERAL, ALL]),
        (wanted("*", PatternType.LITERAL), [ALL]),
        (wanted(None, PatternType.ANY, principal="User:bob"), []),
        (wanted(None, PatternType.ANY, host="10.0.0.1"), []),
        (wanted(None, PatternType.ANY, operation=Operation.WRITE), []),
        (wanted(None, PatternType.ANY, permission=Permission.DENY), []),
        (wanted(None, PatternType.ANY, resource_type=ResourceType.GROUP), []),
        (wanted(None, PatternType.ANY, resource_type=ResourceType.TOPIC), [LITERAL, PREFIX, ALL]),
    ],
)  # fmt: skip
def test_filter_finds_what_it_names(asked: AclFilter, found: list[AclBinding]) -> None:
    assert [binding for binding in (LITERAL, PREFIX, ALL) if is_matched(asked, binding)] == found


@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": ResourceType.ANY},
        {"resource_type": ResourceType.UNKNOWN},
        {"resource_type": ResourceType.CLUSTER},
        {"resource_name": ""},
        {"pattern_type": PatternType.MATCH},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": "10.0.0.1"},
        {"operation": Operation.ANY},
        {"operation": Operation.CLUSTER_ACTION},
        {"permission": Permission.ANY},
    ],
)
def test_rule_that_makes_no_sense_is_refused_with_a_reason(change: dict[str, object]) -> None:
    assert check_binding(LITERAL) is None
    assert check_binding(msgspec.structs.replace(LITERAL, **change))


def test_cluster_has_one_name() -> None:
    cluster = AclBinding(
        CLUSTER.type, CLUSTER.name, PatternType.LITERAL, "User:a", "*", Operation.ALTER, Permission.ALLOW
    )
    assert check_binding(cluster) is None


def test_filter_with_an_unknown_part_is_refused() -> None:
    assert check_filter(ANYTHING) is None
    for part in ("resource_type", "pattern_type", "operation", "permission"):
        kind = type(getattr(ANYTHING, part))
        assert check_filter(msgspec.structs.replace(ANYTHING, **{part: kind(0)}))


def test_super_user_may_do_what_a_rule_denies_to_all() -> None:
    denied = AclBinding(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.DENY)
    authorizer = AclAuthorizer(AccessSettings(super_users=("User:root",)))
    authorizer.replace([denied])
    asked = (Operation.WRITE, access.topic("t"))
    assert authorizer.authorize(Principal("User", "root"), *asked)
    assert not authorizer.authorize(Principal("User", "roo"), *asked)
    assert not authorizer.authorize(Principal("Group", "root"), *asked)


def test_where_rules_are_needed_what_none_names_is_closed() -> None:
    authorizer = AclAuthorizer(AccessSettings(super_users=("User:root",), allow_without_rule=False))
    alice, root = Principal("User", "alice"), Principal("User", "root")
    assert not authorizer.authorize(alice, Operation.READ, access.topic("t"))
    assert authorizer.authorize(root, Operation.READ, access.topic("t"))
    rule = AclBinding(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
    authorizer.replace([rule])
    assert authorizer.authorize(alice, Operation.READ, access.topic("t"))
    assert not authorizer.authorize(alice, Operation.READ, access.topic("u"))


def test_who_may_do_what_no_rule_names_depends_on_whether_the_node_knows_anybody() -> None:
    alice = Principal("User", "alice")
    topic = (alice, Operation.READ, access.topic("t"))
    rules = (alice, Operation.ALTER, CLUSTER)
    users = Resource(ResourceType.USER, "User:root")
    credentials = (alice, Operation.CREATE_TOKENS, users)
    root = AccessSettings(super_users=("User:root",))
    opened = AccessSettings(super_users=("User:root",), allow_without_rule=True)
    nobody_known = AclAuthorizer(AccessSettings())
    assert [nobody_known.authorize(*each) for each in (topic, rules, credentials)] == [True, True, True]
    for guarded in (AclAuthorizer(AccessSettings(), has_logins=True), AclAuthorizer(root)):
        assert [guarded.authorize(*each) for each in (topic, rules, credentials)] == [False, False, False]
    partly = AclAuthorizer(opened)
    assert [partly.authorize(*each) for each in (topic, rules, credentials)] == [True, False, False]
    partly.replace(
        [
            AclBinding(
                CLUSTER.type, CLUSTER.name, PatternType.LITERAL, "User:alice", "*", Operation.ALTER, Permission.ALLOW
            )
        ]
    )
    assert partly.authorize(*rules)


@pytest.mark.parametrize(
    ("rules", "is_open", "expected"),
    [
        ((), True, True),
        ((), False, False),
        ((rule(WRITE),), False, True),
        ((rule(WRITE, "ord", prefixed=True),), False, True),
        ((rule(WRITE, "*"),), False, True),
        ((rule(WRITE, "*", principal="User:*"),), False, True),
        ((rule(WRITE, principal="User:bob"),), False, False),
        ((rule(Operation.READ),), False, False),
        ((rule(WRITE), rule(WRITE, deny=True)), False, False),
        ((rule(WRITE), rule(WRITE, "ord", deny=True, prefixed=True)), False, False),
        ((rule(WRITE, "ord", prefixed=True), rule(WRITE, "ord", deny=True)), False, True),
        ((rule(WRITE), rule(WRITE, "*", deny=True)), False, False),
        # Every topic is named by this one, so none is open.
        ((rule(WRITE, "*", principal="User:bob"),), True, False),
        ((rule(WRITE, principal="User:bob"),), True, True),
    ],
)
def test_who_may_write_to_some_topic_is_known_before_there_is_one(
    rules: tuple[AclBinding, ...], is_open: bool, expected: bool
) -> None:
    authorizer = AclAuthorizer(AccessSettings(allow_without_rule=is_open), has_logins=True)
    authorizer.replace(rules)
    assert authorizer.authorize(ALICE, WRITE, access.SOME_TOPIC) is expected
