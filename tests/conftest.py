"""What every test folder shares: a topic of its own, bytecode, who runs what beside whom, and what runs first."""

from __future__ import annotations

import os
import re
import sys
import uuid
from typing import Any, Final

import pytest

# Hundreds of nodes and commands are started here, and planted bugs import half of the package anew: compiled once, as
# Python does unless an environment forbids it. A start would take twice the processor time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# The rest follows. One worker has all of Spark and would else be the last to end, long after the others; what is small
# fills the gaps at the end.
FIRST: Final = ("tests/pipeline/", "tests/cluster/", "tests/conformance/", "tests/sim/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in FIRST])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A new topic's name, with the test's own in it so that a node's log can be read."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{words[:80]}-{uuid.uuid4().hex[:8]}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """File by file, in their order, but all of tests/pipeline for one worker: a Spark starts slowly, one is enough."""
    if config.getoption("dist") != "loadfile":
        return None
    # By the number of tests the longest would come last: a hundred seconds of kill -9 are one test.
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadFileScheduling

    class OneSpark(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/pipeline" if nodeid.startswith("tests/pipeline/") else super()._split_scope(nodeid)

    return OneSpark(config, log)
