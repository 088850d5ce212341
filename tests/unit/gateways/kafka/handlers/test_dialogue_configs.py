"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, DescribeLogDirs: settings, and what lies on the disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.broker.config import BrokerConfig
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_configs, incremental_alter_configs
from penstock.codec.kafka.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from penstock.codec.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.codec.kafka.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.codec.kafka.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.gateways.kafka.server_config import KafkaServerConfig
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, outcome, produce

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
FROM_TOPIC, FROM_NODE, BY_DEFAULT = 1, 4, 5


async def describe(
    talk: Conversation,
    name: str,
    *keys: str,
    kind: int = TOPIC,
    version: int = 4,
    with_synonyms: bool = False,
    with_documentation: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    request = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=with_synonyms, include_documentation=with_documentation
    )
    (result,) = (await talk.ask(request, DescribeConfigsResponse, version)).results
    return result


def by_name(result: DescribeConfigsResult) -> dict[str, DescribeConfigsResourceResult]:
    assert result.error_code == ErrorCode.NONE, result.error_message
    return {config.name: config for config in result.configs}


async def setting(talk: Conversation, topic: str, key: str) -> tuple[str | None, int]:
    config = by_name(await describe(talk, topic, key))[key]
    return config.value, config.config_source


@pytest.mark.parametrize("version", [1, 4])
async def test_topic_settings_say_where_they_come_from(version: int) -> None:
    defaults = {"retention.bytes": "5000", "retention.ms": "7000"}
    async with running_node(broker=BrokerConfig(topic_defaults=defaults)) as node:
        await node.create_topic("orders", retention_ms="1000")
        talk = await node.connect()
        found = by_name(await describe(talk, "orders", version=version, with_synonyms=True, with_documentation=True))
        expected = {"retention.ms": ("1000", FROM_TOPIC), "retention.bytes": ("5000", FROM_NODE)}
        expected["segment.bytes"] = (str(64 * 1024 * 1024), BY_DEFAULT)
        for name, place in expected.items():
            assert (found[name].value, found[name].config_source) == place
            assert version < 3 or found[name].documentation
        synonyms = [(same.name, same.value, same.source) for same in found["retention.ms"].synonyms]
        assert synonyms[:2] == [("retention.ms", "1000", FROM_TOPIC), ("log.retention.ms", "7000", FROM_NODE)]


