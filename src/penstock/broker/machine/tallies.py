"""How often something was done with each kind of machine, and how long it took: rehearsals, takeovers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    count: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0


class Tallies:
    """By what the machines are: `groups`, `transactions`, `queues`, `schedule`."""

    def __init__(self) -> None:
        self.by_subject: dict[str, Tally] = {}

    def add(self, subject: str, seconds: float) -> None:
        tally = self.by_subject.setdefault(subject, Tally())
        tally.count += 1
        tally.seconds += seconds
        tally.seconds_max = max(tally.seconds_max, seconds)
