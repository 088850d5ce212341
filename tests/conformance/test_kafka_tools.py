"""Kafka's own command-line tools against a node: what an operator types, and that it does not fail.

Each call starts a Java program, so there are few of them; what the tools ask on the wire is compared with what Apache
Kafka answers in `differential/dialogue_one_node.py`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from conformance.differential.reference_broker import JAVA_OPTIONS, TOOLS, find_jars, find_java
from penstock.codec.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from support.door.raw_kafka import RawConnection
from support.node_process import NodeProcess

pytestmark = pytest.mark.slow

# A second on a free machine.
TOOL_SECONDS_MAX: Final = 120
PACKAGE: Final = "org.apache.kafka.tools"


class Tools:
    def __init__(self, node: NodeProcess, class_path: str) -> None:
        self._node = node
        self._class_path = class_path

    def run(self, tool: str, *arguments: str, fails: bool = False) -> str:
        """What the tool prints. It must succeed, or fail where that is the point."""
        java = find_java()
        assert java is not None
        where = ("--bootstrap-server", self._node.kafka)
        # Most want it before the subcommand, if they have one.
        words = (*arguments, *where) if tool.endswith("ClusterTool") else (*where, *arguments)
        command = [java, *JAVA_OPTIONS, "-cp", self._class_path, tool, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX)
        assert (done.returncode != 0) == fails, f"{' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    jars = [find_jars(TOOLS), find_jars()]
    for found in jars:
        if isinstance(found, str):
            pytest.skip(found)
    with NodeProcess(tmp_path_factory.mktemp("node")) as node:
        with RawConnection(node) as connection:
            connection.ask(CreateTopicsRequest(topics=(CreatableTopic("things", 2, 1),)), CreateTopicsResponse, 7)
        yield Tools(node, ":".join(f"{found}/*" for found in jars))


def test_leaders_are_elected_already(tools: Tools) -> None:
    said = tools.run(
        f"{PACKAGE}.LeaderElectionCommand", "--election-type", "preferred", "--topic", "things", "--partition", "0"
    )
    assert "Valid replica already elected for partitions things-0" in said


def test_partitions_are_reassigned_to_where_they_are(tools: Tools, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "things", "partition": 0, "replicas": [1]}]}))
    reassign = f"{PACKAGE}.reassign.ReassignPartitionsCommand"
    assert "No partition reassignments found" in tools.run(reassign, "--list")
    assert "Successfully started" in tools.run(reassign, "--execute", "--reassignment-json-file", str(plan))
    assert "is completed" in tools.run(reassign, "--verify", "--reassignment-json-file", str(plan))


def test_the_quorum_is_the_node(tools: Tools) -> None:
    said = tools.run(f"{PACKAGE}.MetadataQuorumCommand", "describe", "--status")
    assert "LeaderId:               1" in said
    assert "MaxFollowerLag:         0" in said


def test_features_are_described_and_stay(tools: Tools) -> None:
    assert "group.version" in tools.run(f"{PACKAGE}.FeatureCommand", "describe")
    said = tools.run(f"{PACKAGE}.FeatureCommand", "downgrade", "--feature", "group.version=0", fails=True)
    assert "cannot be taken back" in said


def test_another_node_is_not_registered(tools: Tools) -> None:
    assert "there is no node 7" in tools.run(f"{PACKAGE}.ClusterTool", "unregister", "--id", "7", fails=True)


@pytest.mark.parametrize("kind", ["users", "clients", "groups", "client-metrics", "brokers"])
def test_settings_are_described_without_a_name(tools: Tools, kind: str) -> None:
    tools.run("kafka.admin.ConfigCommand", "--describe", "--entity-type", kind)


def test_a_limit_that_would_have_no_effect_is_refused_with_the_reason(tools: Tools) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    said = tools.run(
        "kafka.admin.ConfigCommand", "--alter", *user, "--add-config", "producer_byte_rate=1024", fails=True
    )
    assert "does not limit clients" in said


def test_voters_are_not_removed(tools: Tools) -> None:
    voter = ("--controller-id", "1", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    said = tools.run(f"{PACKAGE}.MetadataQuorumCommand", "remove-controller", *voter, fails=True)
    assert "the voters do not change" in said


def test_there_are_no_streams_groups(tools: Tools) -> None:
    command = f"{PACKAGE}.streams.StreamsGroupCommand"
    tools.run(command, "--list")
    assert "not served" in tools.run(command, "--describe", "--group", "pipes", fails=True)


def test_settings_of_a_group_and_of_the_node_change(tools: Tools) -> None:
    command = "kafka.admin.ConfigCommand"
    group = ("--entity-type", "groups", "--entity-name", "readers")
    tools.run(command, "--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in tools.run(command, "--describe", "--entity-type", "groups")
    node = ("--entity-type", "brokers", "--entity-name", "1")
    tools.run(command, "--alter", *node, "--add-config", "max.connections=500")
    said = tools.run(command, "--describe", *node, "--all")
    assert "max.connections=500" in said
    assert "advertised.listeners=PLAINTEXT://127.0.0.1:" in said
    topic = ("--entity-type", "topics", "--entity-name", "things")
    tools.run(command, "--alter", *topic, "--add-config", "compression.type=zstd,file.delete.delay.ms=1000")
    assert "compression.type=zstd" in tools.run(command, "--describe", *topic)
    said = tools.run(command, "--alter", *topic, "--add-config", "preallocate=true", fails=True)
    assert "use false" in said
