"""Delegation tokens: who may ask for one, and that there are none.

A node answers as Kafka does where no secret for tokens is set. Who has not logged in may not ask at all, and for
somebody else only those who may create that user's tokens.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.codec.kafka.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from penstock.codec.kafka.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from penstock.codec.kafka.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from penstock.domain.security.access import Operation, Principal, Resource, ResourceType
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext

USER: Final = "User"
# What Kafka tells instead of a time, to who may not ask and to who may.
NO_TIME_MS: Final = -1
OFF_TIME_MS: Final = 0


class DelegationTokensHandler:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def create_delegation_token(
        self, request: CreateDelegationTokenRequest, context: RequestContext
    ) -> CreateDelegationTokenResponse:
        requester = context.caller.principal
        name = request.owner_principal_name
        owner = Principal(request.owner_principal_type or "", name) if name else requester
        code = self._creation_problem(request, owner, context)
        return CreateDelegationTokenResponse(
            error_code=code,
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=requester.kind,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=_time_ms(code),
            expiry_timestamp_ms=_time_ms(code),
            max_timestamp_ms=_time_ms(code),
        )

    def _creation_problem(
        self, request: CreateDelegationTokenRequest, owner: Principal, context: RequestContext
    ) -> ErrorCode:
        problem = _problem(context)
        if problem is not ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
            return problem
        if str(owner) != str(context.caller):
            resource = Resource(ResourceType.USER, str(owner))
            if not self._admission.may(context.caller, Operation.CREATE_TOKENS, resource):
                return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        if any(renewer.principal_type != USER for renewer in request.renewers):
            return ErrorCode.INVALID_PRINCIPAL_TYPE
        return problem

    def renew_delegation_token(
        self,
        request: RenewDelegationTokenRequest,  # noqa: ARG002
        context: RequestContext,
    ) -> RenewDelegationTokenResponse:
        code = _problem(context)
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_time_ms(code))

    def expire_delegation_token(
        self,
        request: ExpireDelegationTokenRequest,  # noqa: ARG002
        context: RequestContext,
    ) -> ExpireDelegationTokenResponse:
        code = _problem(context)
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_time_ms(code))

    def describe_delegation_token(
        self,
        request: DescribeDelegationTokenRequest,  # noqa: ARG002
        context: RequestContext,
    ) -> DescribeDelegationTokenResponse:
        return DescribeDelegationTokenResponse(error_code=_problem(context))


def _problem(context: RequestContext) -> ErrorCode:
    if context.connection is None or context.connection.login is None:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def _time_ms(code: ErrorCode) -> int:
    return OFF_TIME_MS if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else NO_TIME_MS
