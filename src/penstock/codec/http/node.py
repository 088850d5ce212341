"""What a node tells of itself: written by the node, read by the tools."""

from __future__ import annotations

import msgspec


class NodeFacts(msgspec.Struct, frozen=True):
    version: str
    # Processor time of the node's process since it began, user and system together: the difference of two answers is
    # what came in between has cost.
    cpu_seconds: float
