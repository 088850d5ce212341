"""Where copies come from, so that none goes back there.

Every cluster that is mirrored into holds one small compacted topic: for each copy, from which clusters its records
came, directly or by way of others. A mirror reads that of its source. What came from its target stays where it is: two
mirrors in opposite directions, or a ring of them, would copy it for ever, under ever longer names or into itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.typed_values import read_json
from penstock.client.errors import TopicMissingError
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.kafka.producer import PartitionBatch, Producer, Refused
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.net.errors import BrokerError
from penstock.pipeline.mirror.journal import PARTITION, ensure_compacted, read_committed

log_events = get_logger("mirror")

ORIGINS_TOPIC: Final = "penstock-mirrors"
# Who may use some topics and not this one mirrors all the same, without anybody who looks out for rings.
_NOT_ALLOWED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


class Origin(msgspec.Struct, frozen=True, array_like=True, order=True):
    cluster_id: str
    topic_id: str


class Claim(msgspec.Struct, frozen=True):
    """That a topic is a copy; of no worth when another topic has got its name."""

    copy_id: str
    origins: tuple[Origin, ...]


Claims = Mapping[str, Claim]


def id_of(topic: TopicInfo) -> str:
    """Empty, where the cluster is too old to have any."""
    return "" if topic.topic_id == NO_UUID else topic.topic_id.hex()


async def read_claims(client: ClusterClient) -> dict[str, Claim]:
    claims: dict[str, Claim] = {}
    try:
        async for row in read_committed(client, ORIGINS_TOPIC):
            if row.key is None:
                continue
            claims.pop(row.key.decode(), None)
            if row.value is not None:
                claims[row.key.decode()] = read_json(row.value, Claim)
    except TopicMissingError:
        pass
    except BrokerError as error:
        if error.code not in _NOT_ALLOWED:
            raise
    return claims


async def write_claim(client: ClusterClient, copy: str, claim: Claim | None, *, clock: Clock) -> None:
    try:
        await _write_claim(client, copy, claim, clock)
    except BrokerError as error:
        if error.code not in _NOT_ALLOWED:
            raise
        log_events.warning("where a copy is from could not be noted", topic=copy, reason=str(error))


async def _write_claim(client: ClusterClient, copy: str, claim: Claim | None, clock: Clock) -> None:
    await ensure_compacted(client, ORIGINS_TOPIC)
    value = None if claim is None else msgspec.json.encode(claim)
    batch = build_batch([Record(value, copy.encode(), clock.now_ms())])
    producer = Producer(client)
    await producer.start()
    for outcome in await producer.send([PartitionBatch(ORIGINS_TOPIC, PARTITION, batch, 1)]):
        if isinstance(outcome, Refused):
            raise BrokerError(outcome.code, outcome.sentence())


def origins_of(topic: TopicInfo, claims: Claims) -> tuple[Origin, ...]:
    claim = claims.get(topic.name)
    return claim.origins if claim is not None and claim.copy_id == id_of(topic) else ()


def goes_round(origins: tuple[Origin, ...], *, target: str | None, copy: TopicInfo | None, has_prefix: bool) -> bool:
    """Whether a topic of these origins would come back to where it was.

    Without a prefix that is the very topic it came from. Another one of that name may be filled: whoever has moved
    house may move back.
    """
    return any(
        origin.cluster_id == target and (has_prefix or (copy is not None and origin.topic_id == id_of(copy)))
        for origin in origins
    )


def claim_of(copy: TopicInfo, origin: Origin, further: tuple[Origin, ...], claims: Claims) -> Claim:
    """With what other mirrors into the same copy have said."""
    return Claim(id_of(copy), tuple(sorted({origin, *further, *origins_of(copy, claims)})))
