"""Who looks after a group or a transactional id: asked for, and asked again while it is not ready."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.net.connection import Connection
from penstock.net.errors import BrokerError

# A coordinator that moves or starts is back within a second or two: 20 times 100 ms.
ATTEMPTS_MAX: Final = 20
RETRY_MS: Final = 100

_NOT_YET: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_WORDS: Final = ("group", "transactional id")


class CoordinatorKind(IntEnum):
    """Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1


async def find_coordinator(client: ClusterClient, kind: CoordinatorKind, key: str) -> tuple[Connection, int]:
    """A connection to it, and its node id."""
    request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=(key,))
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(RETRY_MS / 1000)
        reply = await client.call(request, FindCoordinatorResponse)
        answer = reply.coordinators[0] if reply.coordinators else reply
        if answer.error_code == ErrorCode.NONE:
            return await client.connection_to(answer.node_id), answer.node_id
        if answer.error_code not in _NOT_YET:
            break
    raise BrokerError(answer.error_code, f"coordinator of {_WORDS[kind]} {key!r}", answer.error_message)
