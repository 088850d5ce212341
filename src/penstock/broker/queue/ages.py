"""How long the oldest message of each queue has been waiting: read from the log from time to time, not when asked.

A page of metrics must not read the log, and the log is where a message's time stands. So the time of the first
unfinished message is looked up after it has changed, a few queues at a time, and the age is reckoned from it when
somebody asks. It is at most one round of upkeep behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.long_work import Pace
from penstock.broker.partition.read import PartitionRead
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.shell import QueueShell
from penstock.codec.batch.header import walk_headers
from penstock.storage.errors import Damage

# Each is a read of one batch, now and then from the disk.
LOOKED_UP_AT_ONCE: Final = 200


class _Oldest(msgspec.Struct, frozen=True):
    offset: int
    timestamp_ms: int


class QueueAges:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By shell and group. What is not there has nothing waiting, as far as is known.
        self._oldest: dict[tuple[QueueShell, str], _Oldest] = {}

    def age_ms(self, shell: QueueShell, group: str) -> int:
        """Of the oldest message that is not finished: never seen, waiting or with a consumer. 0: there is none."""
        oldest = self._oldest.get((shell, group))
        return 0 if oldest is None else max(0, self._clock.now_ms() - oldest.timestamp_ms)

    async def refresh(self, shells: Iterable[QueueShell], pace: Pace) -> None:
        known: dict[tuple[QueueShell, str], _Oldest] = {}
        left = LOOKED_UP_AT_ONCE
        for shell in list(shells):
            for group in shell.groups():
                queue = shell.queue(group)
                if queue is None or not shell.is_loaded:
                    continue
                offset = max(queue.finished_below, shell.partition.log_start)
                before = self._oldest.get((shell, group))
                if offset >= shell.partition.readable_end:
                    continue
                if left > 0 and (before is None or before.offset != offset):
                    left -= 1
                    before = await _look_up(shell.partition, offset) or before
                if before is not None:
                    known[shell, group] = before
                await pace.rest_if_due()
            await pace.rest_if_due()
        self._oldest = known


async def _look_up(partition: PartitionShell, offset: int) -> _Oldest | None:
    """One batch is enough: its first record's time is near that of every other."""
    read = partition.read(offset, bytes_max=1)
    if read.cold is not None:
        loaded = await asyncio.to_thread(read.cold.load)
        if isinstance(loaded, Damage):
            return None
        read = PartitionRead(records=loaded)
    for _, header in walk_headers(read.records):
        return _Oldest(offset, header.base_timestamp)
    return None
