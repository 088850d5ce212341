"""What has to be done from time to time: checkpoint, retention, room on the disk, logs that lost their disk.

Each job decides on the loop, where the logs are, and does its file work in a thread: the second half touches nothing
that a request could see half-changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.broker_config import BrokerConfig
from penstock.broker.partition_shell import PartitionShell
from penstock.storage.log_store import LogStore

log = get_logger("upkeep")


class Upkeep:
    def __init__(
        self,
        shells: Callable[[], Iterable[PartitionShell]],
        store: LogStore,
        *,
        clock: Clock,
        tasks: TaskSupervisor,
        config: BrokerConfig,
    ) -> None:
        self._shells = shells
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._config = config

    def start(self) -> None:
        config = self._config
        self._tasks.every(config.checkpoint_ms, "checkpoint", self._checkpoint)
        self._tasks.every(config.retention_check_ms, "retention", self._apply_retention)
        self._tasks.every(config.free_space_check_ms, "free space", self._check_free_space)
        self._tasks.every(config.recovery_retry_ms, "recovery of offline logs", self._recover_offline)

    async def _checkpoint(self) -> None:
        pass

    async def _apply_retention(self) -> None:
        pass

    async def _check_free_space(self) -> None:
        pass

    async def _recover_offline(self) -> None:
        pass

    def remove_topic(self, topic_id: bytes) -> None:
        pass
