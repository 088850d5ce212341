"""A door: where clients of one protocol come in.

    open ─► serving ─► stop_listening ─► drain

A door is made of the parts behind it and its own settings, and wires itself. The node opens doors last and closes them
first: while one is open, everything behind it works.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from penstock.base.config_error import ConfigError
from penstock.gateways.node_address import split_address

# In place of an address: that door stays closed.
OFF: Final = "off"


class Door(Protocol):
    """Caller's duties: `stop_listening` and `drain`, in this order, however far `open` came."""

    @property
    def name(self) -> str:
        """What it is called where a node says that it is ready."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT that it listens on; empty before it is open."""
        ...

    async def open(self) -> None:
        """When it returns, clients are served. Raises ConfigError where the address cannot be had."""
        ...

    async def stop_listening(self) -> None:
        """Nobody new comes in; who is in is served."""
        ...

    async def drain(self) -> None:
        """Answers what is in flight, within a bound, and lets everybody go."""
        ...


def is_off(listen: str) -> bool:
    return listen in ("", OFF)


async def listen_on(start: Callable[[str, int], Awaitable[None]], address: str, what: str) -> None:
    """Raises ConfigError where there is no such address or it is taken."""
    host, port = split_address(address, what)
    try:
        await start(host, port)
    except OSError as error:
        # Without the address, which asyncio puts into its text once more.
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or error
        raise ConfigError(f"{what}: cannot listen on {address}: {reason}") from error
