"""One node for all tests of a worker, as clients share a broker in life. Each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node_process import NodeProcess
from support.programs.kcat import Kcat, find_kcat


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    # Samples are dated years ago: retention, which looks every half minute, would take them from a slow test's hands.
    environment = {"PENSTOCK_BROKER__RETENTION_CHECK_MS": "3600000"}
    with NodeProcess(tmp_path_factory.mktemp("node"), environment=environment) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that the test may hurt."""
    with NodeProcess(tmp_path / "own-node") as running:
        yield running


@pytest.fixture(scope="session")
def kcat() -> Kcat:
    found = find_kcat()
    if isinstance(found, str):
        pytest.skip(found)
    return found
