"""Settings as admin requests see and change them: what is in force and why, and changes to what is stored.

AlterConfigs             the new overrides replace the old ones whole
IncrementalAlterConfigs  SET and DELETE for all, APPEND and SUBTRACT for lists
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

import msgspec

from penstock.domain.config.definition import ConfigDefinition, ConfigProblem, ConfigType, split_list


class ConfigSource(IntEnum):
    """Kafka's numbers: which layer a value in force comes from."""

    UNKNOWN = 0
    TOPIC = 1
    NODE_DYNAMIC = 2
    NODE_DYNAMIC_DEFAULT = 3
    NODE_STATIC = 4
    DEFAULT = 5
    GROUP = 8


class ConfigSynonym(msgspec.Struct, frozen=True):
    name: str
    value: str
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """One line of DescribeConfigs."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False
    # Every layer that has a value, the one in force first.
    synonyms: tuple[ConfigSynonym, ...] = ()


class ConfigOperation(IntEnum):
    """Kafka's numbers, as IncrementalAlterConfigs sends them."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(msgspec.Struct, frozen=True):
    name: str
    operation: ConfigOperation
    value: str | None = None


def describe(
    definitions: Mapping[str, ConfigDefinition],
    overrides: Mapping[str, str],
    node_defaults: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    *,
    override_source: ConfigSource = ConfigSource.TOPIC,
) -> list[ConfigEntry]:
    """All settings, or those of `names` that exist, each with the value in force and where it comes from."""
    wanted = definitions if names is None else [name for name in dict.fromkeys(names) if name in definitions]
    return [_entry(definitions[name], overrides, node_defaults or {}, override_source) for name in sorted(wanted)]


def _entry(
    definition: ConfigDefinition,
    overrides: Mapping[str, str],
    node_defaults: Mapping[str, str],
    override_source: ConfigSource,
) -> ConfigEntry:
    name, node_name = definition.name, definition.node_name or definition.name
    layers: list[ConfigSynonym] = []
    if name in overrides:
        layers.append(ConfigSynonym(name, overrides[name], override_source))
    if name in node_defaults:
        layers.append(ConfigSynonym(node_name, node_defaults[name], ConfigSource.NODE_STATIC))
    default = ConfigSynonym(node_name, definition.default, ConfigSource.DEFAULT)
    if definition.node_name is not None:
        layers.append(default)
    in_force = layers[0] if layers else default
    return ConfigEntry(
        name,
        in_force.value,
        in_force.source,
        definition.type,
        definition.described,
        synonyms=tuple(layers),
    )


def node_entry(
    name: str, value: str | None, *, documentation: str, config_type: ConfigType = ConfigType.STRING
) -> ConfigEntry:
    """A setting of the node itself, as DescribeConfigs of a broker shows it: read-only."""
    source = ConfigSource.NODE_STATIC
    synonyms = () if value is None else (ConfigSynonym(name, value, source),)
    return ConfigEntry(name, value, source, config_type, documentation, is_read_only=True, synonyms=synonyms)


def apply_changes(
    definitions: Mapping[str, ConfigDefinition], overrides: Mapping[str, str], changes: Sequence[ConfigChange]
) -> dict[str, str] | list[ConfigProblem]:
    """The overrides after `changes`; the values are not judged here, so validate what comes out."""
    changed = dict(overrides)
    problems: list[ConfigProblem] = []
    seen: set[str] = set()
    for change in changes:
        problem = _change_problem(definitions, change, seen)
        seen.add(change.name)
        if problem is not None:
            problems.append(problem)
            continue
        _apply(definitions, changed, change)
    return problems or changed


def _change_problem(
    definitions: Mapping[str, ConfigDefinition], change: ConfigChange, seen: set[str]
) -> ConfigProblem | None:
    name = change.name
    if name in seen:
        return ConfigProblem(name, f"{name[:80]} is changed twice in one request")
    if change.operation is ConfigOperation.DELETE:
        return None
    if change.value is None:
        return ConfigProblem(name, f"{name[:80]} has no value to {change.operation.name.lower()}")
    definition = definitions.get(name)
    is_list = definition is not None and definition.type is ConfigType.LIST
    if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT) and not is_list:
        return ConfigProblem(name, f"{name[:80]} is not a list, so {change.operation.name} cannot change it")
    return None


def _apply(definitions: Mapping[str, ConfigDefinition], overrides: dict[str, str], change: ConfigChange) -> None:
    match change.operation:
        case ConfigOperation.SET:
            overrides[change.name] = change.value or ""
        case ConfigOperation.DELETE:
            overrides.pop(change.name, None)
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            words = split_list(overrides.get(change.name, definitions[change.name].default))
            given = split_list(change.value or "")
            if change.operation is ConfigOperation.APPEND:
                kept = tuple(dict.fromkeys(words + given))
            else:
                kept = tuple(word for word in words if word not in given)
            overrides[change.name] = ",".join(kept)


# What is stored of a node or a group, and how a request changes it.

Validate = Callable[[Mapping[str, str | None]], list[ConfigProblem]]
SettingsChange = Callable[[Mapping[str, str]], dict[str, str] | list[ConfigProblem]]


def replaced_by(overrides: Mapping[str, str | None], validate: Validate) -> SettingsChange:
    """AlterConfigs: what is not named falls back to its default."""

    def change(_: Mapping[str, str]) -> dict[str, str] | list[ConfigProblem]:
        return validate(overrides) or {name: text for name, text in overrides.items() if text is not None}

    return change


def changed_by(
    changes: Sequence[ConfigChange], definitions: Mapping[str, ConfigDefinition], validate: Validate
) -> SettingsChange:
    """IncrementalAlterConfigs: what is not named stays as it is."""

    def change(overrides: Mapping[str, str]) -> dict[str, str] | list[ConfigProblem]:
        after = apply_changes(definitions, overrides, changes)
        if isinstance(after, list):
            return after
        # Only what was touched: an override that a newer version stored must not block every change.
        touched = {each.name for each in changes}
        return validate({name: text for name, text in after.items() if name in touched}) or after

    return change
