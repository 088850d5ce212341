"""The settings of a node that change while it runs, by the names that Kafka's brokers have for them.

    settings of this node  >  settings of all nodes  >  the node's configuration  >  built-in defaults

Most are defaults of topic settings (`log.retention.ms` for `retention.ms`) and are in force at once, for every topic
that does not say otherwise. The rest are the node's own, or names that tools made for Kafka set on every broker: those
are about what a node does not have, and their documentation says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.domain.config import topic as topic_config
from penstock.domain.config.change import ConfigEntry, ConfigSource, ConfigSynonym
from penstock.domain.config.definition import ConfigDefinition, ConfigProblem, ConfigType, read_value

# The topic setting whose default it is.
TOPIC_SETTING_OF: Final[Mapping[str, str]] = {
    definition.node_name: definition.name
    for definition in topic_config.DEFINITIONS.values()
    if definition.node_name is not None
}

BACKGROUND_THREADS: Final = "background.threads"
CONNECTIONS_MAX: Final = "max.connections"

_OF_THE_NODE: Final = (
    ConfigDefinition(
        BACKGROUND_THREADS,
        ConfigType.INT,
        "10",
        "Threads for the node's own chores: checkpoints, retention, compaction, looking things up on the disk.",
        lowest=1,
        highest=1_000,
    ),
    ConfigDefinition(
        CONNECTIONS_MAX,
        ConfigType.INT,
        "10000",
        "How many connections of Kafka clients there may be at a time; the node's limit of open files may be lower.",
        lowest=1,
        highest=1_000_000,
    ),
    ConfigDefinition(
        "sasl.kerberos.min.time.before.relogin",
        ConfigType.LONG,
        "60000",
        "Milliseconds between two logins at Kerberos.",
        idle_because="nobody logs in by Kerberos",
    ),
)

DEFINITIONS: Final[Mapping[str, ConfigDefinition]] = {
    **{
        node_name: msgspec.structs.replace(topic_config.DEFINITIONS[name], name=node_name, node_name=None)
        for node_name, name in TOPIC_SETTING_OF.items()
    },
    **{definition.name: definition for definition in _OF_THE_NODE},
}


def validate(overrides: Mapping[str, str | None]) -> list[ConfigProblem]:
    return [problem for name in sorted(overrides) if (problem := _check(name, overrides[name])) is not None]


def _check(name: str, text: str | None) -> ConfigProblem | None:
    value = read_value(DEFINITIONS, name, text, kind="a setting of a node that changes while it runs")
    if isinstance(value, ConfigProblem):
        return value
    if name in TOPIC_SETTING_OF:
        # What no topic may have, no default may give to all of them.
        problems = topic_config.validate({TOPIC_SETTING_OF[name]: text})
        return ConfigProblem(name, problems[0].reason) if problems else None
    return None


def topic_defaults(configured: Mapping[str, str], *stored: Mapping[str, str]) -> dict[str, str]:
    """The defaults of topic settings by the topics' names for them; later layers win."""
    defaults = dict(configured)
    for layer in stored:
        defaults.update({TOPIC_SETTING_OF[name]: text for name, text in layer.items() if name in TOPIC_SETTING_OF})
    return defaults


def number_of(name: str, configured: int | None, *stored: Mapping[str, str]) -> int:
    """A setting of the node itself, as it holds; later layers of what is stored win."""
    definition = DEFINITIONS[name]
    texts = [layer[name] for layer in reversed(stored) if name in layer]
    for text in texts:
        value = definition.parse(text)
        if isinstance(value, int):
            return value
    return int(definition.default) if configured is None else configured


def describe(
    configured: Mapping[str, str], of_all_nodes: Mapping[str, str], of_this_node: Mapping[str, str]
) -> list[ConfigEntry]:
    """`configured`: what the node's configuration says, defaults of topic settings by the topics' names."""
    return [
        _entry(DEFINITIONS[name], configured.get(TOPIC_SETTING_OF.get(name, name)), of_all_nodes, of_this_node)
        for name in sorted(DEFINITIONS)
    ]


def _entry(
    definition: ConfigDefinition,
    configured: str | None,
    of_all_nodes: Mapping[str, str],
    of_this_node: Mapping[str, str],
) -> ConfigEntry:
    name = definition.name
    found = (
        (of_this_node.get(name), ConfigSource.NODE_DYNAMIC),
        (of_all_nodes.get(name), ConfigSource.NODE_DYNAMIC_DEFAULT),
        (configured, ConfigSource.NODE_STATIC),
        (definition.default, ConfigSource.DEFAULT),
    )
    layers = tuple(ConfigSynonym(name, text, source) for text, source in found if text is not None)
    in_force = layers[0]
    return ConfigEntry(name, in_force.value, in_force.source, definition.type, definition.described, synonyms=layers)
