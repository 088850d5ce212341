"""Positions of groups, translated: a consumer that moves to the target goes on where it was.

Only groups without members in the target get them, and a position only moves forward: whoever has begun to read there
knows better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.base.log_events import get_logger
from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import ListedGroup, Place
from penstock.client.patience import UNREACHED
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError, ClientError
from penstock.pipeline.mirror.journal import Books

log_events = get_logger("mirror")

# The group has members there, or came to have them a moment ago.
_IN_USE: Final = frozenset({
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
})  # fmt: skip
_TYPES: Final = ("classic", "consumer")
# Ours, of Spark and of sinks: their positions say something about this cluster alone.
_OWN_PREFIX: Final = "penstock-"


class GroupsOfClusters:
    """What is asked of the two clusters."""

    async def list(self, client: ClusterClient) -> list[ListedGroup]:
        return await groups.list_groups(client)

    async def committed(self, client: ClusterClient, group: str) -> dict[Place, int]:
        return await groups.committed_offsets(client, group)

    async def commit(self, client: ClusterClient, group: str, offsets: Mapping[Place, int]) -> None:
        await groups.commit_offsets(client, group, offsets)


async def mirror_groups(
    source: ClusterClient,
    target: ClusterClient,
    *,
    matches: Callable[[str], bool],
    copies: Mapping[str, str],
    books: Books,
    clusters: GroupsOfClusters | None = None,
) -> int:
    """How many groups were moved forward. `copies`: the name in the target of each topic of the source."""
    clusters = clusters or GroupsOfClusters()
    listed = await clusters.list(source)
    wanted = [
        group.group
        for group in listed
        if group.type.lower() in _TYPES and matches(group.group) and not group.group.startswith(_OWN_PREFIX)
    ]
    count = 0
    for group in wanted:
        try:
            translated = translate_positions(await clusters.committed(source, group), copies, books)
            count += bool(translated) and await _move(clusters, target, group, translated)
        except UNREACHED:
            raise
        except ClientError as error:
            # A group of another kind with this name, or one that we may not touch: the others go on.
            log_events.warning("positions of a group were not mirrored", group=group, reason=str(error))
    return count


async def _move(clusters: GroupsOfClusters, target: ClusterClient, group: str, translated: Mapping[Place, int]) -> bool:
    held = await clusters.committed(target, group)
    ahead = {place: offset for place, offset in translated.items() if offset > held.get(place, -1)}
    if not ahead:
        return False
    try:
        await clusters.commit(target, group, ahead)
    except BrokerError as error:
        if error.code not in _IN_USE:
            raise
        log_events.debug("group is in use in the target", group=group)
        return False
    return True


def translate_positions(committed: Mapping[Place, int], copies: Mapping[str, str], books: Books) -> dict[Place, int]:
    translated: dict[Place, int] = {}
    for (topic, partition), offset in committed.items():
        if topic in copies and (topic, partition) in books:
            found = books[topic, partition].translate(offset)
            if found is not None:
                translated[copies[topic], partition] = found
    return translated
