"""What has to be done from time to time: checkpoint, retention, compaction, a look for rot, room on the disk, logs
without their disk.

Each job decides on the loop, where the logs are, and does its file work in a thread: the second half touches nothing
that a request could see half-changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from penstock.base.chance import Chance
from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.config import BrokerConfig
from penstock.broker.partition.comeback import come_back
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.errors import StorageError
from penstock.storage.repair.scrubber import LogScrubber
from penstock.storage.store import LogStore, TopicRemoval

log = get_logger("upkeep")

# Some microseconds each: requests are let in between, or 10,000 partitions would hold the loop for 50 ms.
SHELLS_AT_ONCE: Final = 100
# An archive that stands still is told of when retention first waits for it, and then so often.
HELD_WARNING_MS: Final = 3_600_000

# They are kept for a day: an hour more does no harm, and each look lists the directory of every topic.
STRAYS_CHECK_MS: Final = 3_600_000

# Group, topic and partition: how far the group says that it has read; None: it has said nothing.
CommittedOffset = Callable[[str, str, int], int | None]


def nothing_committed(_group: str, _topic: str, _partition: int) -> int | None:
    return None


async def nothing_more() -> None:
    pass


class Upkeep:
    def __init__(
        self,
        shells: Callable[[], Iterable[PartitionShell]],
        store: LogStore,
        *,
        clock: Clock,
        chance: Chance,
        tasks: TaskSupervisor,
        config: BrokerConfig,
    ) -> None:
        self._shells = shells
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._config = config
        # Groups come after the broker: until then nothing is known to be archived, and nothing that waits goes.
        self.committed_offset: CommittedOffset = nothing_committed
        self._warned_ms: dict[str, int] = {}
        # Numbers that nobody outside can know: keys are told apart by hashes made with them.
        self._cleaner = LogCleaner(store, clock, seeds=(chance.below(1 << 64), chance.below(1 << 64)))

        self._scrubber = LogScrubber(store, clock)

    def start(self) -> None:
        config = self._config
        self._store.free_space_check()
        self._tasks.every(config.checkpoint_ms, "checkpoint", self._store.checkpoint)
        self._tasks.every(config.retention_check_ms, "retention", self.apply_retention)
        self._tasks.every(config.cleaner_check_ms, "compaction", self.clean_logs)
        self._tasks.every(config.scrub_check_ms, "scrub", self.scrub_logs)
        self._tasks.every(config.free_space_check_ms, "free space", self._check_free_space)
        self._tasks.every(config.recovery_retry_ms, "recovery of offline logs", self.recover_offline)
        self._tasks.every(STRAYS_CHECK_MS, "strays", self.remove_strays)

    async def apply_retention(self) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._store.context.config.producer_expiration_ms
        held: dict[str, list[PartitionShell]] = {}
        for count, shell in enumerate(list(self._shells())):
            if count % SHELLS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not shell.is_leading:
                # What goes is decided by who leads, and followed: clocks differ, and so does what each of them knows.
                shell.log.roll_if_due(now_ms)
                continue
            shell.log.expire_producers(now_ms, expiration_ms=expiration_ms)
            removal = shell.log.apply_retention(now_ms, self._archived_end(shell))
            if shell.log.held_bytes:
                held.setdefault(shell.topic, []).append(shell)
            if removal is None:
                continue
            if shell.replicated is not None:
                # Or followers would keep it until more is written, which may be never.
                shell.replicated.start_told(shell.log.log_start)
            try:
                await asyncio.to_thread(removal.run)
            except StorageError as error:
                log.error("retention failed", topic=shell.topic, partition=shell.index, error=str(error))

        self._warn_of_held(held, now_ms)

    def _archived_end(self, shell: PartitionShell) -> int | None:
        """None: the topic does not wait for an archive."""
        group = shell.log.config.archive_group
        return None if group is None else self.committed_offset(group, shell.topic, shell.index) or 0

    def _warn_of_held(self, held: dict[str, list[PartitionShell]], now_ms: int) -> None:
        self._warned_ms = {topic: told_ms for topic, told_ms in self._warned_ms.items() if topic in held}
        for topic, shells in sorted(held.items()):
            if now_ms - self._warned_ms.get(topic, -HELD_WARNING_MS) < HELD_WARNING_MS:
                continue
            self._warned_ms[topic] = now_ms
            log.warning(
                "retention waits for the archive",
                topic=topic,
                group=shells[0].log.config.archive_group,
                partitions=len(shells),
                bytes=sum(shell.log.held_bytes for shell in shells),
            )

    async def clean_logs(self) -> None:
        """One log after another, as long as one needs it."""
        while await self._cleaner.run() is not None:
            pass

    async def scrub_logs(self) -> None:
        """Takes hours on a large disk: it is slow by intention."""
        await self._scrubber.run()

    async def _check_free_space(self) -> None:
        # In a thread: it opens a file, and on a frozen file system that waits.
        await asyncio.to_thread(self._store.free_space_check)

    async def remove_strays(self) -> None:
        """Logs that nobody has assigned to this node for a day."""
        gone = await asyncio.to_thread(self._store.remove_strays)
        if gone:
            log.info("strays removed", logs=len(gone))

    async def recover_offline(self) -> None:
        """Reads every log again that a failed write or sync took offline, and serves it if nothing promised is gone."""
        for shell in [shell for shell in self._shells() if shell.is_offline and not shell.has_lost]:
            async with shell.log.maintenance.alone():
                await self._recover(shell)

    async def _recover(self, shell: PartitionShell) -> None:
        if not shell.is_offline:
            return  # whoever had the log before has read it again
        try:
            recovered = await asyncio.to_thread(self._store.recover_log, shell.log)
        except (OSError, StorageError) as error:
            log.warning("log still offline", topic=shell.topic, partition=shell.index, error=str(error))
            return
        come_back(shell, recovered)

    def remove_topics(self, topic_ids: Iterable[bytes], done: Callable[[], Awaitable[None]] = nothing_more) -> None:
        """`done` when their files are gone."""
        removals = [self._store.remove_topic(topic_id) for topic_id in topic_ids]
        self._tasks.start("topic removal", self._remove_files(removals, done))

    async def _remove_files(self, removals: Iterable[TopicRemoval], done: Callable[[], Awaitable[None]]) -> None:
        for removal in removals:
            await asyncio.to_thread(removal.run)
        await done()
