"""Which topics there are to mirror, each with its copy: looked for again and again, since topics come, grow and go.

A topic that cannot be made in the target, or that has gone in the meantime, keeps none of the others away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.patience import UNREACHED
from penstock.net.errors import ClientError
from penstock.pipeline.mirror.origins import (
    Claim,
    Origin,
    claim_of,
    goes_round,
    id_of,
    origins_of,
    read_claims,
    write_claim,
)
from penstock.pipeline.mirror.topics import TopicNames, ensure_copy, find_copy, find_topics

log_events = get_logger("mirror")


class Pair(NamedTuple):
    """A topic of the source, and its copy."""

    topic: TopicInfo
    copy: TopicInfo

    @property
    def identity(self) -> tuple[int, str, str]:
        """What a worker was started for: when it changes, another one is wanted."""
        return len(self.topic.partitions), id_of(self.topic), id_of(self.copy)


class Found(NamedTuple):
    pairs: list[Pair]
    # By the source's name, what kept it from being one of them.
    failures: dict[str, ClientError]


class TopicFinder:
    def __init__(
        self,
        source: ClusterClient,
        target: ClusterClient,
        *,
        matches: Callable[[str], bool],
        names: TopicNames,
        clock: Clock,
        end_worker: Callable[[str], Awaitable[None]],
    ) -> None:
        self._source = source
        self._target = target
        self._matches = matches
        self._names = names
        self._clock = clock
        # Before a copy is made that was there and is gone: what is under way belongs into the old one.
        self._end_worker = end_worker
        self._source_claims: dict[str, Claim] = {}
        self._target_claims: dict[str, Claim] = {}
        # What was said once need not be said every half minute.
        self._left_out: set[str] = set()

    async def find(self) -> Found:
        found = Found([], {})
        topics = await find_topics(self._source, self._matches, self._names)
        self._source_claims = await read_claims(self._source)
        self._target_claims = await read_claims(self._target)
        for topic in topics:
            try:
                pair = await self._pair(topic)
            except UNREACHED:
                raise
            except ClientError as error:
                log_events.warning("topic is not mirrored", topic=topic.name, reason=str(error))
                found.failures[topic.name] = error
            else:
                if pair is not None:
                    found.pairs.append(pair)
        return found

    async def _pair(self, topic: TopicInfo) -> Pair | None:
        name = self._names.target_of(topic.name)
        held = await find_copy(self._target, name)
        if self._goes_round(topic, held):
            return None
        if held is None:
            await self._end_worker(topic.name)
        copy = await ensure_copy(self._source, self._target, topic, name, held)
        return Pair(topic, copy) if await self._claim(topic, copy) else None

    def _goes_round(self, topic: TopicInfo, copy: TopicInfo | None) -> bool:
        origins = origins_of(topic, self._source_claims)
        has_prefix = self._names.target_of("") != ""
        if not goes_round(origins, target=self._target.cluster_id, copy=copy, has_prefix=has_prefix):
            return False
        if topic.name not in self._left_out:
            self._left_out.add(topic.name)
            log_events.warning("topic is not mirrored: its records came from the target", topic=topic.name)
        return True

    async def _claim(self, topic: TopicInfo, copy: TopicInfo) -> bool:
        """Says in the target where the copy is from. False: the source says by now that it is the copy of the two."""
        cluster_id = self._source.cluster_id
        if cluster_id is None or not id_of(copy):
            return True
        origin = Origin(cluster_id, id_of(topic))
        claim = claim_of(copy, origin, origins_of(topic, self._source_claims), self._target_claims)
        if self._target_claims.get(copy.name) == claim:
            return True
        before = self._target_claims.get(copy.name)
        await write_claim(self._target, copy.name, claim, clock=self._clock)
        self._target_claims[copy.name] = claim
        # Two mirrors that were started in opposite directions at one time: both see it here, if not before.
        self._source_claims = await read_claims(self._source)
        if not self._goes_round(topic, copy):
            return True
        await write_claim(self._target, copy.name, before, clock=self._clock)
        return False
