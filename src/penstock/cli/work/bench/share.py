"""`penstock bench queue --part share`: members of a share group that fetch batches and accept them with their next
fetch, as Kafka's share consumers do. Every answer to an acceptance is given when it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from penstock.base.chance import SYSTEM_CHANCE
from penstock.cli.progress import BenchProgress
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.codec.kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from penstock.net.address import parse_addresses
from penstock.net.connection import Connection
from penstock.net.errors import BrokerError

WAIT_MS: Final = 1_000
_BYTES_MAX: Final = 16 * 1024 * 1024
_ACCEPT: Final = (1,)
_CLOSING: Final = -1

Place = tuple[bytes, int]


class ShareBenchMember:
    """One member of a share group on a connection of its own."""

    def __init__(self, connection: Connection, group: str, batch: int) -> None:
        self._connection = connection
        self._group = group
        self._batch = batch
        self._member_id = str(SYSTEM_CHANCE.uuid())
        self._epoch = 0
        self._held: dict[Place, list[AcknowledgementBatch]] = {}
        self._places: list[Place] = []

    async def join(self, topic: str) -> None:
        """Before there is anything in the topic: a share group begins at its end."""
        request = ShareGroupHeartbeatRequest(self._group, self._member_id, 0, None, (topic,))
        reply = await self._connection.call(request, ShareGroupHeartbeatResponse)
        if reply.error_code:
            raise BrokerError(reply.error_code, f"group {self._group!r}", reply.error_message)
        assert reply.assignment is not None, "who joins is assigned something"
        self._places = [
            (part.topic_id, number) for part in reply.assignment.topic_partitions for number in part.partitions
        ]

    async def step(self, *, is_last: bool = False) -> int:
        """Accepts what it holds and takes more; how many messages that are."""
        places: Sequence[Place] = self._places if self._epoch == 0 else list(self._held)
        request = ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=_CLOSING if is_last else self._epoch,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=_BYTES_MAX,
            max_records=self._batch,
            batch_size=self._batch,
            topics=[FetchTopic(place[0], [FetchPartition(place[1], self._held.get(place, ()))]) for place in places],
        )
        self._held = {}
        self._epoch += 1
        reply = await self._connection.call(request, ShareFetchResponse)
        if reply.error_code:
            raise BrokerError(reply.error_code, f"group {self._group!r}", reply.error_message)
        return self._take(reply)

    def _take(self, reply: ShareFetchResponse) -> int:
        count = 0
        for topic in reply.responses:
            for data in topic.partitions:
                code = data.error_code or data.acknowledge_error_code
                if code:
                    message = data.error_message or data.acknowledge_error_message
                    raise BrokerError(code, f"partition {data.partition_index}", message)
                for part in data.acquired_records:
                    count += part.last_offset - part.first_offset + 1
                    held = self._held.setdefault((topic.topic_id, data.partition_index), [])
                    held.append(AcknowledgementBatch(part.first_offset, part.last_offset, _ACCEPT))
        return count


@asynccontextmanager
async def share_members(
    bootstrap: str, topic: str, *, batch: int, connections: int
) -> AsyncIterator[list[ShareBenchMember]]:
    """They have joined: what is produced from now on is for them."""
    clients = [ClusterClient(parse_addresses(bootstrap)) for _ in range(connections)]
    try:
        members = []
        for client in clients:
            await client.connect()
            member = ShareBenchMember(await client.leader(topic, 0), f"{topic}-group", batch)
            await member.join(topic)
            members.append(member)
        yield members
    finally:
        for client in clients:
            client.close()


async def accept_all(members: Sequence[ShareBenchMember], messages: int) -> float:
    """Messages a second, until all of them have been accepted."""
    done = 0
    began = perf_counter()

    async def run(member: ShareBenchMember) -> None:
        nonlocal done
        while done < messages and (count := await member.step()):
            done += count
            progress.update(done, f"{done / max(perf_counter() - began, 0.001):,.0f} msg/s")
        await member.step(is_last=True)

    with BenchProgress("share group", float(messages)) as progress:
        async with asyncio.TaskGroup() as workers:
            for member in members:
                workers.create_task(run(member))
    seconds = perf_counter() - began
    assert done >= messages, f"{done} of {messages} messages came"
    return done / max(seconds, 0.000_001)
