"""No setting is stored and ignored: each is read by something, refused, or about what a node does not have."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import penstock
from penstock.domain.config import node as node_config
from penstock.domain.config import topic as topic_config
from penstock.domain.config.topic import TopicConfig
from penstock.domain.group import settings as group_settings

SOURCES = Path(penstock.__file__).parent
# About what a node does not have: several replicas, Kerberos. Whoever adds a name answers for it.
IDLE = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "sasl.kerberos.min.time.before.relogin",
    "unclean.leader.election.enable",
}


@cache
def sources() -> dict[str, str]:
    return {str(path.relative_to(SOURCES)): path.read_text() for path in SOURCES.rglob("*.py")}


def is_read(pattern: str, *, besides: str = "") -> bool:
    return any(re.search(pattern, text) for name, text in sources().items() if name != besides)


@pytest.mark.parametrize("name", sorted(topic_config.DEFINITIONS))
def test_topic_setting_has_a_reader(name: str) -> None:
    if topic_config.DEFINITIONS[name].idle_because or topic_config.is_refused(name):
        return
    field = name.replace(".", "_")
    assert field in TopicConfig.__struct_fields__, f"{name} is stored, and no field of TopicConfig holds it"
    assert is_read(rf"\.{field}\b"), f"{name} is stored, and nothing looks at TopicConfig.{field}"


@pytest.mark.parametrize("name", sorted(group_settings.DEFINITIONS))
def test_group_setting_has_a_reader(name: str) -> None:
    if not group_settings.DEFINITIONS[name].idle_because:
        own = sources()["domain/group/settings.py"].partition("def value_of")[2]
        is_used = f'"{name}"' in own or is_read(f'"{re.escape(name)}"', besides="domain/group/settings.py")
        assert is_used or "_DEAD_LETTERS" in own, f"{name} is stored, and nobody asks for it"


@pytest.mark.parametrize("name", sorted(node_config.DEFINITIONS))
def test_node_setting_has_a_reader(name: str) -> None:
    if node_config.DEFINITIONS[name].idle_because or name in node_config.TOPIC_SETTING_OF:
        return
    constants = [key for key, value in vars(node_config).items() if value == name and key.isupper()]
    assert constants, f"{name} has no name in node_config"
    assert is_read(rf"\b{constants[0]}\b", besides="domain/config/node.py"), f"{name} is stored, and nothing follows it"


def test_only_what_a_node_does_not_have_is_idle() -> None:
    tables = (topic_config.DEFINITIONS, group_settings.DEFINITIONS, node_config.DEFINITIONS)
    idle = {name for table in tables for name, definition in table.items() if definition.idle_because}
    assert idle == IDLE
