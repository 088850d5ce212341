"""Asks one node, and no other, about what it led: a node that was replaced may say no, or nothing, but nothing wrong.

Questions may be sent while the node stands still: it finds them when it wakes, before any of its timers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.chaos.checks import Acked, Sent
from support.door.raw_kafka import PRODUCE_VERSION, RawConnection, one_batch, produce_request
from support.node_process import NodeProcess

OFFSET_FETCH_VERSION: Final = 9
TIMEOUT_MS: Final = 2_000
_NAME: Final = "witness"


class Witness:
    """Values that were asked for in vain may be in the log: they were sent."""

    def __init__(self, node: NodeProcess, topic: str, *, timeout_seconds: float = 30.0) -> None:
        self.sent: dict[str, Sent] = {}
        self.acked: dict[str, Acked] = {}
        self.refusals: list[ErrorCode] = []
        self._topic = topic
        self._node = node
        self._timeout_seconds = timeout_seconds
        self._produces: list[tuple[int, str, RawConnection]] = []
        self._number = 0

    def ask_produce(self, partitions: Iterable[int]) -> None:
        """Each by a connection of its own: nobody waits for another one's answer."""
        for partition in partitions:
            value = f"{_NAME}-{self._node.kafka}-{partition}-{self._number}"
            self._number += 1
            connection = RawConnection(self._node, timeout_seconds=self._timeout_seconds)
            self.sent[value] = Sent(f"{_NAME}-{value}", 0, time.monotonic())
            request = produce_request(self._topic, {partition: one_batch(value.encode())}, timeout_ms=TIMEOUT_MS)
            connection.send(request, PRODUCE_VERSION)
            self._produces.append((partition, value, connection))

    def hear(self) -> None:
        """The answers to all of it; who closes the connection has said nothing."""
        for partition, value, connection in self._produces:
            try:
                _, reply = connection.receive(ProduceResponse, PRODUCE_VERSION)
            except (AssertionError, OSError):
                continue
            finally:
                connection.close()
            (answer,) = reply.responses[0].partition_responses
            if answer.error_code == ErrorCode.NONE:
                self.acked[value] = Acked(partition, answer.base_offset, time.monotonic())
            else:
                self.refusals.append(ErrorCode(answer.error_code))
        self._produces.clear()


class PositionsAsked:
    """What a node says of a group's position, asked for when this was made."""

    def __init__(self, node: NodeProcess, group: str, topic: str) -> None:
        self._connection = RawConnection(node, timeout_seconds=30.0)
        wanted = OffsetFetchRequestGroup(
            group_id=group, topics=(OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),)
        )
        self._connection.send(OffsetFetchRequest(groups=(wanted,), require_stable=True), OFFSET_FETCH_VERSION)

    def hear(self) -> tuple[ErrorCode, int]:
        """The position counts where there is no error."""
        with self._connection:
            _, reply = self._connection.receive(OffsetFetchResponse, OFFSET_FETCH_VERSION)
        (group,) = reply.groups
        if group.error_code != ErrorCode.NONE:
            return ErrorCode(group.error_code), -1
        (partition,) = group.topics[0].partitions
        return ErrorCode(partition.error_code), partition.committed_offset
