"""Who may do what, for tests of one permission at a time."""

from __future__ import annotations

from penstock.domain.security.access import CLUSTER, Operation, Principal, Resource


class AllButOne:
    """Everybody may do all but one thing to the cluster, or to what else is named."""

    def __init__(self, operation: Operation, resource: Resource = CLUSTER) -> None:
        self._operation = operation
        self._resource = resource

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return not (resource == self._resource and operation is self._operation)
