"""What all schedules of a node have in common: where they work, whose producer ids they take, how they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.broker.schedule.limits import ScheduleLimits
from penstock.broker.schedule.pace import MoverPace
from penstock.broker.schedule.reader import RowCache
from penstock.broker.site import Site
from penstock.domain.config.topic import TopicConfig
from penstock.domain.schedule.cron_place import CronPlace


class MoverIds(Protocol):
    async def take(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleContext:
    site: Site
    producer_ids: MoverIds
    cache: RowCache
    pace: MoverPace
    limits: ScheduleLimits
    # By a topic's id; None: it is gone.
    config_of: Callable[[bytes], TopicConfig | None]
    # By a topic's id and the name of a schedule: which partition fires it; None: nobody was named yet.
    place_of: Callable[[bytes, str], CronPlace | None]
