"""Who asks: made once by the door that a client came in by, and handed down with each of its requests."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.security.access import Principal

# The doors that clients come in by. SQS is spoken on the HTTP port, and is a door of its own.
KAFKA: Final = "kafka"
HTTP: Final = "http"
SQS: Final = "sqs"
# The one that other nodes of the cluster come in by.
CLUSTER: Final = "cluster"
# An address that nobody knows.
UNKNOWN: Final = "?"


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
