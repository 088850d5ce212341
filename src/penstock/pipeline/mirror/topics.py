"""Topics of the source made in the target: their partitions and their settings, and whatever changes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.base.log_events import get_logger
from penstock.client.errors import TopicMissingError
from penstock.client.kafka.admin import alter_topic_configs, create_partitions, create_topic, describe_topic_configs
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.codec.kafka import ErrorCode
from penstock.domain.topic_rules import is_internal
from penstock.net.errors import BrokerError
from penstock.pipeline.mirror.journal import is_journal
from penstock.pipeline.mirror.origins import ORIGINS_TOPIC

log_events = get_logger("mirror")

# Of the cluster that the topic is in, not of the topic; and what time records get, for the copy keeps theirs.
LEFT_ALONE: Final = frozenset({
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "message.timestamp.type",
    # It would wait for an archive that only the source has.
    "retention.after.archive",
})  # fmt: skip
# Which times are taken was for the source to say, when the records were new: the copy takes what it has taken.
_TIME_LIMITS: Final = frozenset({
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
})  # fmt: skip
_NO_TIME_LIMIT: Final = str(2**63 - 1)
# A topic that was just made is not known to every broker at once.
_SEEN_ATTEMPTS_MAX: Final = 40
_SEEN_RETRY_MS: Final = 50
_FROM_TOPIC: Final = "topic"
_REFUSED: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION})


class TopicNames:
    """What a topic of the source is called in the target."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def target_of(self, topic: str) -> str:
        return self._prefix + topic

    def is_copy(self, topic: str) -> bool:
        """Made by a mirror with the same prefix: this one, inside a cluster, or one in the other direction."""
        return bool(self._prefix) and topic.startswith(self._prefix)


async def find_topics(source: ClusterClient, matches: Callable[[str], bool], names: TopicNames) -> list[TopicInfo]:
    return [
        topic
        for topic in await source.topics()
        if matches(topic.name) and not (topic.is_internal or _is_ours(topic.name) or names.is_copy(topic.name))
    ]


def _is_ours(topic: str) -> bool:
    return is_internal(topic) or is_journal(topic) or topic == ORIGINS_TOPIC


async def find_copy(target: ClusterClient, name: str) -> TopicInfo | None:
    try:
        return await target.topic(name, is_fresh=True)
    except TopicMissingError:
        return None


async def ensure_copy(
    source: ClusterClient, target: ClusterClient, topic: TopicInfo, name: str, held: TopicInfo | None
) -> TopicInfo:
    """The topic in the target: there, with as many partitions and with the settings of its source."""
    count = len(topic.partitions)
    if held is None:
        await create_topic(target, name, partitions=count)
        log_events.info("topic created", topic=name, partitions=count)
    elif len(held.partitions) < count:
        await create_partitions(target, name, count=count)
        log_events.info("partitions added", topic=name, partitions=count)
    copy = await _await_copy(target, name, count)
    await _copy_configs(source, target, topic.name, name)
    return copy


async def _await_copy(target: ClusterClient, name: str, partition_count: int) -> TopicInfo:
    for _ in range(_SEEN_ATTEMPTS_MAX):
        copy = await find_copy(target, name)
        if copy is not None and len(copy.partitions) >= partition_count:
            return copy
        await asyncio.sleep(_SEEN_RETRY_MS / 1000)
    raise TopicMissingError(name)


async def _copy_configs(source: ClusterClient, target: ClusterClient, topic: str, name: str) -> None:
    wanted = {
        key: _NO_TIME_LIMIT if key in _TIME_LIMITS else value
        for key, value in (await _own_configs(source, topic)).items()
    }
    held = await _own_configs(target, name)
    changes = {key: value for key, value in wanted.items() if held.get(key) != value}
    removals = [key for key in held if key not in wanted]
    if not changes and not removals:
        return
    try:
        await alter_topic_configs(target, name, changes=changes, removals=removals)
    except BrokerError as error:
        if error.code not in _REFUSED:
            raise
        # One that the target does not know shall not keep the others away.
        for key in removals:
            await _set_one(target, name, key, None)
        for key, value in changes.items():
            await _set_one(target, name, key, value)


async def _set_one(target: ClusterClient, name: str, key: str, value: str | None) -> None:
    """None: back to its default."""
    try:
        if value is None:
            await alter_topic_configs(target, name, changes={}, removals=[key])
        else:
            await alter_topic_configs(target, name, changes={key: value})
    except BrokerError as error:
        if error.code not in _REFUSED:
            raise
        log_events.warning("setting not mirrored", topic=name, setting=key, value=value, reason=str(error))


async def _own_configs(client: ClusterClient, topic: str) -> dict[str, str]:
    return {
        config.name: config.value
        for config in await describe_topic_configs(client, topic)
        if config.source == _FROM_TOPIC and config.value is not None and config.name not in LEFT_ALONE
    }
