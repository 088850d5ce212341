"""What the running process tells the node: the positions of its groups, so that lag is true, and how each pipeline is.

Spark tells a source that a batch is committed only when the next one begins, which with `--once` is never; here it is
told after every batch. A node that is away is no reason to stop a pipeline, which waits for it itself: what could not
be told is told next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.client.errors import TopicMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.offsets import LATEST, list_offsets
from penstock.net.address import parse_addresses
from penstock.net.errors import BrokerError, ClientError
from penstock.pipeline.declared.progress import Position
from penstock.pipeline.declared.status import HEARTBEAT_MS, Status, publish
from penstock.pipeline.source.positions import report_group

# Something changes with every batch; once in so long is enough for whoever looks.
PUBLISH_MS_MIN: Final = 1_000
_PATIENCE_SECONDS: Final = 5.0

Lags = dict[str, int]


class Reporter:
    def __init__(self, bootstrap: str, clock: Clock) -> None:
        self._addresses = parse_addresses(bootstrap)
        self._clock = clock
        self._told_at_ms: int | None = None
        self._told: dict[str, tuple[str, int, int, str]] = {}
        self._log = get_logger("pipeline")

    def report(
        self, statuses: Sequence[Status], positions: Mapping[str, Mapping[str, Position]], *, is_last: bool = False
    ) -> Lags:
        """By pipeline how far it is behind, of those that were told about; blocking, for a moment."""
        now_ms = self._clock.monotonic_ms()
        if not is_last and not self._is_time(statuses, now_ms):
            return {}
        self._told_at_ms = now_ms
        try:
            lags = asyncio.run(self._tell(statuses, positions))
        except (ClientError, TimeoutError) as error:
            self._log.debug("pipeline status not told", error=str(error))
            return {}
        self._told = {status.name: _marks(status) for status in statuses}
        return lags

    def _is_time(self, statuses: Sequence[Status], now_ms: int) -> bool:
        if self._told_at_ms is None:
            return True
        waited_ms = now_ms - self._told_at_ms
        has_changed = any(self._told.get(status.name) != _marks(status) for status in statuses)
        return waited_ms >= (PUBLISH_MS_MIN if has_changed else HEARTBEAT_MS)

    async def _tell(self, statuses: Sequence[Status], positions: Mapping[str, Mapping[str, Position]]) -> Lags:
        async with asyncio.timeout(_PATIENCE_SECONDS), ClusterClient(self._addresses) as client:
            lags: Lags = {}
            for name, queries in positions.items():
                try:
                    lags |= await self._tell_positions(client, name, queries)
                except (BrokerError, TopicMissingError) as error:
                    # A topic was deleted, say. How the pipeline takes that is the more worth telling.
                    self._log.debug("pipeline position not told", pipeline=name, error=str(error))
            now_ms = self._clock.now_ms()
            told = [
                msgspec.structs.replace(status, lag=lags.get(status.name, status.lag), updated_ms=now_ms)
                for status in statuses
            ]
            await publish(client, told, now_ms=now_ms)
        return lags

    async def _tell_positions(self, client: ClusterClient, name: str, queries: Mapping[str, Position]) -> Lags:
        lags: Lags = {}
        for query, position in queries.items():
            if not position:
                continue
            await report_group(client, f"penstock-spark-{query}", position)
            if query == name:
                lags[name] = await _behind(client, position)
        return lags


def _marks(status: Status) -> tuple[str, int, int, str]:
    return status.state, status.batch_id, status.bad_rows, status.last_error


async def _behind(client: ClusterClient, position: Position) -> int:
    behind = 0
    for topic, places in position.items():
        ends = await list_offsets(client, topic, dict.fromkeys(places, LATEST), is_read_committed=True)
        behind += sum(max(0, end - places[index]) for index, end in ends.items())
    return behind
