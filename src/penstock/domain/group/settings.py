"""The settings of one group, which it has before it has members: Kafka's names, types and defaults, and its bounds
except where they would only be in the way.

Who serves a group asks for them by name. What a group was not given holds as the node's configuration says, whose
defaults are shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.domain.config.change import SettingsChange
from penstock.domain.config.definition import ConfigDefinition, ConfigProblem, ConfigType, ConfigValue, read_value
from penstock.domain.group.values import GroupConfig
from penstock.domain.queue.definition import check_dead_letter_topic
from penstock.domain.security.access import ANONYMOUS, Principal

BY_DURATION: Final = "by_duration:"
DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
# Kept beside it and shown to nobody: who named that topic, as User:alice.
DEAD_LETTERS_AUTHOR: Final = "penstock.deadletterqueue.author"
# Without years and months, whose length nobody knows; something has to stand there.
DURATION: Final = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,8})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,10})(?:\.([0-9]{1,3})[0-9]*)?S)?)?"
)

_DEFINITION_LIST: Final = (
    ConfigDefinition(
        "consumer.heartbeat.interval.ms", ConfigType.INT, "500",
        "How often a member of a consumer group is heard; more seldom in groups of more than 200 members.",
        lowest=100, highest=15_000,
    ),
    ConfigDefinition(
        "consumer.session.timeout.ms", ConfigType.INT, "45000", "A member that is silent for this long is gone.",
        lowest=45_000, highest=60_000,
    ),
    ConfigDefinition(
        "errors.deadletterqueue.copy.record.enable", ConfigType.BOOLEAN, "true",
        "Whether a dead letter holds the key, the value and the headers of the record too.",
    ),
    ConfigDefinition(
        DEAD_LETTERS, ConfigType.STRING, "",
        "Where a share group's records go that were rejected or delivered too often; empty: nowhere.",
    ),
    ConfigDefinition(
        "share.auto.offset.reset", ConfigType.STRING, "latest", "Where a share group starts that has no start yet.",
        allowed=("latest", "earliest"), pattern=f"{BY_DURATION}{DURATION.pattern}",
        pattern_told="by_duration: and an ISO 8601 duration such as PT1H",
    ),
    ConfigDefinition(
        "share.delivery.count.limit", ConfigType.INT, "5", "How often a record is delivered before it is given up.",
        lowest=1, highest=1_000,
    ),
    ConfigDefinition(
        "share.heartbeat.interval.ms", ConfigType.INT, "1000", "How often a member of a share group is heard.",
        lowest=100, highest=15_000,
    ),
    ConfigDefinition(
        "share.isolation.level", ConfigType.STRING, "read_uncommitted", "Whether open transactions are seen.",
        allowed=("read_uncommitted", "read_committed"),
    ),
    ConfigDefinition(
        "share.partition.max.record.locks", ConfigType.INT, "2000",
        "How many records of a partition may be with members at a time.", lowest=100, highest=1_000_000,
    ),
    ConfigDefinition(
        "share.record.lock.duration.ms", ConfigType.INT, "30000", "How long a delivered record belongs to its member.",
        lowest=1_000, highest=3_600_000,
    ),
    ConfigDefinition(
        "share.renew.acknowledge.enable", ConfigType.BOOLEAN, "true", "Whether a member may keep a record for longer.",
    ),
    ConfigDefinition(
        "share.session.timeout.ms", ConfigType.INT, "45000", "A member that is silent for this long is gone.",
        lowest=1_000, highest=60_000,
    ),
)  # fmt: skip

DEFINITIONS: Final[Mapping[str, ConfigDefinition]] = {definition.name: definition for definition in _DEFINITION_LIST}


def validate(overrides: Mapping[str, str | None]) -> list[ConfigProblem]:
    return [problem for name in sorted(overrides) if (problem := _check(name, overrides[name])) is not None]


def noting_author(change: SettingsChange, author: Principal) -> SettingsChange:
    """The same change; whoever names another dead-letter topic by it is remembered."""

    def noted(before: Mapping[str, str]) -> dict[str, str] | list[ConfigProblem]:
        after = change(before)
        if isinstance(after, list):
            return after
        after.pop(DEAD_LETTERS_AUTHOR, None)
        if after.get(DEAD_LETTERS):
            is_same = after[DEAD_LETTERS] == before.get(DEAD_LETTERS)
            known = before.get(DEAD_LETTERS_AUTHOR, str(ANONYMOUS)) if is_same else str(author)
            after[DEAD_LETTERS_AUTHOR] = known
        return after

    return noted


def dead_letter_author(overrides: Mapping[str, str]) -> Principal:
    kind, _, name = overrides.get(DEAD_LETTERS_AUTHOR, str(ANONYMOUS)).partition(":")
    return Principal(kind, name)


def value_of(name: str, overrides: Mapping[str, str]) -> ConfigValue:
    """What holds for a group with these settings. What is stored was checked when it was set."""
    definition = DEFINITIONS[name]
    value = definition.parse(overrides.get(name, definition.default))
    if isinstance(value, ConfigProblem):
        # Of a version with other bounds.
        value = definition.parse(definition.default)
        assert not isinstance(value, ConfigProblem), value
    return value


def member_config(config: GroupConfig, overrides: Mapping[str, str]) -> GroupConfig:
    """The node's own, but for what the consumer group has been given."""
    changes = {
        field: value_of(name, overrides)
        for field, name in (
            ("consumer_session_timeout_ms", "consumer.session.timeout.ms"),
            ("heartbeat_interval_ms", "consumer.heartbeat.interval.ms"),
        )
        if name in overrides
    }
    return msgspec.structs.replace(config, **changes) if changes else config


def _check(name: str, text: str | None) -> ConfigProblem | None:
    value = read_value(DEFINITIONS, name, text, kind="a setting of a group")
    if isinstance(value, ConfigProblem):
        return value
    reason = check_dead_letter_topic(text) if text and name == DEAD_LETTERS else None
    return None if reason is None else ConfigProblem(name, f"{name}: {reason}")
