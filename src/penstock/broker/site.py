"""Where a part works: the settings it needs, time and chance, tasks, threads, metrics and the node it is on.

One value, made once by the assembly and handed to every part. A test makes its own, with a clock that stands still or
threads that it holds back.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.base.chance import SYSTEM_CHANCE, Chance
from penstock.base.clock import Clock
from penstock.base.metrics import CollectorRegistry
from penstock.base.tasks import TaskSupervisor
from penstock.broker.config import BrokerConfig
from penstock.domain.group.values import GroupConfig
from penstock.domain.schedule.machine import ScheduleConfig
from penstock.domain.share.machine import ShareGroupConfig
from penstock.domain.transaction.rules import TransactionSettings


class SiteConfig(msgspec.Struct, frozen=True):
    """The settings of what lies below the doors; each part knows its own section."""

    broker: BrokerConfig = BrokerConfig()
    groups: GroupConfig = GroupConfig()
    transactions: TransactionSettings = TransactionSettings()
    share_groups: ShareGroupConfig = ShareGroupConfig()
    schedules: ScheduleConfig = ScheduleConfig()


_DEFAULTS: Final = SiteConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    clock: Clock
    tasks: TaskSupervisor
    # For what waits for the disk: the loop must not.
    readers: Executor
    config: SiteConfig = _DEFAULTS
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    node_id: int = 1
    chance: Chance = SYSTEM_CHANCE
