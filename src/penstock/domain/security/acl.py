"""Rules about who may do what (ACLs), by Kafka's model, and what follows from them.

A rule names a thing (by its whole name, by the beginning of it, or `*` for all of its kind), a principal (or `User:*`
for everybody), an operation (or ALL) and whether that is allowed or denied.

- A thing that no rule names is open to everybody on a node that knows nobody: no logins, no super users. As soon as
  there are any it is closed, unless the settings say otherwise.
- The cluster, and with it rules, users and credentials, is never open without a rule on a node that knows somebody:
  who may change them may make himself a super user.
- Super users may do everything, whatever the rules say.
- A rule that denies wins over every rule that allows.
- READ, WRITE, DELETE and ALTER allow DESCRIBE as well; ALTER_CONFIGS allows DESCRIBE_CONFIGS.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec

from penstock.domain.security.access import (
    CLUSTER,
    OPERATIONS_OF,
    SOME_TOPIC,
    Operation,
    Principal,
    Resource,
    ResourceType,
)

EVERYTHING: Final = "*"
EVERYBODY: Final = "User:*"
ANY_HOST: Final = "*"
# A question that was answered is not worked out again before the next change; past this many the memory starts anew.
ANSWERS_MAX: Final = 10_000


class PatternType(IntEnum):
    """Kafka's numbers. ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's numbers. ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class AclBinding(msgspec.Struct, frozen=True, order=True):
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(msgspec.Struct, frozen=True):
    """None and ANY match everything."""

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission


# No topic's, so that no rule names it whole.
_NO_NAME: Final = "/"
_CONCRETE_PATTERNS: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_CONCRETE_PERMISSIONS: Final = frozenset({Permission.DENY, Permission.ALLOW})

# Who may do the one may also do the other.
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


def check_binding(binding: AclBinding) -> str | None:
    """Why the rule makes no sense; None if it does."""
    if binding.resource_type not in OPERATIONS_OF:
        return f"{binding.resource_type.name} is not a kind of thing that a rule can name"
    if binding.pattern_type not in _CONCRETE_PATTERNS:
        return f"a rule names things by LITERAL or PREFIXED, not by {binding.pattern_type.name}"
    if not binding.resource_name:
        return "a rule names a thing, and the name is empty"
    if binding.resource_type is CLUSTER.type and binding.resource_name != CLUSTER.name:
        return f"the cluster is called {CLUSTER.name!r}, not {binding.resource_name[:80]!r}"
    kind, separator, name = binding.principal.partition(":")
    if not (kind and separator and name):
        return f"{binding.principal[:80]!r} is not a principal, as User:alice is"
    if binding.host != ANY_HOST:
        # Who asks is known by principal alone: a rule for one address would be kept and never looked at.
        return f"rules for a single host ({binding.host[:80]!r}) are not served, only {ANY_HOST!r}"
    if binding.permission not in _CONCRETE_PERMISSIONS:
        return f"a rule allows or denies; {binding.permission.name} is neither"
    possible = (*OPERATIONS_OF[binding.resource_type], Operation.ALL)
    if binding.operation not in possible:
        return f"{binding.operation.name} cannot be done to a {binding.resource_type.name}"
    return None


def check_filter(wanted: AclFilter) -> str | None:
    unknown = [
        name
        for name, value in (
            ("resource type", wanted.resource_type),
            ("pattern type", wanted.pattern_type),
            ("operation", wanted.operation),
            ("permission", wanted.permission),
        )
        if value == 0
    ]
    return f"the filter's {unknown[0]} is not known" if unknown else None


def is_matched(wanted: AclFilter, binding: AclBinding) -> bool:
    return (
        wanted.resource_type in (ResourceType.ANY, binding.resource_type)
        and wanted.operation in (Operation.ANY, binding.operation)
        and wanted.permission in (Permission.ANY, binding.permission)
        and wanted.principal in (None, binding.principal)
        and wanted.host in (None, binding.host)
        and _is_name_matched(wanted, binding)
    )


