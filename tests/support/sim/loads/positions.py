"""Offsets of groups: committed from outside, and by members of a group of the newer protocol (KIP-848)."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.coordinators import CoordinatorKind, find_coordinator
from penstock.client.kafka.groups import commit_offsets, committed_offsets
from penstock.client.patience import ask_patiently
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.codec.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.net.connection import Connection
from penstock.net.errors import BrokerError
from support.sim.client import PARTITIONS, SimClient
from support.sim.ledger import Register
from support.sim.log_checks import check_position
from support.sim.reading import PATIENCE_MS
from support.sim.world import World

TOPIC: Final = "tracks"
OUTSIDE: Final = "watchers"
INSIDE: Final = "workers"
MEMBERS: Final = 2
REBALANCE_MS: Final = 5_000
# A member leaves now and then, and comes again as another.
LEAVE_CHANCE: Final = 0.03
LEFT_EPOCH: Final = -1
NOT_A_MEMBER: Final = frozenset({
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
})  # fmt: skip

Positions = dict[tuple[str, int], Register]


class PositionLoad:
    rests_on = frozenset({CONSUMER_OFFSETS})

    def __init__(self, world: World) -> None:
        self._world = world
        self._positions: Positions = {}

    async def prepare(self, client: ClusterClient) -> None:
        await create_topic(client, TOPIC, partitions=PARTITIONS)

    def clients(self) -> list[SimClient]:
        members = [SimMember(f"member-{number}", self._world, self._positions) for number in range(MEMBERS)]
        return [SimCommitter("committer", self._world, self._positions), *members]

    async def check(self, client: ClusterClient) -> None:
        for group in (OUTSIDE, INSIDE):
            asked_after = self._world.loop.time()
            found = await ask_patiently(partial(committed_offsets, client, group), patience_ms=PATIENCE_MS)
            for (of_group, partition), register in sorted(self._positions.items()):
                if of_group == group:
                    offset = found.get((TOPIC, partition), -1)
                    what = f"{group} on partition {partition}"
                    check_position(register, offset, asked_after=asked_after, what=what)


class SimCommitter(SimClient):
    """Commits one offset after the other for a group, and looks at times what is committed."""

    def __init__(self, name: str, world: World, positions: Positions) -> None:
        super().__init__(name, world)
        self._positions = positions

    async def _work(self, client: ClusterClient) -> None:
        while not self.is_stopping:
            partition = self._random.randrange(PARTITIONS)
            register = self._positions.setdefault((OUTSIDE, partition), Register())
            written = register.ask(len(register.written), self._now())
            await commit_offsets(client, OUTSIDE, {(TOPIC, partition): written.value})
            written.confirmed_at = self._now()
            if self._random.random() < 0.2:
                await self._look(client)
            await self._rest()

    async def _look(self, client: ClusterClient) -> None:
        asked_after = self._now()
        found = await committed_offsets(client, OUTSIDE)
        for (group, partition), register in sorted(self._positions.items()):
            if group == OUTSIDE:
                offset = found.get((TOPIC, partition), -1)
                check_position(register, offset, asked_after=asked_after, what=f"{group} on partition {partition}")


class SimMember(SimClient):
    """Joins, is given partitions, commits what it has of them, leaves or is lost."""

    def __init__(self, name: str, world: World, positions: Positions) -> None:
        super().__init__(name, world)
        self._positions = positions
        self._life = 0

    async def _work(self, client: ClusterClient) -> None:
        connection, _node_id = await find_coordinator(client, CoordinatorKind.GROUP, INSIDE)
        topic_id = (await client.topic(TOPIC)).topic_id
        # The same one again after trouble: one that is lost keeps its partitions for longer than a story lasts.
        membership = _Membership(connection, f"{self.name}-{self._life}", topic_id)
        await membership.join()
        while not self.is_stopping:
            await membership.beat()
            for partition in membership.partitions:
                await self._commit(membership, partition)
            if self._random.random() < LEAVE_CHANCE:
                self._life += 1
                await membership.leave()
                return
            await self._rest()

    async def _commit(self, membership: _Membership, partition: int) -> None:
        register = self._positions.setdefault((INSIDE, partition), Register())
        written = register.ask(len(register.written), self._now())
        try:
            await membership.commit(partition, written.value)
        except BrokerError as error:
            if error.code in NOT_A_MEMBER:
                # Somebody else may have the partition by now, and his commits are not to be written over.
                register.written.remove(written)
            raise
        written.confirmed_at = self._now()


class _Membership:
    def __init__(self, connection: Connection, member_id: str, topic_id: bytes) -> None:
        self._connection = connection
        self._member_id = member_id
        self._topic_id = topic_id
        self._epoch = 0
        self.partitions: tuple[int, ...] = ()

    async def join(self) -> None:
        await self._heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=INSIDE,
                member_id=self._member_id,
                rebalance_timeout_ms=REBALANCE_MS,
                subscribed_topic_names=(TOPIC,),
                topic_partitions=(),
            )
        )

    async def beat(self) -> None:
        owned = (TopicPartitions(topic_id=self._topic_id, partitions=self.partitions),) if self.partitions else ()
        await self._heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=INSIDE, member_id=self._member_id, member_epoch=self._epoch, topic_partitions=owned
            )
        )

    async def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id=INSIDE, member_id=self._member_id, member_epoch=LEFT_EPOCH)
        await self._connection.call(request, ConsumerGroupHeartbeatResponse)

    async def commit(self, partition: int, offset: int) -> None:
        place = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=INSIDE,
            generation_id_or_member_epoch=self._epoch,
            member_id=self._member_id,
            topics=(OffsetCommitRequestTopic(name=TOPIC, topic_id=self._topic_id, partitions=(place,)),),
        )
        reply = await self._connection.call(request, OffsetCommitResponse)
        for outcome in (each for topic in reply.topics for each in topic.partitions):
            if outcome.error_code != 0:
                raise BrokerError(outcome.error_code, f"offset of partition {partition}")

    async def _heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> None:
        reply = await self._connection.call(request, ConsumerGroupHeartbeatResponse)
        if reply.error_code != 0:
            raise BrokerError(reply.error_code, "heartbeat", reply.error_message)
        self._epoch = reply.member_epoch
        if reply.assignment is not None:
            self.partitions = tuple(
                partition for topic in reply.assignment.topic_partitions for partition in topic.partitions
            )
