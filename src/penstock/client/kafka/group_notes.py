"""A short text that a group keeps for whoever knows the group's name, for programs that share nothing but a cluster.

It is what Kafka calls the metadata of a committed offset. Such a group has no members and is deleted by whoever has
read it. One that nobody deletes goes by itself when its time is over.
"""

from __future__ import annotations

from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.coordinators import CoordinatorKind, find_coordinator
from penstock.client.kafka.groups import Place
from penstock.codec.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.codec.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.net.errors import BrokerError

# The last version in which a client says how long an offset is kept; later ones leave that to the broker, which takes a
# week.
_RETENTION_VERSION_MAX: Final = 4


async def leave_note(
    client: ClusterClient, group_id: str, place: Place, offset: int, text: str, *, retention_ms: int
) -> None:
    """Brokers take up to 4,096 bytes; one place of a topic that exists is needed to hang the text on."""
    topic, partition = place
    info = await client.topic(topic)
    noted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata=text)
    request = OffsetCommitRequest(
        group_id=group_id,
        retention_time_ms=retention_ms,
        topics=(OffsetCommitRequestTopic(name=topic, topic_id=info.topic_id, partitions=(noted,)),),
    )
    connection, _ = await find_coordinator(client, CoordinatorKind.GROUP, group_id)
    reply = await connection.call(request, OffsetCommitResponse, version_max=_RETENTION_VERSION_MAX)
    for answered in reply.topics:
        for outcome in answered.partitions:
            _check(outcome.error_code, f"the note in group {group_id!r} was not written")


async def read_notes(client: ClusterClient, group_id: str) -> list[str]:
    """Nothing, if there is no such group."""
    connection, _ = await find_coordinator(client, CoordinatorKind.GROUP, group_id)
    wanted = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    request = OffsetFetchRequest(group_id=group_id, topics=None, groups=(wanted,))
    reply = await connection.call(request, OffsetFetchResponse)
    what = f"notes in group {group_id!r}"
    _check(reply.error_code, what)
    notes = [place.metadata for topic in reply.topics for place in topic.partitions]
    for group in reply.groups:
        _check(group.error_code, what)
        notes += [place.metadata for answered in group.topics for place in answered.partitions]
    return [note for note in notes if note]


def _check(code: int, what: str) -> None:
    if code != 0:
        raise BrokerError(code, what)
