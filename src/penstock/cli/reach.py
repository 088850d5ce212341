"""Asks for a node before work begins that takes long to begin."""

from __future__ import annotations

import asyncio

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses


def reach_node(bootstrap: str) -> None:
    """Blocking. Raises if none answers: Spark takes seconds to start, and whoever waits for it would hear it then."""
    asyncio.run(_reach(bootstrap))


async def _reach(bootstrap: str) -> None:
    async with ClusterClient(parse_addresses(bootstrap)):
        pass
