"""The group that shows how far a query is, named for the query without its user saying so.

Spark does not tell the driver's side of a source what the query is called; its tasks can find out (`query_label`). The
two may be on different machines and share nothing but the cluster, so one task of the first batch leaves the name in a
group made up for that, the mailbox, where the driver finds it when the batch is done:

    driver  partitions ── mailbox ──▶ task ── name ──▶ cluster ── name ──▶ driver  latestOffset, commit
                                                          ◀── delete the mailbox ──

- It is for people. No failure of it fails the query, and nothing waits for it longer than some seconds.
- Until the name is known nothing is reported: the lag of another query would be worse than none.
- Once it is known no task is asked and nothing more is done. A mailbox that no driver empties, because it ended in its
  first batch, is gone after `RETENTION_MS`. (Killed, stopped, or of a query with `trigger(once=True)`: Spark ends the
  driver's process without a word.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from penstock.base.chance import SYSTEM_CHANCE
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.group_notes import leave_note, read_notes
from penstock.client.kafka.groups import GroupMissingError, delete_group
from penstock.client.patience import ask_patiently
from penstock.net.errors import ClientError
from penstock.pipeline.archive.source import ArchivedSpan
from penstock.pipeline.connector.query_label import label_of
from penstock.pipeline.sink.options import QUERY_ID_PROPERTY
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.line import SourceLine
from penstock.pipeline.source.options import SourceOptions
from penstock.pipeline.source.ranges import OffsetSpan

SECONDS_MAX: Final = 2.0
# A coordinator that is just starting.
PATIENCE_MS: Final = 1_000
# Longer than the first batch takes: the name is left when that begins and taken when it has ended.
RETENTION_MS: Final = 6 * 3_600_000
# After a failure; twice as long after each further one.
PAUSE_SECONDS_FIRST: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0

_logger = logging.getLogger(__name__)


class QueryGroup:
    """The driver's side: which group it is, and whether a task is to say."""

    def __init__(self, group: str | None, prefix: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`group` is what the user said; without, it is `prefix` and the query's name."""
        self._group = group
        self._prefix = prefix
        self._monotonic = monotonic
        # By the prefix, because that is what a user may have been given rights to.
        self._mailbox = f"{prefix}-name-wanted-{SYSTEM_CHANCE.bytes(8).hex()}"
        self._is_asked = False
        self._pause_seconds = PAUSE_SECONDS_FIRST
        self._paused_until = 0.0

    def mailbox_for_task(self) -> str | None:
        """For one task of the batch that is planned now; None: none is to say anything."""
        if self._group is not None or self._monotonic() < self._paused_until:
            return None
        self._is_asked = True
        return self._mailbox

    def find(self, line: SourceLine) -> str | None:
        """None: not known yet."""
        if self._group is None and self._is_asked and self._monotonic() >= self._paused_until:
            self._look(line)
        return self._group

    def _look(self, line: SourceLine) -> None:
        try:
            labels = line.ask(self._read, patience_ms=PATIENCE_MS)
        except (ClientError, TimeoutError) as error:
            _logger.warning("the query's lag is not shown yet: its name could not be fetched: %s", _words(error))
            self._pause()
            return
        if not labels:
            # The task could not say it, or Spark has found a way to do without the task.
            self._is_asked = False
            self._pause()
            return
        self._group = f"{self._prefix}-{labels[0]}"
        try:
            line.ask(self._empty, patience_ms=PATIENCE_MS)
        except (ClientError, TimeoutError) as error:
            _logger.warning("group %r is not deleted, and will expire: %s", self._mailbox, _words(error))

    async def _read(self, client: ClusterClient) -> list[str]:
        async with asyncio.timeout(SECONDS_MAX):
            return await read_notes(client, self._mailbox)

    async def _empty(self, client: ClusterClient) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            # Missing if this is the second try: the first one was not answered.
            with contextlib.suppress(GroupMissingError):
                await delete_group(client, self._mailbox)

    def _pause(self) -> None:
        self._paused_until = self._monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)


async def tell_name(client: ClusterClient, mailbox: str, span: OffsetSpan | ArchivedSpan) -> None:
    """The task's side. A place of the topic that is read is what the name is hung on; its offset says nothing."""
    label = _label_here()
    if label is None:
        return
    place = (span.topic, span.partition)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await ask_patiently(
                lambda: leave_note(client, mailbox, place, span.end, label, retention_ms=RETENTION_MS),
                patience_ms=PATIENCE_MS,
            )
    except (ClientError, TimeoutError) as error:
        _logger.warning("the lag of query %r is not shown yet: %s", label, _words(error))


async def tell_name_alone(options: SourceOptions, mailbox: str, span: ArchivedSpan) -> None:
    """From a task that has no connection, because it reads files; it goes on if there is no cluster."""
    try:
        async with asyncio.timeout(SECONDS_MAX), source_positions.connect(options) as client:
            await tell_name(client, mailbox, span)
    except (ClientError, TimeoutError) as error:
        _logger.warning("the query's lag is not shown yet: %s", _words(error))


def _label_here() -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    return label_of(context.getLocalProperty(QUERY_ID_PROPERTY), context.getLocalProperty("spark.job.description"))


def _words(error: Exception) -> str:
    """A timeout has none of its own."""
    return str(error) or f"no answer within {SECONDS_MAX:g} s"
