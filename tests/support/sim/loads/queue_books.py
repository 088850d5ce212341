"""What consumers of a queue were given and what they were told: no message is with two, none comes back that was done.

A delivery has a number in its queue and a count of its message. Of one message the counts only grow; the delivery
before must be over when the next one comes: given back, or its lease run out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from support.sim.invariants import (
    ACKED_PRESENT,
    DEAD_LETTER_ONCE,
    NO_PHANTOM,
    ONCE_IF_IDEMPOTENT,
    ONE_LEASE_HOLDER,
    QUEUE_ACK_KEPT,
    check,
)
from support.sim.ledger import Place
from support.sim.reading import Everything


@dataclass(slots=True)
class Delivery:
    number: int
    count: int
    until_ms: int
    # When it was asked for, by the loop's clock: its lease began no earlier.
    asked_at: float = 0.0
    lease_ms: int = 0
    # Its consumer has asked for it to be given back, or to be buried.
    is_given_back: bool = False


@dataclass(slots=True)
class Job:
    """One message of the queue, by its value."""

    is_acknowledged: bool = False
    places: set[Place] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    # Of the delivery that was accepted, and the consumer was told so.
    accepted_count: int = 0
    # Somebody has tried to: whether it counts is not known.
    may_be_accepted: bool = False


@dataclass(slots=True)
class QueueBooks:
    jobs: dict[bytes, Job] = field(default_factory=dict)

    def deliver(self, value: bytes, place: Place, delivery: Delivery, *, highest_ms: int) -> Job:
        """`highest_ms` is the latest time that a node can have thought it was."""
        check(NO_PHANTOM, holds=value in self.jobs, what=f"{value!r} was delivered: nobody sent it")
        job = self.jobs[value]
        job.places.add(place)
        check(ONCE_IF_IDEMPOTENT, holds=len(job.places) == 1, what=f"{value!r} is at {sorted(job.places)}")
        is_new = all(delivery.number != each.number for each in job.deliveries)
        check(ONE_LEASE_HOLDER, holds=is_new, what=f"{value!r} was given out twice with number {delivery.number}")
        is_open = not job.accepted_count or delivery.count <= job.accepted_count
        what = f"{value!r} was accepted, and delivered again: {delivery}"
        check(QUEUE_ACK_KEPT, holds=is_open, what=what)
        for other in job.deliveries:
            is_over = other.is_given_back or other.count > delivery.count or other.until_ms <= highest_ms
            what = f"{value!r} is with two: {other} and {delivery}, and it was {highest_ms} at the most"
            check(ONE_LEASE_HOLDER, holds=is_over, what=what)
        job.deliveries.append(delivery)
        return job

    def check_alone(self, value: bytes, now: float) -> None:
        """No clock has been set meanwhile: by what a consumer knows of time, nobody else has the message before the
        whole of its lease is over, whoever leads by then."""
        *before, last = self.jobs[value].deliveries
        for other in before:
            is_over = other.is_given_back or other.count > last.count or now >= other.asked_at + other.lease_ms / 1000
            what = f"{value!r} is with two {now - other.asked_at:.3f} s after the first asked: {other} and {last}"
            check(ONE_LEASE_HOLDER, holds=is_over, what=what)

    def accept(self, value: bytes, delivery: Delivery) -> None:
        job = self.jobs[value]
        later = [each for each in job.deliveries if each.count > delivery.count]
        what = f"{value!r}: {delivery} was accepted, although {later} came after it"
        check(ONE_LEASE_HOLDER, holds=not later, what=what)
        job.accepted_count = delivery.count

    def check_end(self, jobs: Everything, letters: Everything) -> None:
        """When the queue is empty."""
        for value, job in self.jobs.items():
            is_there = value in jobs.values.values() or not job.is_acknowledged or bool(jobs.rotten)
            check(ACKED_PRESENT, holds=is_there, what=f"{value!r} was confirmed and is not there")
        dead = list(letters.values.values())
        values = list(jobs.values.values())
        for value in values:
            check(ONCE_IF_IDEMPOTENT, holds=values.count(value) == 1, what=f"{value!r} is there more than once")
            job, count = self.jobs[value], dead.count(value)
            what = f"{value!r} is a dead letter {count} times: {job}"
            if job.accepted_count:
                check(DEAD_LETTER_ONCE, holds=count == 0, what=what)
            elif job.may_be_accepted:
                check(DEAD_LETTER_ONCE, holds=count <= 1, what=what)
            else:
                check(DEAD_LETTER_ONCE, holds=count == 1 or bool(letters.damaged), what=what)
