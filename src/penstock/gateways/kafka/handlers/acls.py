"""CreateAcls, DescribeAcls, DeleteAcls: rules about who may do what, by Kafka's admin requests."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import groupby
from typing import Protocol, TypeVar

from penstock.base.long_work import Steps
from penstock.cluster.catalog.access import AccessCatalog
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from penstock.codec.kafka.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.codec.kafka.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from penstock.domain.security.access import CLUSTER, Operation, ResourceType
from penstock.domain.security.acl import AclBinding, AclFilter, PatternType, Permission, check_binding, check_filter
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.store import STORE_FAILED_CODE, StoreFailed, ask_store

E = TypeVar("E", bound=IntEnum)


class AclsHandler:
    def __init__(self, access: AccessCatalog, admission: Admission) -> None:
        self._access = access
        self._admission = admission

    async def create_acls(self, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        """One result for each, in order; what makes no sense does not keep the others from being created."""
        if not self._admission.may(context.caller, Operation.ALTER, CLUSTER):
            refused = AclCreationResult(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _may_not(context, "change"))
            return CreateAclsResponse(results=[refused for _ in request.creations])
        bindings: list[AclBinding] = []
        reasons: list[str | None] = []
        pace = context.pace()
        for creation in request.creations:
            bindings.append(_binding(creation))
            reasons.append(check_binding(bindings[-1]))
            await pace.rest_if_due()
        sound = [binding for binding, reason in zip(bindings, reasons, strict=True) if reason is None]
        outcome = await ask_store(self._access.create_acls(sound))
        created = AclCreationResult()
        if isinstance(outcome, StoreFailed):
            created = AclCreationResult(STORE_FAILED_CODE, outcome.reason)
        return CreateAclsResponse(
            results=[
                created if reason is None else AclCreationResult(ErrorCode.INVALID_REQUEST, reason)
                for reason in reasons
            ]
        )

    def describe_acls(self, request: DescribeAclsRequest, context: RequestContext) -> Steps[DescribeAclsResponse]:
        if not self._admission.may(context.caller, Operation.DESCRIBE, CLUSTER):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return DescribeAclsResponse(error_code=code, error_message=_may_not(context, "see"))
        wanted = _filter(request)
        reason = check_filter(wanted)
        if reason is not None:
            return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=reason)
        found = yield from self._access.matching(wanted)
        return DescribeAclsResponse(resources=(yield from _by_resource(found)))

    async def delete_acls(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        if not self._admission.may(context.caller, Operation.ALTER, CLUSTER):
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            refused = DeleteAclsFilterResult(error_code=code, error_message=_may_not(context, "change"))
            return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
        results = []
        pace = context.pace()
        for asked in request.filters:
            await pace.rest_if_due()
            wanted = _filter(asked)
            reason = check_filter(wanted)
            if reason is not None:
                results.append(DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=reason))
            else:
                results.append(await self._delete(wanted, context))
        return DeleteAclsResponse(filter_results=results)

    async def _delete(self, wanted: AclFilter, context: RequestContext) -> DeleteAclsFilterResult:
        found = await context.work.run(self._access.matching(wanted))
        outcome = await ask_store(self._access.delete_acls(found))
        if isinstance(outcome, StoreFailed):
            return DeleteAclsFilterResult(error_code=STORE_FAILED_CODE, error_message=outcome.reason)
        return DeleteAclsFilterResult(matching_acls=[_deleted(binding) for binding in found])


class _AskedFilter(Protocol):
    """What DescribeAcls asks once and DeleteAcls for each filter."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def _known(kind: type[E], number: int) -> E:
    """A number that a newer client may know becomes UNKNOWN, which is 0 in all of them."""
    return kind(number) if number in kind._value2member_map_ else kind(0)


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        _known(ResourceType, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _known(Operation, creation.operation),
        _known(Permission, creation.permission_type),
    )


def _filter(asked: _AskedFilter) -> AclFilter:
    return AclFilter(
        _known(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        _known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _known(Operation, asked.operation),
        _known(Permission, asked.permission_type),
    )


def _by_resource(bindings: Sequence[AclBinding]) -> Steps[list[DescribeAclsResource]]:
    """Bindings come sorted, so those of one thing stand together."""

    def resource_of(binding: AclBinding) -> tuple[ResourceType, str, PatternType]:
        return binding.resource_type, binding.resource_name, binding.pattern_type

    resources = []
    for (resource_type, name, pattern), members in groupby(bindings, resource_of):
        acls = []
        for each in members:
            acls.append(AclDescription(each.principal, each.host, each.operation, each.permission))
            yield
        resources.append(DescribeAclsResource(resource_type, name, pattern, acls))
    return resources


def _deleted(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def _may_not(context: RequestContext, act: str) -> str:
    return f"{context.caller} may not {act} rules about access"
