"""One connection for all that a query asks of the cluster: the driver's Python process lives as long as the query.

A node that is away for a while is waited for; one that was never reached is told of soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.patience import ask_patiently
from penstock.net.address import parse_addresses

FIRST_PATIENCE_MS: Final = 5_000
PATIENCE_MS: Final = 120_000

Answer = TypeVar("Answer")


class SourceLine:
    """Blocking, with a loop of its own: Spark calls from a thread without one. Goes into a pickle unconnected."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: ClusterClient | None = None

    def ask(self, question: Callable[[ClusterClient], Awaitable[Answer]], *, patience_ms: int = PATIENCE_MS) -> Answer:
        """It may be asked more than once."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._ask(question, patience_ms))

    async def _ask(self, question: Callable[[ClusterClient], Awaitable[Answer]], patience_ms: int) -> Answer:
        if self._client is None:
            client = ClusterClient(parse_addresses(self._bootstrap))
            await ask_patiently(client.connect, patience_ms=FIRST_PATIENCE_MS)
            self._client = client
        client = self._client
        return await ask_patiently(lambda: question(client), patience_ms=patience_ms)

    def close(self) -> None:
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        if client is not None:
            client.close()
        if loop is not None:
            # Closed connections say goodbye in their next step.
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceLine, (self._bootstrap,)
