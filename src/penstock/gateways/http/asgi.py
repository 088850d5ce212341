"""What the HTTP server and the application behind it have in common: the types of ASGI, and an extension of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
# Takes a whole reply: `send`, status, headers, body.
Reply = Callable[[Send, int, list[tuple[bytes, bytes]], bytes], Awaitable[None]]
# Among a scope's extensions, so that any other server can do without it.
REPLY: Final = "penstock.reply"
# Where the guard writes down in a request's scope who asks.
CALLER: Final = "penstock.caller"
