"""Every test here hurts its node, so each has one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node_process import NodeProcess


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node") as running:
        yield running
