"""The settings of one group, which it has before it has members: Kafka's names, types, defaults and bounds.

They are kept and shown. Who serves a group asks for them by name; what nobody asks for yet says so in its own
documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.domain.config_definition import ConfigDefinition, ConfigProblem, ConfigType

_DEFINITION_LIST: Final = (
    ConfigDefinition(
        "consumer.heartbeat.interval.ms", ConfigType.INT, "5000", "How often a member of a consumer group is heard.",
        lowest=100, highest=15_000, has_effect=False,
    ),
    ConfigDefinition(
        "consumer.session.timeout.ms", ConfigType.INT, "45000", "A member that is silent for this long is gone.",
        lowest=45_000, highest=60_000, has_effect=False,
    ),
    ConfigDefinition(
        "share.auto.offset.reset", ConfigType.STRING, "latest", "Where a share group starts that has no start yet.",
        allowed=("latest", "earliest"), has_effect=False,
    ),
    ConfigDefinition(
        "share.heartbeat.interval.ms", ConfigType.INT, "5000", "How often a member of a share group is heard.",
        lowest=100, highest=15_000, has_effect=False,
    ),
    ConfigDefinition(
        "share.isolation.level", ConfigType.STRING, "read_uncommitted", "Whether open transactions are seen.",
        allowed=("read_uncommitted", "read_committed"), has_effect=False,
    ),
    ConfigDefinition(
        "share.record.lock.duration.ms", ConfigType.INT, "30000", "How long a delivered record belongs to its member.",
        lowest=15_000, highest=60_000, has_effect=False,
    ),
    ConfigDefinition(
        "share.session.timeout.ms", ConfigType.INT, "45000", "A member that is silent for this long is gone.",
        lowest=45_000, highest=60_000, has_effect=False,
    ),
)  # fmt: skip

DEFINITIONS: Final[Mapping[str, ConfigDefinition]] = {definition.name: definition for definition in _DEFINITION_LIST}


def validate(overrides: Mapping[str, str | None]) -> list[ConfigProblem]:
    return [problem for name in sorted(overrides) if (problem := _check(name, overrides[name])) is not None]


def _check(name: str, text: str | None) -> ConfigProblem | None:
    definition = DEFINITIONS.get(name)
    if definition is None:
        return ConfigProblem(name, f"{name[:80]!r} is not a setting of a group")
    if text is None:
        return ConfigProblem(name, f"{name} has no value, expected {definition.expectation}")
    value = definition.parse(text)
    return value if isinstance(value, ConfigProblem) else None
