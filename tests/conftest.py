"""What every test folder shares: nothing but a name for a topic nobody else uses."""

from __future__ import annotations

import re
import uuid

import pytest


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A new topic's name, with the test's own in it so that a node's log can be read."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{words[:80]}-{uuid.uuid4().hex[:8]}"