def _is_name_matched(wanted: AclFilter, binding: AclBinding) -> bool:
    name = wanted.resource_name
    match wanted.pattern_type:
        case PatternType.ANY:
            return name in (None, binding.resource_name)
        case PatternType.MATCH:
            return name is None or _is_about(binding, name)
        case pattern:
            return pattern is binding.pattern_type and name in (None, binding.resource_name)


def _is_about(binding: AclBinding, name: str) -> bool:
    """Whether the rule names the thing of that name."""
    if binding.pattern_type is PatternType.PREFIXED:
        return name.startswith(binding.resource_name)
    return binding.resource_name in (name, EVERYTHING)


class AccessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Who may do everything, as User:admin.
    super_users: tuple[str, ...] = ()
    # As Kafka's allow.everyone.if.no.acl.found, which is false there. None: true until there are logins or super users.
    allow_without_rule: bool | None = None


# What rules, users and credentials belong to.
_NEVER_OPEN: Final = frozenset({ResourceType.CLUSTER, ResourceType.USER, ResourceType.DELEGATION_TOKEN})


class AclAuthorizer:
    """An `Authorizer` by rules. They are replaced whole: a question sees all of a change or nothing of it."""

    def __init__(self, settings: AccessSettings | None = None, *, has_logins: bool = False) -> None:
        settings = settings or AccessSettings()
        self._super_users = frozenset(settings.super_users)
        is_guarded = has_logins or bool(settings.super_users)
        self._is_open = not is_guarded if settings.allow_without_rule is None else settings.allow_without_rule
        self._closed = _NEVER_OPEN if is_guarded else frozenset[ResourceType]()
        self._bindings: tuple[AclBinding, ...] = ()
        self._answers: dict[tuple[Principal, Operation, Resource], bool] = {}

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        self._bindings = tuple(sorted(bindings))
        self._answers.clear()

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        if not self._bindings and self._is_open and not self._closed:
            return True
        question = (principal, operation, resource)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            is_open = self._is_open and resource.type not in self._closed
            decide = is_allowed_somewhere if resource == SOME_TOPIC else is_allowed
            answer = self._answers[question] = str(principal) in self._super_users or decide(
                self._bindings, principal, operation, resource, is_open=is_open
            )
        return answer


def is_allowed(
    bindings: Iterable[AclBinding],
    principal: Principal,
    operation: Operation,
    resource: Resource,
    *,
    is_open: bool = True,
) -> bool:
    about = [
        binding for binding in bindings if binding.resource_type is resource.type and _is_about(binding, resource.name)
    ]
    if not about:
        return is_open
    own = [binding for binding in about if binding.principal in (str(principal), EVERYBODY)]
    exact = {operation, Operation.ALL}
    if any(binding.permission is Permission.DENY and binding.operation in exact for binding in own):
        return False
    enough = exact | _IMPLIED_BY.get(operation, frozenset())
    return any(binding.permission is Permission.ALLOW and binding.operation in enough for binding in own)


def is_allowed_somewhere(
    bindings: Iterable[AclBinding], principal: Principal, operation: Operation, kind: Resource, *, is_open: bool
) -> bool:
    """To some thing of this kind, which need not exist yet: one that a rule names, or one that no rule names."""
    about = [binding for binding in bindings if binding.resource_type is kind.type]
    if is_allowed(about, principal, operation, Resource(kind.type, _NO_NAME), is_open=is_open):
        return True
    own = [binding for binding in about if binding.principal in (str(principal), EVERYBODY)]
    names = {_sample_name(binding) for binding in own if binding.permission is Permission.ALLOW}
    return any(is_allowed(own, principal, operation, Resource(kind.type, name)) for name in names)


def _sample_name(binding: AclBinding) -> str:
    """Of something that the rule names, and no rule names alone if there is more of it."""
    if binding.pattern_type is PatternType.PREFIXED:
        return binding.resource_name + _NO_NAME
    return _NO_NAME if binding.resource_name == EVERYTHING else binding.resource_name
