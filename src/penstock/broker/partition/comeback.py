"""A log that its disk had failed, read again: served, unless something that was promised is gone."""

from __future__ import annotations

from penstock.base.log_events import get_logger
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.log.recovered import RecoveredLog

log_events = get_logger("partition")


def come_back(shell: PartitionShell, recovered: RecoveredLog) -> None:
    """Recovery has read the log from the disk again."""
    if shell.is_closed:
        return  # its topic was deleted while it was read
    readable_end = shell.log.readable_end
    if recovered.log_end < readable_end or recovered.lost_end is not None:
        shell.has_lost = True
        log_events.error(
            "acknowledged records are gone",
            topic=shell.topic,
            partition=shell.index,
            promised_end=readable_end,
            found_end=recovered.log_end,
            advice="stop the node and look at it with `penstock log verify`",
        )
        return
    shell.adopt(recovered)
    log_events.info("log back online", topic=shell.topic, partition=shell.index, log_end=shell.log.log_end)
