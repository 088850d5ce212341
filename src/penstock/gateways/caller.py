"""The doors that callers come in by. Who they are: `domain/security/caller`."""

from __future__ import annotations

from typing import Final

from penstock.domain.security.caller import Caller

__all__ = ["CLUSTER", "HTTP", "KAFKA", "SQS", "UNKNOWN", "Caller"]

# The doors that clients come in by. SQS is spoken on the HTTP port, and is a door of its own.
KAFKA: Final = "kafka"
HTTP: Final = "http"
SQS: Final = "sqs"
# The one that other nodes of the cluster come in by.
CLUSTER: Final = "cluster"
# An address that nobody knows.
UNKNOWN: Final = "?"
