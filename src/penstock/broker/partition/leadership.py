"""Under which leadership something was decided: a token that is taken when a partition begins to be led, kept by who
decides, and handed to every append that follows from a decision.

A leader that was replaced without hearing of it goes on deciding. What it decides must not come into a log that
somebody else leads by now, or into one that it leads again and knows less of: the append compares the token with the
log's own epoch, with no `await` in between, and refuses all but the current one.
"""

from __future__ import annotations

import msgspec


class Leadership(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} in epoch {self.epoch}"
