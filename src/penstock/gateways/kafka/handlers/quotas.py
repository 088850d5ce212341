"""DescribeClientQuotas and AlterClientQuotas: nobody has limits, and none can be set yet.

A limit that would be stored and not kept would be worse than none: it is refused, entry by entry. To take one away that
is not there is no error, as with Kafka, so that what tools make of "no limits" is done.
"""

from __future__ import annotations

from typing import Final

from penstock.base.long_work import Steps
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_client_quotas as altering
from penstock.codec.kafka.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from penstock.codec.kafka.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext

# What limits can be set for, and how a filter may choose among them.
QUOTA_KINDS: Final = ("user", "client-id", "ip")
EXACT, BY_DEFAULT, ANY = 0, 1, 2
# Which limits those can have.
CLIENT_LIMITS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
ADDRESS_LIMITS: Final = ("connection_creation_rate",)
WHOLE: Final = ("producer_byte_rate", "consumer_byte_rate", "connection_creation_rate")
# Of one entry, which is looked at in one go: far more than there are limits.
CHANGES_MAX: Final = 100

Problem = tuple[ErrorCode, str]


class QuotasHandler:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> DescribeClientQuotasResponse:
        if not self._admission.may(context.caller, Operation.DESCRIBE_CONFIGS, CLUSTER):
            reason = f"{context.caller} may not see limits"
            return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, reason)
        kinds: set[str] = set()
        # Each kind once, and there are three: more than that is refused before it is looked at.
        for component in request.components[: len(QUOTA_KINDS) + 1]:
            refused = _component_problem(component, kinds)
            if refused is not None:
                return refused
            kinds.add(component.entity_type)
        if "ip" in kinds and len(kinds) > 1:
            return _refused(ErrorCode.INVALID_REQUEST, "limits of an ip are not combined with those of others")
        # Nobody has limits yet.
        return DescribeClientQuotasResponse(entries=())

    def alter_client_quotas(
        self, request: AlterClientQuotasRequest, context: RequestContext
    ) -> Steps[AlterClientQuotasResponse]:
        refused: Problem | None = None
        if not self._admission.may(context.caller, Operation.ALTER_CONFIGS, CLUSTER):
            refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.caller} may not change limits"
        results = []
        for entry in request.entries:
            code, reason = refused or _entity_problem(entry) or _limits_problem(entry) or (ErrorCode.NONE, None)
            results.append(altering.EntryResult(code, reason, entry.entity))
            yield
        return AlterClientQuotasResponse(entries=results)


def _entity_problem(entry: altering.EntryData) -> Problem | None:
    if not entry.entity:
        return ErrorCode.INVALID_REQUEST, "nobody is named whose limits they are"
    if len(entry.entity) > len(QUOTA_KINDS):
        return ErrorCode.INVALID_REQUEST, f"{len(entry.entity)} names, but there are {len(QUOTA_KINDS)} kinds of them"
    for each in entry.entity:
        kind = each.entity_type
        if kind not in QUOTA_KINDS:
            return ErrorCode.INVALID_REQUEST, f"{kind[:80]!r}: there are limits of {', '.join(QUOTA_KINDS)}"
        if each.entity_name == "":
            return ErrorCode.INVALID_REQUEST, f"an empty name of a {kind}; null is the default of all"
    kinds = {each.entity_type for each in entry.entity}
    if "ip" in kinds and len(kinds) > 1:
        return ErrorCode.INVALID_REQUEST, "limits of an ip are not combined with those of others"
    return None


def _limits_problem(entry: altering.EntryData) -> Problem | None:
    if len(entry.ops) > CHANGES_MAX:
        return ErrorCode.INVALID_REQUEST, f"{len(entry.ops)} changes in one entry, at most {CHANGES_MAX} are taken"
    seen: set[str] = set()
    limits = ADDRESS_LIMITS if entry.entity[0].entity_type == "ip" else CLIENT_LIMITS
    for change in entry.ops:
        key, value = change.key[:80], change.value
        if change.key in seen:
            return ErrorCode.INVALID_REQUEST, f"{key!r} is named more than once"
        seen.add(change.key)
        if change.remove:
            continue
        if change.key not in limits:
            return ErrorCode.INVALID_REQUEST, f"{key!r}: the limits are {', '.join(limits)}"
        if not value > 0:
            return ErrorCode.INVALID_REQUEST, f"{key} of {value}: a limit is above 0"
        if change.key in WHOLE and not value.is_integer():
            return ErrorCode.INVALID_REQUEST, f"{key} of {value}: it is a whole number"
    if all(change.remove for change in entry.ops):
        return None
    return ErrorCode.UNSUPPORTED_VERSION, "this node does not limit clients yet, so no limit was set"


def _component_problem(component: ComponentData, seen: set[str]) -> DescribeClientQuotasResponse | None:
    kind = component.entity_type
    if not kind:
        return _refused(ErrorCode.INVALID_REQUEST, "a filter without a kind of entity")
    if kind in seen:
        return _refused(ErrorCode.INVALID_REQUEST, f"{kind[:80]!r} is named more than once")
    if kind not in QUOTA_KINDS:
        reason = f"{kind[:80]!r}: there are limits of {', '.join(QUOTA_KINDS)}"
        return _refused(ErrorCode.UNSUPPORTED_VERSION, reason)
    if component.match_type not in (EXACT, BY_DEFAULT, ANY):
        reason = f"match type {component.match_type}: there are exact (0), default (1) and any (2)"
        return _refused(ErrorCode.INVALID_REQUEST, reason)
    if (component.match_type == EXACT) == (component.match is None):
        return _refused(ErrorCode.INVALID_REQUEST, "a name belongs to an exact match, and to no other")
    return None


def _refused(code: ErrorCode, reason: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=reason, entries=None)
