"""DescribeUserScramCredentials, AlterUserScramCredentials: users' salted passwords, by Kafka's admin requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from penstock.base.long_work import Steps
from penstock.cluster.catalog.access import AccessCatalog
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.codec.kafka.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from penstock.domain.security.access import CLUSTER, Operation
from penstock.domain.security.scram import Mechanism, ScramCredential, make_credential
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.store import STORE_FAILED_CODE, StoreFailed, ask_store

_MECHANISMS = {mechanism.value: mechanism for mechanism in Mechanism if mechanism is not Mechanism.UNKNOWN}


Change = TypeVar("Change", ScramCredentialDeletion, ScramCredentialUpsertion)


class _Refused(msgspec.Struct, frozen=True):
    code: ErrorCode
    reason: str


class UsersHandler:
    def __init__(
        self, access: AccessCatalog, admission: Admission, is_configured: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._access = access
        self._is_configured = is_configured
        self._admission = admission

    # DescribeUserScramCredentials

    def describe_user_scram_credentials(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> Steps[DescribeUserScramCredentialsResponse]:
        if not self._admission.may(context.caller, Operation.DESCRIBE, CLUSTER):
            code, reason = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.caller} may not see users"
            return DescribeUserScramCredentialsResponse(error_code=code, error_message=reason)
        # None and nobody named: all of them.
        counts = Counter(user.name for user in request.users or ())
        results = []
        for name, count in (counts or dict.fromkeys(self._access.users(), 1)).items():
            results.append(self._describe(name, count))
            yield
        return DescribeUserScramCredentialsResponse(results=results)

    def _describe(self, name: str, count: int) -> DescribeUserScramCredentialsResult:
        if count > 1:
            reason = f"user {name[:80]!r} is named more than once"
            return DescribeUserScramCredentialsResult(name, ErrorCode.DUPLICATE_RESOURCE, reason)
        credentials = self._access.credentials(name)
        if not credentials:
            reason = f"user {name[:80]!r} has no credential"
            return DescribeUserScramCredentialsResult(name, ErrorCode.RESOURCE_NOT_FOUND, reason)
        infos = [CredentialInfo(each.mechanism, each.iterations) for _, each in sorted(credentials.items())]
        return DescribeUserScramCredentialsResult(user=name, credential_infos=infos)

    # AlterUserScramCredentials

    async def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest, context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        """One result for each user: all of what is asked for that user is done, or nothing."""
        named = [(each.name, each.mechanism) for each in request.deletions]
        named += [(each.name, each.mechanism) for each in request.upsertions]
        names = list(dict.fromkeys(name for name, _ in named))
        if not self._admission.may(context.caller, Operation.ALTER, CLUSTER):
            refused = _Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.caller} may not change users")
            return AlterUserScramCredentialsResponse(results=[_result(name, refused) for name in names])
        deletions, upsertions = _by_name(request.deletions), _by_name(request.upsertions)
        twice = {name for (name, _), count in Counter(named).items() if count > 1}
        results = []
        pace = context.pace()
        for name in names:
            await pace.rest_if_due()
            changed: list[ScramCredential] | _Refused = _Refused(
                ErrorCode.DUPLICATE_RESOURCE, f"a credential of user {name[:80]!r} is changed more than once"
            )
            if name not in twice:
                changed = self._change(name, deletions.get(name, ()), upsertions.get(name, ()))
            results.append(_result(name, await self._store(name, changed)))
        return AlterUserScramCredentialsResponse(results=results)

    def _change(
        self,
        name: str,
        deletions: Sequence[ScramCredentialDeletion],
        upsertions: Sequence[ScramCredentialUpsertion],
    ) -> list[ScramCredential] | _Refused:
        """The user's credentials as they should be."""
        if not name:
            return _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user has a name, and this one is empty")
        if self._is_configured(name):
            # It would be kept and never looked at: a changed password must not leave the old one in force unnoticed.
            reason = f"the password of {name[:80]!r} stands in the configuration of the node, change it there"
            return _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)
        credentials = dict(self._access.credentials(name))
        for deletion in deletions:
            mechanism = _MECHANISMS.get(deletion.mechanism)
            if mechanism is None:
                return _unknown_mechanism(deletion.mechanism)
            if credentials.pop(mechanism, None) is None:
                return _Refused(ErrorCode.RESOURCE_NOT_FOUND, f"user {name[:80]!r} has no {mechanism.name}")
        for upsertion in upsertions:
            mechanism = _MECHANISMS.get(upsertion.mechanism)
            if mechanism is None:
                return _unknown_mechanism(upsertion.mechanism)
            made = make_credential(
                mechanism,
                iterations=upsertion.iterations,
                salt=bytes(upsertion.salt),
                salted_password=bytes(upsertion.salted_password),
            )
            if isinstance(made, str):
                return _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, made)
            credentials[mechanism] = made
        return [credential for _, credential in sorted(credentials.items())]

    async def _store(self, name: str, changed: list[ScramCredential] | _Refused) -> _Refused | None:
        if isinstance(changed, _Refused):
            return changed
        outcome = await ask_store(self._access.replace_credentials(name, changed))
        return _Refused(STORE_FAILED_CODE, outcome.reason) if isinstance(outcome, StoreFailed) else None


def _by_name(changes: Sequence[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for each in changes:
        found.setdefault(each.name, []).append(each)
    return found


def _unknown_mechanism(number: int) -> _Refused:
    return _Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {number} is not known")


def _result(name: str, refused: _Refused | None) -> AlterUserScramCredentialsResult:
    if refused is None:
        return AlterUserScramCredentialsResult(name)
    return AlterUserScramCredentialsResult(name, refused.code, refused.reason)
