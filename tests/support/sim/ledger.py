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
class Ledger:
    """Of one topic."""

    messages: dict[bytes, Message] = field(default_factory=dict)
    # What readers were given, by partition and offset; once given, it stays.
    seen: dict[Place, bytes] = field(default_factory=dict)

    @property
    def acknowledged(self) -> dict[bytes, Message]:
        return {value: message for value, message in self.messages.items() if message.offset is not None}


@dataclass(slots=True)
class Written:
    """One value of a register, from when it was asked for until it was confirmed."""

    value: int
    asked_at: float
    confirmed_at: float | None = None


@dataclass(slots=True)
class Register:
    """A position that several write, one after the other or at the same time."""

    written: list[Written] = field(default_factory=list)

    def ask(self, value: int, now: float) -> Written:
        self.written.append(Written(value, now))
        return self.written[-1]

    def possible(self, *, asked_after: float = float("inf")) -> list[int]:
        """What a reader may find: all but what was certainly written over when it asked. Nothing: -1."""
        confirmed = [each for each in self.written if each.confirmed_at is not None]
        over = [each for each in confirmed if each.confirmed_at is not None and each.confirmed_at < asked_after]
        last_asked_at = max((each.asked_at for each in over), default=-1.0)
        found = [each.value for each in self.written if each.confirmed_at is None or each.confirmed_at >= last_asked_at]
        return found if over else [-1, *found]
