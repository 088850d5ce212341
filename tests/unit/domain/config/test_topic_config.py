from __future__ import annotations

import pytest

from penstock.domain.config.change import (
    ConfigChange,
    ConfigOperation,
    ConfigSource,
    apply_changes,
    describe,
    node_entry,
)
from penstock.domain.config.definition import ConfigDefinition, ConfigProblem, ConfigType
from penstock.domain.config.topic import (
    DEFINITIONS,
    TopicConfig,
    in_force,
    make_topic_config,
    validate,
    warn_of_minimum,
)

KAFKA_NAMES = [
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
]


def reasons(**overrides: str | None) -> list[str]:
    return [problem.reason for problem in validate({k.replace("_", "."): v for k, v in overrides.items()})]


# Definitions


def test_every_setting_that_kafka_tools_know_is_there() -> None:
    assert [name for name in KAFKA_NAMES if name not in DEFINITIONS] == []


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=lambda definition: definition.name)
def test_every_default_is_legal_and_every_sentence_whole(definition: ConfigDefinition) -> None:
    assert validate({definition.name: definition.default}) == [] or definition.default == ""
    assert not isinstance(definition.parse(definition.default), ConfigProblem)
    assert definition.documentation.endswith(".")
    assert ("No effect here" in definition.described) == bool(definition.idle_because)


def test_what_has_no_effect_says_so() -> None:
    assert "No effect" in DEFINITIONS["unclean.leader.election.enable"].described
    assert "No effect" not in DEFINITIONS["retention.ms"].described


# Typed values


def test_defaults_are_kafkas_apart_from_the_segment_size() -> None:
    assert make_topic_config({}) == TopicConfig(
        cleanup_policy=("delete",),
        compression_gzip_level=-1,
        compression_type="producer",
        compression_zstd_level=3,
        delete_retention_ms=86_400_000,
        durability="fsync",
        durability_interval_ms=1000,
        file_delete_delay_ms=0,
        flush_messages=2**63 - 1,
        flush_ms=2**63 - 1,
        max_compaction_lag_ms=2**63 - 1,
        max_message_bytes=1_048_588,
        message_timestamp_type="CreateTime",
        message_timestamp_after_max_ms=3_600_000,
        message_timestamp_before_max_ms=2**63 - 1,
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        min_insync_replicas=None,
        penstock_delivery_headers=True,
        penstock_record_check=True,
        queue_delete_acked=False,
        retention_after_archive=False,
        retention_archive_group="penstock-archive",
        retention_bytes=-1,
        retention_ms=604_800_000,
        segment_bytes=64 * 1024 * 1024,
        segment_index_bytes=10 * 1024 * 1024,
        segment_jitter_ms=0,
        segment_ms=604_800_000,
    )


def test_a_topic_goes_before_its_node_and_the_node_before_the_default() -> None:
    node = {"retention.ms": "5", "segment.ms": "6"}
    config = make_topic_config({"retention.ms": "7"}, node)
    assert (config.retention_ms, config.segment_ms, config.retention_bytes) == (7, 6, -1)


def test_stored_text_that_is_no_longer_legal_gives_way_to_what_stands_below() -> None:
    config = make_topic_config({"retention.ms": "for ever", "from.the.future": "1"}, {"retention.ms": "5"})
    assert config.retention_ms == 5
    assert make_topic_config({}, {"retention.ms": "x"}).retention_ms == 604_800_000


def test_log_append_time_is_asked_for_by_name() -> None:
    assert make_topic_config({"message.timestamp.type": "LogAppendTime"}).uses_log_append_time
    assert not make_topic_config({}).uses_log_append_time


# Validation


def test_legal_settings_pass() -> None:
    assert (
        reasons(
            cleanup_policy="delete, compact",
            retention_ms="-1",
            segment_bytes="1048576",
            preallocate="FALSE",
            min_cleanable_dirty_ratio="0.25",
            message_timestamp_type="LogAppendTime",
            durability="interval",
            retention_bytes=" 100 ",
        )
        == []
    )


