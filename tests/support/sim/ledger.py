"""What clients have done and what they were told: the truth that a node's logs are held against.

Values are written once each, and each names its producer and its number: `plain-0/17`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Place = tuple[int, int]


@dataclass(slots=True)
class Message:
    """One value that somebody sent."""

    # A producer that was given up because it no longer knew what had become of a batch has a successor.
    producer: str
    number: int
    partition: int
    is_idempotent: bool
    # Where it is, as its producer was told; None: nobody knows whether it is there.
    offset: int | None = None


@dataclass(slots=True)
class Commits:
    """Of one group on one partition: one after the other."""

    asked: list[int] = field(default_factory=list)
    # How many of them had been asked for when the last one was confirmed that was.
    confirmed_count: int = 0

    def possible(self) -> list[int]:
        """What a node may say that is committed: what was confirmed last, or what was asked for later."""
        return self.asked[max(self.confirmed_count - 1, 0) :] or [-1]


@dataclass(slots=True)
class Ledger:
    messages: dict[bytes, Message] = field(default_factory=dict)
    # What readers were given, by partition and offset; once given, it stays.
    seen: dict[Place, bytes] = field(default_factory=dict)
    commits: dict[int, Commits] = field(default_factory=dict)

    @property
    def acknowledged(self) -> dict[bytes, Message]:
        return {value: message for value, message in self.messages.items() if message.offset is not None}
