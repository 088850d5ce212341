"""A node on which groups of a test are complete at once, and members that die are missed within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from support.node_process import NodeProcess

# Real clients beat every third of a second here, so three of their heartbeats may be late before a member is missed.
SESSION_MS: Final = 2_000
HEARTBEAT_MS: Final = 300
# For a node that will be killed: some clients wait for seconds before they look for it again, and a member that is
# thrown out meanwhile proves nothing.
LONG_SESSION_MS: Final = 20_000


def node_for_groups(directory: Path, *, session_ms: int = SESSION_MS) -> NodeProcess:
    """`session_ms` is for members of the consumer protocol: those of the classic one bring their own."""
    environment = {
        # A little: members that are started together should meet in their first generation.
        "PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "100",
        "PENSTOCK_GROUPS__SESSION_TIMEOUT_MS_MIN": "500",
        "PENSTOCK_GROUPS__CONSUMER_SESSION_TIMEOUT_MS": str(session_ms),
        "PENSTOCK_GROUPS__HEARTBEAT_INTERVAL_MS": str(HEARTBEAT_MS),
    }
    return NodeProcess(directory, environment=environment)
