"""Settings of the node itself that change while it runs: whoever they are for is told, now and whenever they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.topic_image import Change, NodeConfigChanged
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.domain.config.node import number_of


def follow_setting(
    catalog: TopicCatalog, node_id: int, name: str, settle: Callable[[int], None], configured: int | None = None
) -> None:
    """`configured` is what the node's configuration says, None if it does not speak of it."""
    told: list[int] = []

    def look() -> None:
        value = number_of(name, configured, catalog.node_config(None), catalog.node_config(node_id))
        if [value] != told:
            told[:] = [value]
            settle(value)

    def on_change(change: Change) -> None:
        if isinstance(change, NodeConfigChanged):
            look()

    catalog.on_change(on_change, Part.SETTINGS)
    look()


def set_background_threads(count: int) -> None:
    """Of the executor that chores run in. What was begun in the one before ends there."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(count, thread_name_prefix="chore"))
