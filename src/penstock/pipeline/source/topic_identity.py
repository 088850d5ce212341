"""Which topic of a name an archive holds: one that is deleted and made anew has the same name, and its offsets begin
again; once it has grown past what is archived, nothing but the topic's id tells the two apart.

The archive keeps of the id what a Delta `txn` action holds (`table/commit`): a number of 63 bits, in the same commit as
the rows. An archive that was begun before this was kept, and a cluster that has no ids, are known by nothing: `UNKNOWN`
is the same as everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.pipeline.source.options import OptionError

UNKNOWN: Final = 0
# Of 128 bits; what Delta calls a version has a sign.
_BITS_LEFT_OUT: Final = 65


class OtherTopicError(OptionError):
    """Messages of two topics of one name would come together."""


def identity_of(topic_id: bytes) -> int:
    return int.from_bytes(topic_id, "big") >> _BITS_LEFT_OUT


async def identities(client: ClusterClient, topics: Iterable[str]) -> dict[str, int]:
    """As the client knows them: whoever wants them fresh has asked for the topics before."""
    return {topic: identity_of((await client.topic(topic)).topic_id) for topic in topics}


def is_other(known: int | None, found: int | None) -> bool:
    return bool(known) and bool(found) and known != found


def check_archived(path: str, archived: Mapping[str, int], present: Mapping[str, int]) -> None:
    for topic, found in present.items():
        if is_other(archived.get(topic), found):
            raise OtherTopicError(other_topic(path, topic))


def check_unchanged(expected: Mapping[str, int], topics: Iterable[TopicInfo]) -> None:
    for topic in topics:
        if is_other(expected.get(topic.name), identity_of(topic.topic_id)):
            raise OtherTopicError(
                f"topic {topic.name!r} was deleted and made anew while it was being archived; what the archive has is "
                "of the former one."
            )


def other_topic(path: str, topic: str) -> str:
    return (
        f"{path} holds messages of another topic {topic!r}, which was deleted and made anew since. A new path keeps "
        f"both; `penstock archive forget {path} {topic}` removes the former one's messages, with --only-id it "
        "lets the present topic go on where that one ended."
    )
