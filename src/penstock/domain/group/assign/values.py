"""What a server-side assignor is told, and the assignors by name. Each is a function: the same facts, the same answer.

Rules for every assignor:
- a member gets partitions of topics it is subscribed to, and no others;
- every partition of a subscribed topic has exactly one owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from penstock.domain.group.values import NO_PARTITIONS, Assignment


class MemberFacts(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    # Sorted topic ids, of topics that exist.
    topics: tuple[bytes, ...]
    # What it was to have until now.
    previous: Assignment = NO_PARTITIONS


class Assignor(Protocol):
    def __call__(
        self, members: Mapping[str, MemberFacts], partition_counts: Mapping[bytes, int]
    ) -> dict[str, Assignment]: ...