def test_every_problem_is_told_at_once() -> None:
    problems = validate({"retention.ms": "soon", "nonsense": "1", "preallocate": "maybe"})
    assert [problem.name for problem in problems] == ["nonsense", "preallocate", "retention.ms"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("nonsense", "1", "'nonsense' is not a topic setting"),
        ("retention.ms", None, "retention.ms has no value, expected a whole number from -1 to 9223372036854775807"),
        ("retention.ms", "-2", "retention.ms is '-2', expected a whole number from -1 to 9223372036854775807"),
        ("retention.ms", "9223372036854775808", "expected a whole number from -1 to 9223372036854775807"),
        ("retention.ms", "7d", "retention.ms is '7d'"),
        ("retention.ms", "1_000", "retention.ms is '1_000'"),
        ("retention.ms", "٣", "expected a whole number"),
        ("retention.ms", "1.5", "retention.ms is '1.5'"),
        ("retention.ms", "", "retention.ms is ''"),
        ("segment.bytes", "2147483648", "expected a whole number from 1024 to 2147483647"),
        ("segment.bytes", "100", "expected a whole number from 1024 to 2147483647"),
        ("min.cleanable.dirty.ratio", "1.01", "expected a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "expected a number from 0 to 1"),
        ("preallocate", "yes", "preallocate is 'yes', expected true or false"),
        ("compression.type", "brotli", "expected one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("cleanup.policy", "shred", "expected one or more of delete, compact"),
        (
            "durability",
            "replicated",
            "durability=replicated needs min.insync.replicas of at least 2, and it is 1: raise",
        ),
        ("durability", "none", "expected one of fsync, interval, replicated"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_is_allowed(name: str, text: str | None, sentence: str) -> None:
    (problem,) = validate({name: text})
    assert problem.name == name
    assert sentence in problem.reason


def test_a_refusal_does_not_repeat_a_megabyte_of_nonsense() -> None:
    (problem,) = validate({"retention.ms": "9" * 1_000_000})
    assert len(problem.reason) < 300
    (problem,) = validate({"x" * 1_000_000: "1"})
    assert len(problem.reason) < 300


# Describing


def test_each_value_comes_with_its_source_and_what_lies_below_it() -> None:
    (entry,) = describe(DEFINITIONS, {"retention.ms": "7"}, {"retention.ms": "5"}, ["retention.ms"])
    assert (entry.value, entry.source, entry.type) == ("7", ConfigSource.TOPIC, ConfigType.LONG)
    assert [(layer.name, layer.value, layer.source) for layer in entry.synonyms] == [
        ("retention.ms", "7", ConfigSource.TOPIC),
        ("log.retention.ms", "5", ConfigSource.NODE_STATIC),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    ]


def test_all_settings_are_described_in_order_and_unknown_names_left_out() -> None:
    entries = describe(DEFINITIONS, {})
    assert [entry.name for entry in entries] == sorted(DEFINITIONS)
    assert {entry.source for entry in entries} == {ConfigSource.DEFAULT}
    assert [entry.name for entry in describe(DEFINITIONS, {}, names=["x", "segment.ms", "segment.ms"])] == [
        "segment.ms"
    ]


def test_a_node_entry_is_read_only() -> None:
    entry = node_entry("node.id", "1", documentation="The node's number.", config_type=ConfigType.INT)
    assert entry.is_read_only
    assert (entry.value, entry.source, entry.type) == ("1", ConfigSource.NODE_STATIC, ConfigType.INT)


# Changing

SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def test_changes_touch_only_what_they_name() -> None:
    changes = [ConfigChange("a", SET, "9"), ConfigChange("b", DELETE), ConfigChange("missing", DELETE)]
    assert apply_changes(DEFINITIONS, {"a": "1", "b": "2", "c": "3"}, changes) == {"a": "9", "c": "3"}


def test_lists_grow_and_shrink_by_their_words() -> None:
    name = "leader.replication.throttled.replicas"
    changed = apply_changes(DEFINITIONS, {name: "1:1, 1:2"}, [ConfigChange(name, APPEND, "1:2,1:3")])
    assert changed == {name: "1:1,1:2,1:3"}
    changed = apply_changes(DEFINITIONS, {name: "1:1,1:2"}, [ConfigChange(name, SUBTRACT, "1:1")])
    assert changed == {name: "1:2"}
    changed = apply_changes(DEFINITIONS, {}, [ConfigChange("cleanup.policy", APPEND, "compact")])
    assert changed == {"cleanup.policy": "delete,compact"}


def test_impossible_changes_are_all_told() -> None:
    changes = [
        ConfigChange("retention.ms", APPEND, "1"),
        ConfigChange("segment.ms", SET, None),
        ConfigChange("segment.bytes", SET, "1"),
        ConfigChange("segment.bytes", DELETE),
        ConfigChange("nonsense", SUBTRACT, "1"),
    ]
    problems = apply_changes(DEFINITIONS, {}, changes)
    assert isinstance(problems, list)
    assert [problem.reason for problem in problems] == [
        "retention.ms is not a list, so APPEND cannot change it",
        "segment.ms has no value to set",
        "segment.bytes is changed twice in one request",
        "nonsense is not a list, so SUBTRACT cannot change it",
    ]


def test_nothing_is_cleaned_where_no_policy_is_named() -> None:
    assert validate({"cleanup.policy": ""}) == []
    config = make_topic_config({"cleanup.policy": ""})
    assert config.cleanup_policy == ()
    assert not config.is_compacted


def test_lags_that_contradict_each_other_are_refused() -> None:
    (problem,) = validate({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    assert problem.name == "min.compaction.lag.ms"
    assert validate({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}) == []


def test_memories_of_several_nodes_are_needed_for_what_no_disk_has() -> None:
    assert validate({"durability": "replicated", "min.insync.replicas": "2"}) == []
    (problem,) = validate({"durability": "replicated", "min.insync.replicas": "1"})
    assert problem.name == "durability"


def test_more_replicas_in_sync_than_there_are_is_taken_and_told() -> None:
    assert warn_of_minimum({"min.insync.replicas": "3"}, 3) is None
    reason = warn_of_minimum({"min.insync.replicas": "3"}, 2)
    assert reason == (
        "min.insync.replicas is 3, and the topic has a replication factor of 2: acks=all gets NOT_ENOUGH_REPLICAS "
        "until it is 2 or less, or there are 3 replicas"
    )
    # Not said: half of what there is, which is never too many.
    assert warn_of_minimum({}, 1) is None


# What is taken has its effect


@pytest.mark.parametrize(
    ("name", "text", "works"),
    [
        ("compression.lz4.level", "3", "9"),
        ("preallocate", "true", "false"),
        ("index.interval.bytes", "1024", "4096"),
    ],
)
def test_value_that_nothing_would_come_of_is_refused_with_one_that_works(name: str, text: str, works: str) -> None:
    (problem,) = validate({name: text})
    assert f"{name}=" in problem.reason
    assert works in problem.reason
    assert validate({name: works}) == []


def test_stored_value_of_before_is_not_shown_as_if_it_counted() -> None:
    assert in_force({"preallocate": "true", "retention.ms": "5"}) == {"retention.ms": "5"}


def test_limits_of_unsynced_records_hold() -> None:
    config = make_topic_config({"durability": "interval", "flush.ms": "50"})
    assert (config.is_synced, config.sync_interval_ms) == (False, 50)
    assert make_topic_config({"durability": "interval", "durability.interval.ms": "20"}).sync_interval_ms == 20
    assert make_topic_config({"durability": "interval", "flush.messages": "100"}).is_synced
    assert make_topic_config({}).is_synced
