"""The short way of produce requests, watched: which frames a route was asked to take, and whether it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.gateways.kafka.connection import KafkaConnection, Route
from support.door.conversation import TalkingNode

# The frame's bytes, and whether the route has taken it.
Note = Callable[[int, bool], None]


class _WatchedRoute:
    def __init__(self, true: Route, note: Note) -> None:
        self._true = true
        self._note = note

    def take(self, connection: KafkaConnection, buffer: bytearray, view: memoryview, start: int, end: int) -> bool:
        is_taken = self._true.take(connection, buffer, view, start, end)
        self._note(end - start, is_taken)
        return is_taken


def watch_routes(node: TalkingNode, note: Note) -> None:
    """Of all connections of the node, from now on."""
    learn = node.server._learn_route

    def learn_watched(*arguments: Any) -> Route | None:
        route = learn(*arguments)
        return None if route is None else _WatchedRoute(route, note)

    node.server._learn_route = learn_watched


def frames_taken(node: TalkingNode) -> list[int]:
    """The sizes of the frames that go the short way, as they come."""
    sizes: list[int] = []
    watch_routes(node, lambda frame_bytes, is_taken: sizes.append(frame_bytes) if is_taken else None)
    return sizes
