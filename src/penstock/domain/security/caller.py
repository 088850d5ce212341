"""Who asks: made once by the door that a client came in by, and handed down with each of its requests, to other nodes
as well."""

from __future__ import annotations

import msgspec

from penstock.domain.security.access import Principal


class Caller(msgspec.Struct, frozen=True):
    # Who it is, after a login; anonymous where nobody has to log in.
    principal: Principal
    # HOST:PORT on the client's side.
    address: str
    door: str

    @property
    def tenant(self) -> str | None:
        return self.principal.tenant

    def __str__(self) -> str:
        """As a refusal names it."""
        return str(self.principal)
