"""What every test folder shares: a name for a topic nobody else uses, and who runs what beside whom."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A new topic's name, with the test's own in it so that a node's log can be read."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{words[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """File by file as ever, but all of tests/pipeline for one worker: a Spark starts slowly, and one is enough."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSpark(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/pipeline" if nodeid.startswith("tests/pipeline/") else super()._split_scope(nodeid)

    return OneSpark(config, log)
