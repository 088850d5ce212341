"""The body that a queue is defined with: the options of `domain/queue/definition`, their limits told beforehand."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.codec.http.fields import NUMBER_MAX, Body
from penstock.domain.queue.definition import QueueOptions, Start
from penstock.domain.queue.values import BackOff, BackOffKind, Ordering
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX
from penstock.gateways.rest.messages import LEASE_MS_MAX, LeaseMs

Milliseconds = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)]
Number = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]


class BackOffSettings(Body, frozen=True):
    kind: BackOffKind = BackOffKind.FIXED
    initial_ms: Milliseconds = 0
    ms_max: Milliseconds = 3_600_000
    jitter_share: Annotated[float, Meta(ge=0, le=1)] = 0.0


class QueueSettings(Body, frozen=True):
    """What is left out is the default, whatever it was before."""

    ordering: Ordering = Ordering.NONE
    lease_ms: LeaseMs = 30_000
    # 0: without end.
    deliveries_max: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 5
    back_off: BackOffSettings = BackOffSettings()
    in_flight_max: Number = 1_000_000
    in_flight_per_consumer_max: Number = 1_000_000
    # Left out: `<topic>-dlq`; empty: nowhere, what is rejected or exhausted is finished.
    dead_letter_topic: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX, pattern="^[A-Za-z0-9._-]*$")] | None = None
    keeps_expired: bool = False
    start: Start = Start.EARLIEST
    is_committed_only: bool = True
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    def options(self) -> QueueOptions:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        back_off = BackOff(**{name: getattr(self.back_off, name) for name in BackOffSettings.__struct_fields__})
        return msgspec.structs.replace(QueueOptions(), **{**fields, "back_off": back_off})