async def test_only_what_was_asked_for_is_described(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    found = by_name(await describe(talk, "orders", "retention.ms", "nonsense"))
    assert list(found) == ["retention.ms"]
    assert not found["retention.ms"].synonyms
    assert found["retention.ms"].documentation is None


@pytest.mark.parametrize("version", [1, 4])
async def test_node_settings_are_described(talk: Conversation, version: int) -> None:
    found = by_name(await describe(talk, "1", kind=BROKER, version=version))
    assert found["auto.create.topics.enable"].value == "true"
    assert found["log.retention.ms"].value == str(7 * 24 * 3600 * 1000)
    assert found["auto.create.topics.enable"].read_only
    assert not found["log.retention.ms"].read_only
    # Nothing is set for all nodes.
    assert not by_name(await describe(talk, "", kind=BROKER, version=version))


async def test_settings_of_others_are_refused(node: TalkingNode, talk: Conversation) -> None:
    for name, kind, error in (
        ("missing", TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("2", BROKER, ErrorCode.INVALID_REQUEST),
        ("x", 0, ErrorCode.INVALID_REQUEST),
    ):
        result = await describe(talk, name, kind=kind)
        assert (result.error_code, result.resource_type, result.resource_name) == (error, kind, name)
        assert result.error_message


# AlterConfigs: the new settings replace the old


async def replace(
    talk: Conversation,
    topic: str,
    settings: dict[str, str | None],
    *,
    version: int = 2,
    kind: int = TOPIC,
    **flags: bool,
) -> ErrorCode:
    configs = [alter_configs.AlterableConfig(name, value) for name, value in settings.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=topic, configs=configs)
    request = AlterConfigsRequest(resources=(resource,), validate_only=flags.get("validates_only", False))
    (result,) = (await talk.ask(request, AlterConfigsResponse, version)).responses
    assert (result.resource_type, result.resource_name) == (kind, topic)
    assert bool(result.error_message) == (result.error_code != ErrorCode.NONE)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", [0, 2])
async def test_alter_replaces_all_settings(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders", retention_ms="1000", segment_bytes="2048")
    assert (
        await replace(talk, "orders", {"retention.bytes": "7"}, version=version, validates_only=True) == ErrorCode.NONE
    )
    assert await setting(talk, "orders", "retention.ms") == ("1000", FROM_TOPIC)
    assert await replace(talk, "orders", {"retention.bytes": "7"}, version=version) == ErrorCode.NONE
    assert (await setting(talk, "orders", "retention.ms"))[1] == BY_DEFAULT
    assert await setting(talk, "orders", "retention.bytes") == ("7", FROM_TOPIC)


async def test_bad_alterations_change_nothing(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", retention_ms="1000")
    for settings in ({"retention.ms": "x"}, {"nonsense": "1"}, {"retention.ms": "1", "segment.bytes": "-1"}):
        assert await replace(talk, "orders", dict(settings)) == ErrorCode.INVALID_CONFIG
    assert await setting(talk, "orders", "retention.ms") == ("1000", FROM_TOPIC)
    assert await replace(talk, "missing", {"retention.ms": "1"}) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await replace(talk, "9", {"log.retention.ms": "1"}, kind=BROKER) == ErrorCode.INVALID_REQUEST


async def test_alteration_is_in_force_at_the_next_request(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    for limit, error in (("100", ErrorCode.MESSAGE_TOO_LARGE), ("5000", ErrorCode.NONE)):
        assert await replace(talk, "orders", {"max.message.bytes": limit}) == ErrorCode.NONE
        for _ in range(3):
            reply = await talk.ask(produce("orders", batch(b"x" * 100)), ProduceResponse, 9)
            assert outcome(reply)[0] == error


# IncrementalAlterConfigs


async def change(
    talk: Conversation,
    topic: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    kind: int = TOPIC,
    validates_only: bool = False,
) -> ErrorCode:
    configs = [incremental_alter_configs.AlterableConfig(*each) for each in changes]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validates_only)
    (result,) = (await talk.ask(request, IncrementalAlterConfigsResponse, version)).responses
    assert bool(result.error_message) == (result.error_code != ErrorCode.NONE)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", [0, 1])
async def test_incremental_alteration_leaves_the_rest(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders", retention_ms="1000")
    wanted = ("retention.bytes", SET, "7")
    assert await change(talk, "orders", wanted, version=version, validates_only=True) == ErrorCode.NONE
    assert (await setting(talk, "orders", "retention.bytes"))[1] == BY_DEFAULT
    assert await change(talk, "orders", wanted, version=version) == ErrorCode.NONE
    assert await setting(talk, "orders", "retention.ms") == ("1000", FROM_TOPIC)
    assert await setting(talk, "orders", "retention.bytes") == ("7", FROM_TOPIC)
    assert await change(talk, "orders", ("retention.ms", DELETE, None), version=version) == ErrorCode.NONE
    assert (await setting(talk, "orders", "retention.ms"))[1] == BY_DEFAULT


async def test_lists_are_appended_to_and_subtracted_from(node: TalkingNode, talk: Conversation) -> None:
    key = "follower.replication.throttled.replicas"
    await node.create_topic("orders")
    for operation, words, left in ((APPEND, "0:1", "0:1"), (APPEND, "1:1", "0:1,1:1"), (SUBTRACT, "0:1", "1:1")):
        assert await change(talk, "orders", (key, operation, words)) == ErrorCode.NONE
        assert await setting(talk, "orders", key) == (left, FROM_TOPIC)


async def test_bad_changes_are_refused(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    refused: list[tuple[tuple[tuple[str, int, str | None], ...], ErrorCode]] = [
        ((("retention.ms", SET, "x"),), ErrorCode.INVALID_CONFIG),
        ((("retention.ms", SET, None),), ErrorCode.INVALID_REQUEST),
        ((("retention.ms", APPEND, "1"),), ErrorCode.INVALID_CONFIG),
        ((("nonsense", SET, "1"),), ErrorCode.INVALID_CONFIG),
        ((("retention.ms", 9, "1"),), ErrorCode.INVALID_REQUEST),
        ((("retention.ms", SET, "1"), ("retention.ms", DELETE, None)), ErrorCode.INVALID_REQUEST),
    ]
    for changes, error in refused:
        assert await change(talk, "orders", *changes) == error
    assert (await setting(talk, "orders", "retention.ms"))[1] == BY_DEFAULT
    assert await change(talk, "missing", ("retention.ms", SET, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await change(talk, "9", ("log.retention.ms", SET, "1"), kind=BROKER) == ErrorCode.INVALID_REQUEST
    assert await change(talk, "x", ("log.retention.ms", SET, "1"), kind=16) == ErrorCode.INVALID_REQUEST


# Settings of nodes and groups


async def test_changed_default_reaches_the_topics_that_do_not_say_otherwise(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("orders")
    await node.create_topic("own", retention_ms="1000")
    assert await change(talk, "", ("log.retention.ms", SET, "7000"), kind=BROKER) == ErrorCode.NONE
    assert (await setting(talk, "orders", "retention.ms"))[0] == "7000"
    assert await change(talk, "1", ("log.retention.ms", SET, "5000"), kind=BROKER) == ErrorCode.NONE
    assert (await setting(talk, "orders", "retention.ms"))[0] == "5000"
    assert (await setting(talk, "own", "retention.ms"))[0] == "1000"
    served = node.broker.topic("orders")
    assert served is not None
    assert served.config.retention_ms == 5000
    described = by_name(await describe(talk, "1", "log.retention.ms", kind=BROKER, with_synonyms=True))
    layers = [(same.value, same.source) for same in described["log.retention.ms"].synonyms]
    assert layers == [("5000", 2), ("7000", 3), (str(7 * 24 * 3600 * 1000), BY_DEFAULT)]
    assert await change(talk, "1", ("log.retention.ms", DELETE, None), kind=BROKER) == ErrorCode.NONE
    assert await replace(talk, "", {}, kind=BROKER) == ErrorCode.NONE
    assert (await setting(talk, "orders", "retention.ms"))[1] == BY_DEFAULT


async def test_defaults_that_were_changed_survive_a_restart(tmp_path: Path) -> None:
    async with running_node(data_dir=str(tmp_path)) as node:
        await node.create_topic("orders")
        assert await replace(await node.connect(), "1", {"log.segment.bytes": "4096"}, kind=BROKER) == ErrorCode.NONE
    async with running_node(data_dir=str(tmp_path)) as node:
        served = node.broker.topic("orders")
        assert served is not None
        assert served.config.segment_bytes == 4096


async def test_settings_of_a_group_are_kept_before_it_has_members(talk: Conversation) -> None:
    name = "consumer.session.timeout.ms"
    assert by_name(await describe(talk, "readers/ü", name, kind=GROUP))[name].value == "45000"
    assert await change(talk, "readers/ü", (name, SET, "50000"), kind=GROUP) == ErrorCode.NONE
    found = by_name(await describe(talk, "readers/ü", name, kind=GROUP))[name]
    assert (found.value, found.config_source) == ("50000", 8)
    assert by_name(await describe(talk, "readers", name, kind=GROUP))[name].value == "45000"
    assert await change(talk, "readers/ü", (name, DELETE, None), kind=GROUP) == ErrorCode.NONE
    assert by_name(await describe(talk, "readers/ü", name, kind=GROUP))[name].config_source == BY_DEFAULT


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "error"),
    [
        (BROKER, "1", "nonsense", "1", ErrorCode.INVALID_CONFIG),
        (BROKER, "1", "log.retention.ms", "x", ErrorCode.INVALID_CONFIG),
        (BROKER, "1", "log.retention.ms", None, ErrorCode.INVALID_REQUEST),
        (GROUP, "readers", "consumer.session.timeout.ms", "1", ErrorCode.INVALID_CONFIG),
        (GROUP, "readers", "retention.ms", "1", ErrorCode.INVALID_CONFIG),
        (GROUP, "", "consumer.session.timeout.ms", "50000", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_bad_settings_of_nodes_and_groups_are_refused(
    talk: Conversation, kind: int, name: str, key: str, value: str | None, error: ErrorCode
) -> None:
    assert await replace(talk, name, {key: value}, kind=kind) == error
    assert await change(talk, name, (key, SET, value), kind=kind) == error


# DescribeLogDirs


async def test_node_tells_where_clients_are_told_to_connect() -> None:
    async with running_node(kafka=KafkaServerConfig(listen=ANY_PORT, advertised="broker.example:19092")) as node:
        found = by_name(await describe(await node.connect(), "1", kind=BROKER))
        assert found["advertised.listeners"].value == "PLAINTEXT://broker.example:19092"
        assert found["advertised.listeners"].read_only
    async with running_node() as node:
        found = by_name(await describe(await node.connect(), "1", kind=BROKER))
        assert found["advertised.listeners"].value == f"PLAINTEXT://127.0.0.1:{node.server.port}"


@pytest.mark.parametrize("version", [1, 5])
async def test_log_directory_tells_its_topics_and_its_room(tmp_path: Path, version: int) -> None:
    async with running_node(data_dir=str(tmp_path)) as node:
        await node.create_topic("orders", 2)
        await node.create_topic("others")
        talk = await node.connect()
        sent = batch(b"a" * 1000)
        await talk.ask(produce("orders", sent, 1), ProduceResponse, 9)

        async def sizes(request: DescribeLogDirsRequest) -> dict[str, dict[int, int]]:
            (result,) = (await talk.ask(request, DescribeLogDirsResponse, version)).results
            assert (result.error_code, result.log_dir) == (ErrorCode.NONE, str(tmp_path))
            assert version < 4 or result.total_bytes >= result.usable_bytes > 0
            return {
                topic.name: {each.partition_index: each.partition_size for each in topic.partitions}
                for topic in result.topics
            }

        orders = {0: 0, 1: len(sent)}
        assert await sizes(DescribeLogDirsRequest(topics=None)) == {"orders": orders, "others": {0: 0}}
        some = DescribableLogDirTopic(topic="orders", partitions=(1, 7))
        missing = DescribableLogDirTopic(topic="missing", partitions=(0,))
        assert await sizes(DescribeLogDirsRequest(topics=(some, missing))) == {"orders": {1: len(sent)}}


async def test_number_of_connections_changes_while_the_node_runs(node: TalkingNode, talk: Conversation) -> None:
    assert by_name(await describe(talk, "1", kind=BROKER))["max.connections"].value == "10000"
    assert await change(talk, "1", ("max.connections", SET, "2"), kind=BROKER) == ErrorCode.NONE
    second = await node.connect()
    await second.expect_open()
    third = await node.connect()
    await third.expect_closed()
    assert await change(talk, "1", ("max.connections", SET, "3"), kind=BROKER) == ErrorCode.NONE
    await (await node.connect()).expect_open()
    await second.expect_open()


async def test_number_of_background_threads_changes_while_the_node_runs(talk: Conversation) -> None:
    loop = asyncio.get_running_loop()

    assert await change(talk, "", ("background.threads", SET, "3"), kind=BROKER) == ErrorCode.NONE
    barrier = threading.Barrier(3)

    def meet() -> str:
        barrier.wait(PATIENCE_SECONDS)
        return threading.current_thread().name

    names = set(await asyncio.gather(*(loop.run_in_executor(None, meet) for _ in range(3))))
    assert len(names) == 3
    assert all(name.startswith("chore") for name in names)


async def test_a_topic_cannot_ask_for_what_nothing_comes_of(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    for key, value in (("compression.lz4.level", "3"), ("preallocate", "true")):
        assert await change(talk, "orders", (key, SET, value), kind=TOPIC) == ErrorCode.INVALID_CONFIG
    assert await change(talk, "orders", ("preallocate", SET, "false"), kind=TOPIC) == ErrorCode.NONE


async def test_minimum_above_the_replication_is_taken_and_nobody_writes(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    with capture_logs() as logs:
        assert await change(talk, "orders", ("min.insync.replicas", SET, "2"), kind=TOPIC) == ErrorCode.NONE
    (told,) = [each for each in logs if each["event"] == "topic takes no writes with acks=all"]
    assert told["reason"].startswith("min.insync.replicas is 2, and the topic has a replication factor of 1")

    async def write(acks: int) -> int:
        reply = await talk.ask(produce("orders", batch(b"x"), acks=acks), ProduceResponse, version=12)
        return int(reply.responses[0].partition_responses[0].error_code)

    assert await write(-1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert await write(1) == ErrorCode.NONE
    assert await change(talk, "orders", ("min.insync.replicas", SET, "1"), kind=TOPIC) == ErrorCode.NONE
    assert await write(-1) == ErrorCode.NONE
