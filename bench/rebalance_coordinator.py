"""The coordinator's own share of a classic rebalance, and how often it asks members of the consumer protocol to beat.

A classic group moves at the pace of its members: each learns of a change at its next heartbeat, and the round ends when
the last one has come. Here a hundred members are a hundred connections of one process that do nothing but answer at
once, so that what is left is the coordinator: from the last JoinGroup that it waits for to the last answer, and from
the leader's SyncGroup to the last answer. What this process takes to write and to read is in these figures too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.codec.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.codec.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.codec.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.domain.group.subscription import write_assignment, write_subscription
from penstock.net.address import parse_addresses
from penstock.net.connection import Connection, ConnectionOptions

SESSION_MS: Final = 30_000
TIMEOUT_MS: Final = 30_000


class OwnTime(msgspec.Struct, frozen=True):
    members: int
    # From the last JoinGroup to the last answer, and from the leader's SyncGroup to the last answer.
    join_ms: float
    sync_ms: float
    # From the LeaveGroup to the last SyncGroup's answer, with members that answer at once.
    round_ms: float

    @property
    def own_ms(self) -> float:
        return self.join_ms + self.sync_ms


class _Member:
    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.connection = connection
        self.member_id = ""
        self.generation = -1
        self._group = group
        self._metadata = write_subscription([topic])

    async def send_join(self) -> asyncio.Future[JoinGroupResponse]:
        protocol = JoinGroupRequestProtocol(name="range", metadata=self._metadata)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return await self.connection.send(request, JoinGroupResponse, timeout_ms=TIMEOUT_MS)

    async def send_sync(
        self, assignments: Sequence[SyncGroupRequestAssignment] = ()
    ) -> asyncio.Future[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        return await self.connection.send(request, SyncGroupResponse, timeout_ms=TIMEOUT_MS)

    async def beat(self) -> int:
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self.member_id)
        return (await self.connection.call(request, HeartbeatResponse)).error_code

    async def leave(self) -> None:
        identity = MemberIdentity(member_id=self.member_id)
        reply = await self.connection.call(
            LeaveGroupRequest(group_id=self._group, members=[identity]), LeaveGroupResponse
        )
        assert reply.error_code == 0


async def classic_own_time(bootstrap: str, group: str, topic: str, *, members: int, partitions: int) -> OwnTime:
    """`group` must be new: nobody leaves it at the end but the one who is measured."""
    (address, *_) = parse_addresses(bootstrap)
    crew = [_Member(await Connection.open(address, ConnectionOptions()), group, topic) for _ in range(members)]
    try:
        for member in crew:
            # The first answer is a name, and the request to come back with it.
            member.member_id = (await (await member.send_join())).member_id
        leader, _ = await _join(crew)
        await _sync(crew, leader, topic, partitions)
        gone = next(member for member in crew if member is not leader)
        rest = [member for member in crew if member is not gone]
        began = time.perf_counter()
        await gone.leave()
        codes = await asyncio.gather(*(member.beat() for member in rest))
        assert set(codes) == {ErrorCode.REBALANCE_IN_PROGRESS}, set(codes)
        leader, join_seconds = await _join(rest)
        sync_seconds = await _sync(rest, leader, topic, partitions)
        return OwnTime(members, 1000 * join_seconds, 1000 * sync_seconds, 1000 * (time.perf_counter() - began))
    finally:
        for member in crew:
            member.connection.close()


async def _join(crew: Iterable[_Member]) -> tuple[_Member, float]:
    """The leader, and the seconds between the last request and the last answer."""
    waiting = [(member, await member.send_join()) for member in crew]
    last_sent = time.perf_counter()
    replies = [(member, await reply) for member, reply in waiting]
    seconds = time.perf_counter() - last_sent
    for member, reply in replies:
        assert reply.error_code == 0, ErrorCode(reply.error_code)
        member.generation = reply.generation_id
    return next(member for member, reply in replies if reply.leader == member.member_id), seconds


async def _sync(crew: Sequence[_Member], leader: _Member, topic: str, partitions: int) -> float:
    """The seconds between the leader's request and the last answer."""
    shares = [tuple(range(place, partitions, len(crew))) for place in range(len(crew))]
    assignments = [
        SyncGroupRequestAssignment(
            member_id=member.member_id, assignment=write_assignment(((topic, share),), version=1)
        )
        for member, share in zip(crew, shares, strict=True)
    ]
    waiting = [await member.send_sync() for member in crew if member is not leader]
    sent = time.perf_counter()
    waiting.append(await leader.send_sync(assignments))
    replies = await asyncio.gather(*waiting)
    assert all(reply.error_code == 0 and reply.assignment for reply in replies)
    return time.perf_counter() - sent


async def heartbeat_intervals_ms(bootstrap: str, topic: str, counts: Sequence[int]) -> dict[int, int]:
    """By the number of members: how often the coordinator tells a member of the consumer protocol to beat."""
    (address, *_) = parse_addresses(bootstrap)
    connection = await Connection.open(address, ConnectionOptions())
    found: dict[int, int] = {}
    try:
        for number in range(1, max(counts) + 1):
            request = ConsumerGroupHeartbeatRequest(
                group_id="intervals",
                member_id=f"member-{number}",
                rebalance_timeout_ms=SESSION_MS,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            reply = await connection.call(request, ConsumerGroupHeartbeatResponse)
            assert reply.error_code == 0, reply.error_message
            if number in counts:
                found[number] = reply.heartbeat_interval_ms
    finally:
        connection.close()
    return found
