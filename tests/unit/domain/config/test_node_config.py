"""Settings of nodes and of groups that change while the node runs."""

from __future__ import annotations

import pytest

from penstock.domain.config import node as node_config
from penstock.domain.config import topic as topic_config
from penstock.domain.config.change import ConfigChange, ConfigOperation, ConfigSource, changed_by, replaced_by
from penstock.domain.group import settings as group_settings


def test_every_default_of_a_topic_setting_can_be_changed() -> None:
    for definition in topic_config.DEFINITIONS.values():
        if definition.node_name is not None:
            assert node_config.DEFINITIONS[definition.node_name].type is definition.type
            assert node_config.validate({definition.node_name: definition.default}) == []


def test_later_layers_win() -> None:
    defaults = node_config.topic_defaults(
        {"retention.ms": "1", "segment.ms": "2"}, {"log.retention.ms": "3"}, {"log.retention.ms": "4", "unknown": "5"}
    )
    assert defaults == {"retention.ms": "4", "segment.ms": "2"}


def test_description_names_every_layer_in_order() -> None:
    described = {
        entry.name: entry
        for entry in node_config.describe({"retention.ms": "1"}, {"log.retention.ms": "2"}, {"log.retention.ms": "3"})
    }
    entry = described["log.retention.ms"]
    assert (entry.value, entry.source, entry.is_read_only) == ("3", ConfigSource.NODE_DYNAMIC, False)
    assert [(same.value, same.source) for same in entry.synonyms][:3] == [
        ("3", ConfigSource.NODE_DYNAMIC),
        ("2", ConfigSource.NODE_DYNAMIC_DEFAULT),
        ("1", ConfigSource.NODE_STATIC),
    ]
    assert "No effect" in described["sasl.kerberos.min.time.before.relogin"].documentation


@pytest.mark.parametrize(
    ("name", "text"),
    [("nonsense", "1"), ("log.retention.ms", "x"), ("log.retention.ms", None), ("background.threads", "0")],
)
def test_bad_setting_of_a_node_is_refused_with_a_reason(name: str, text: str | None) -> None:
    (problem,) = node_config.validate({name: text})
    assert problem.name == name
    assert problem.reason


@pytest.mark.parametrize(
    ("name", "text", "is_good"),
    [
        ("consumer.session.timeout.ms", "50000", True),
        ("consumer.session.timeout.ms", "1000", False),
        ("share.auto.offset.reset", "earliest", True),
        ("share.auto.offset.reset", "never", False),
        ("share.auto.offset.reset", "by_duration:PT1H", True),
        ("share.auto.offset.reset", "by_duration:P2DT30M1.5S", True),
        ("share.auto.offset.reset", "by_duration:P", False),
        ("share.auto.offset.reset", "by_duration:PT", False),
        ("share.auto.offset.reset", "by_duration:1h", False),
        ("retention.ms", "1", False),
        ("share.session.timeout.ms", None, False),
    ],
)
def test_settings_of_a_group_have_bounds(name: str, text: str | None, is_good: bool) -> None:
    assert (group_settings.validate({name: text}) == []) is is_good


def test_dead_letters_of_a_share_group_cannot_go_to_the_brokers_own_topics() -> None:
    name = "errors.deadletterqueue.topic.name"
    assert group_settings.validate({name: "__consumer_offsets"}) != []
    assert group_settings.validate({name: "a b"}) != []
    assert group_settings.validate({name: "dlq.orders"}) == []
    assert group_settings.validate({name: ""}) == []


def test_change_touches_what_it_names_and_replacement_everything() -> None:
    stored = {"log.retention.ms": "5", "from.the.future": "x"}
    change = changed_by(
        [ConfigChange("log.segment.bytes", ConfigOperation.SET, "4096")], node_config.DEFINITIONS, node_config.validate
    )
    assert change(stored) == {**stored, "log.segment.bytes": "4096"}
    assert replaced_by({"log.segment.bytes": "4096"}, node_config.validate)(stored) == {"log.segment.bytes": "4096"}


def test_list_that_a_node_has_by_default_is_appended_to() -> None:
    change = changed_by(
        [ConfigChange("log.cleanup.policy", ConfigOperation.APPEND, "compact")],
        node_config.DEFINITIONS,
        node_config.validate,
    )
    assert change({}) == {"log.cleanup.policy": "delete,compact"}
