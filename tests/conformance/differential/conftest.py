"""Apache Kafka and a node of ours, both for the whole run, and what was found when they were compared.

Only a run that names this folder or tests/conformance collects it: Apache Kafka's jars are fetched by Maven, and a JVM
is started. PENSTOCK_REFERENCE_BROKER=HOST:PORT names an Apache Kafka that runs already, for who writes dialogues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from conformance.differential.reference_broker import (
    NEVER_MS,
    REAUTHENTICATION_MS,
    USERS,
    ReferenceBroker,
    find_jars,
    has_coordinators,
)
from conformance.differential.talk import Served, served_by_both
from support.door.raw_kafka import HasAddress, RawConnection
from support.node_process import NodeProcess

HERE: Final = Path(__file__).parent
# As the reference broker's properties: no waiting for latecomers, the cleaner looks often, retention never.
NODE_SETTINGS: Final = {
    "PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "0",
    "PENSTOCK_BROKER__CLEANER_CHECK_MS": "500",
    "PENSTOCK_BROKER__RETENTION_CHECK_MS": str(NEVER_MS),
}


LOGIN_SETTINGS: Final = {
    "PENSTOCK_KAFKA__SASL_MECHANISMS": "PLAIN,SCRAM-SHA-256",
    "PENSTOCK_KAFKA__USERS": json.dumps(USERS),
    # The reference broker has no authorizer: whoever is in may do everything.
    "PENSTOCK_ACCESS__SUPER_USERS": ",".join(f"User:{name}" for name in USERS),
    "PENSTOCK_KAFKA__REAUTHENTICATION_MS_MAX": str(REAUTHENTICATION_MS),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True unless somebody asks for conformance: a plain run of all tests must not fetch or start a JVM."""
    asked = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    wanted = any(path == HERE.parent or path == HERE or HERE in path.parents for path in asked)
    return None if wanted else True


class RunningBroker(msgspec.Struct, frozen=True):
    address: tuple[str, int]


class Pair(msgspec.Struct, frozen=True):
    kafka: HasAddress
    penstock: HasAddress
    served: Served


@pytest.fixture(scope="session")
def login_pair(kafka: HasAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The same for doors that ask for a login."""
    if not isinstance(kafka, ReferenceBroker):
        pytest.skip("PENSTOCK_REFERENCE_BROKER names a broker's open door alone")
    settings = {**NODE_SETTINGS, **LOGIN_SETTINGS}
    with NodeProcess(tmp_path_factory.mktemp("penstock-login"), environment=settings) as node:
        door = RunningBroker(kafka.login_address)
        yield Pair(door, node, served_by_both(door, node))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HasAddress]:
    running = os.environ.get("PENSTOCK_REFERENCE_BROKER")
    if running:
        host, _, port = running.rpartition(":")
        yield RunningBroker((host, int(port)))
        return
    jars = find_jars()
    if isinstance(jars, str):
        pytest.skip(f"no Apache Kafka to compare with: {jars}")
    with ReferenceBroker(jars, tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def pair(kafka: HasAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with NodeProcess(tmp_path_factory.mktemp("penstock"), environment=NODE_SETTINGS) as node:
        with RawConnection(node) as connection:
            assert has_coordinators(connection)
        yield Pair(kafka, node, served_by_both(kafka, node))
