"""Topics of the source made in the target: their partitions and their settings, and whatever changes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.base.log_events import get_logger
from penstock.client.admin import alter_topic_configs, create_partitions, create_topic, describe_topic_configs
from penstock.client.cluster_client import ClusterClient, TopicInfo
from penstock.client.errors import BrokerError, TopicMissingError
from penstock.codec.wire import ErrorCode
from penstock.domain.topic_rules import is_internal
from penstock.pipeline.mirror_journal import is_journal

log_events = get_logger("mirror")

# Of the cluster that the topic is in, not of the topic.
LEFT_ALONE: Final = frozenset({
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
})  # fmt: skip
_FROM_TOPIC: Final = "topic"
_REFUSED: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION})


class TopicNames:
    """What a topic of the source is called in the target."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def target_of(self, topic: str) -> str:
        return self._prefix + topic

    def is_copy(self, topic: str) -> bool:
        """Made by this mirror's counterpart in the other direction: it would go round for ever."""
        return bool(self._prefix) and topic.startswith(self._prefix)


async def find_topics(source: ClusterClient, matches: Callable[[str], bool], names: TopicNames) -> list[TopicInfo]:
    return [
        topic
        for topic in await source.topics()
        if matches(topic.name)
        and not (topic.is_internal or is_internal(topic.name) or is_journal(topic.name) or names.is_copy(topic.name))
    ]


async def ensure_copy(source: ClusterClient, target: ClusterClient, topic: TopicInfo, name: str) -> None:
    """The topic in the target: there, with as many partitions and with the settings of its source."""
    try:
        held = await target.topic(name, is_fresh=True)
    except TopicMissingError:
        await create_topic(target, name, partitions=len(topic.partitions))
        log_events.info("topic created", topic=name, partitions=len(topic.partitions))
    else:
        if len(held.partitions) < len(topic.partitions):
            await create_partitions(target, name, count=len(topic.partitions))
            log_events.info("partitions added", topic=name, partitions=len(topic.partitions))
    await _copy_configs(source, target, topic.name, name)


async def _copy_configs(source: ClusterClient, target: ClusterClient, topic: str, name: str) -> None:
    wanted = await _own_configs(source, topic)
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
        await _set_one_by_one(target, name, changes)


async def _set_one_by_one(target: ClusterClient, name: str, changes: dict[str, str]) -> None:
    for key, value in changes.items():
        try:
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
