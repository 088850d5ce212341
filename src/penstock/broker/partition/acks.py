"""What the sender of a batch waits for before it is told that the batch was taken.

    all    everybody in sync has it, and no change of the leader can lose it: everything that this node writes by
           itself, and what HTTP and SQS bring
    own    this replica has done what the topic asks of a replica: lost with its leader, as the sender was told

On a partition with one replica both are the same.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Acks(msgspec.Struct, frozen=True, gc=False):
    is_all: bool = True
    # After which the sender is told that nobody knows; None: it waits for as long as it takes.
    timeout_ms: int | None = None


ALL: Final = Acks()
