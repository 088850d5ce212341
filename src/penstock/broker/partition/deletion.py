"""Records that somebody asks to be gone: the start of a partition's log moves, here and then on every replica."""

from __future__ import annotations

import asyncio

from penstock.base.log_events import get_logger
from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.errors import StorageError

log_events = get_logger("partition")


async def delete_before(shell: PartitionShell, offset: int) -> int | ReadProblem:
    """-1: everything that is readable. The start as it is then, durably."""
    if not shell.is_leading:
        return ReadProblem.NOT_LEADER
    log = shell.log
    if log.failure is not None:
        return ReadProblem.OFFLINE
    if "delete" not in shell.config.cleanup_policy:
        return ReadProblem.POLICY
    wanted = log.readable_end if offset == -1 else offset
    if not 0 <= wanted <= log.readable_end:
        return ReadProblem.OUT_OF_RANGE
    if wanted > log.log_start:
        try:
            await asyncio.to_thread(log.delete_before(wanted).run)
        except StorageError as error:
            log_events.error("records not deleted", topic=shell.topic, partition=shell.index, error=str(error))
            return ReadProblem.OFFLINE
    return log.log_start


def deleted_everywhere(shell: PartitionShell, start: int) -> Commitment | None:
    """Kept when every replica in sync has said that its log begins there; else an elected one could bring back what was
    deleted. None: this node alone has it. Who waits for it bounds its time."""
    return None if shell.replicated is None else shell.replicated.start_told(start)
