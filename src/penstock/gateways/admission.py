"""Whether a caller may do what it asks for, and what its requests cost: asked by every door, and answered here alone.

    may       for each resource of each request, from memory and at once
    charge    for what a caller has sent, once for everything that came together

Charges are counted and delay nobody. A limit for a tenant or a user belongs into `charge`, and what a login allows into
`may`: no door asks the rules itself (a tidy test looks).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.domain.security.access import Authorizer, Operation, Resource, authorized_operations
from penstock.gateways.caller import HTTP, KAFKA, SQS, Caller


@dataclass(slots=True)
class Account:
    """Of one door, since the start. Plain integers, read when the metrics page is asked for."""

    request_count: int = 0
    received_bytes: int = 0
    denied_count: int = 0


class Admission:
    def __init__(self, authorizer: Authorizer, doors: Iterable[str] = (KAFKA, HTTP, SQS)) -> None:
        self._authorizer = authorizer
        # One for each door, so there are never more.
        self.accounts = {door: Account() for door in doors}

    def may(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        is_allowed = self._authorizer.authorize(caller.principal, operation, resource)
        if not is_allowed:
            self.accounts[caller.door].denied_count += 1
        return is_allowed

    def operations(self, caller: Caller, resource: Resource) -> int:
        """What a caller may do to a thing, as Kafka's bits. It did not ask to do any of it, so nothing is denied."""
        return authorized_operations(self._authorizer, caller.principal, resource)

    def charge(self, caller: Caller, request_count: int, received_bytes: int) -> None:
        """By place and not by name: a producer's shortest way pays for it."""
        account = self.accounts[caller.door]
        account.request_count += request_count
        account.received_bytes += received_bytes
