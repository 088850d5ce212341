"""A member of a share group at the Kafka door, in few words.

ann = ShareMember(await node.connect(), "ann")
await ann.join("orders")
got = await ann.fetch()                         # opens its session for whatever it was assigned
await ann.acknowledge(accept(0, 4), release(5, 9))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.cluster.catalog.topics import Settled, TopicCatalog
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from penstock.codec.kafka.messages.share_fetch import AcknowledgementBatch as FetchAcknowledgementBatch
from penstock.codec.kafka.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.codec.kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from penstock.domain.queue.commands import Act
from support.door.conversation import Conversation
from support.door.kafka_phrases import records_in

GROUP: Final = "packers"
PLENTY_MS: Final = 5_000
RECORD_LIMIT: Final = 1

# First and last offset, and the type of each or of all.
Ack = tuple[int, int, tuple[int, ...]]


def accept(first: int, last: int | None = None) -> Ack:
    return first, first if last is None else last, (Act.ACCEPT,)


def release(first: int, last: int | None = None) -> Ack:
    return first, first if last is None else last, (Act.RELEASE,)


def reject(first: int, last: int | None = None) -> Ack:
    return first, first if last is None else last, (Act.REJECT,)


def renew(first: int, last: int | None = None) -> Ack:
    return first, first if last is None else last, (Act.RENEW,)


class ShareMember:
    def __init__(self, talk: Conversation, member_id: str, group: str = GROUP) -> None:
        self.talk = talk
        self.member_id = member_id
        self.group = group
        self.epoch = 0
        self.session_epoch = 0
        self.assigned: list[tuple[bytes, int]] = []

    # The group

    async def beat(self, *topics: str, epoch: int | None = None) -> ShareGroupHeartbeatResponse:
        reply = await self.talk.ask(
            ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.epoch if epoch is None else epoch,
                subscribed_topic_names=topics or None,
            ),
            ShareGroupHeartbeatResponse,
        )
        if reply.error_code == ErrorCode.NONE:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.assigned = [
                    (topic.topic_id, number)
                    for topic in reply.assignment.topic_partitions
                    for number in topic.partitions
                ]
        return reply

    async def join(self, *topics: str) -> None:
        reply = await self.beat(*topics, epoch=0)
        assert reply.error_code == ErrorCode.NONE, reply

    async def leave(self) -> ShareGroupHeartbeatResponse:
        return await self.beat(epoch=-1)

    # Messages

    async def ask_fetch(
        self,
        *acks: Ack,
        epoch: int | None = None,
        count: int = 500,
        wait_ms: int = 0,
        mode: int = 0,
        is_renewing: bool = False,
        bytes_max: int = 2**26,
        version: int = 2,
    ) -> ShareFetchResponse:
        await self.send_fetch(
            *acks,
            epoch=epoch,
            count=count,
            wait_ms=wait_ms,
            mode=mode,
            is_renewing=is_renewing,
            bytes_max=bytes_max,
            version=version,
        )
        return await self.hear_fetch()

    async def send_fetch(
        self,
        *acks: Ack,
        epoch: int | None = None,
        count: int = 500,
        wait_ms: int = 0,
        mode: int = 0,
        is_renewing: bool = False,
        bytes_max: int = 2**26,
        version: int = 2,
    ) -> None:
        epoch = self.session_epoch if epoch is None else epoch
        wanted = self.assigned if epoch == 0 else self.assigned[:1] if acks else []
        batches = [FetchAcknowledgementBatch(*ack) for ack in acks]
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait_ms=0 if is_renewing else wait_ms,
            min_bytes=0 if is_renewing else 1,
            max_bytes=0 if is_renewing else bytes_max,
            max_records=0 if is_renewing else count,
            batch_size=count,
            share_acquire_mode=mode,
            is_renew_ack=is_renewing,
            topics=[FetchTopic(topic_id, [FetchPartition(number, batches)]) for topic_id, number in wanted],
        )
        await self.talk.send(request, version)

    async def hear_fetch(self) -> ShareFetchResponse:
        reply = await self.talk.hear(ShareFetchResponse)
        if reply.error_code == ErrorCode.NONE:
            self.session_epoch += 1
        return reply

    async def fetch(self, *acks: Ack, **how: int) -> list[tuple[int, int]]:
        """Offset and delivery count of every record that is now the member's, of all its partitions."""
        reply = await self.ask_fetch(*acks, **{"wait_ms": PLENTY_MS, **how})  # type: ignore[arg-type]
        assert reply.error_code == ErrorCode.NONE, reply
        return [each for data in partitions_in(reply) for each in acquired_in(data)]

    async def ask_acknowledge(
        self, *acks: Ack, epoch: int | None = None, partition: int = 0, is_renewing: bool = False
    ) -> ShareAcknowledgeResponse:
        epoch = self.session_epoch if epoch is None else epoch
        batches = [AcknowledgementBatch(*ack) for ack in acks]
        topics = [
            AcknowledgeTopic(topic_id, [AcknowledgePartition(number, batches)])
            for topic_id, number in self.assigned
            if number == partition and batches
        ]
        reply = await self.talk.ask(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.member_id,
                share_session_epoch=epoch,
                is_renew_ack=is_renewing,
                topics=topics,
            ),
            ShareAcknowledgeResponse,
        )
        if reply.error_code == ErrorCode.NONE:
            self.session_epoch += 1
        return reply

    async def acknowledge(self, *acks: Ack, **how: int) -> int:
        """The error code of the partition."""
        reply = await self.ask_acknowledge(*acks, **how)  # type: ignore[arg-type]
        assert reply.error_code == ErrorCode.NONE, reply
        return reply.responses[0].partitions[0].error_code

    async def close_session(self) -> ShareAcknowledgeResponse:
        return await self.ask_acknowledge(epoch=-1)


def partitions_in(reply: ShareFetchResponse) -> list[PartitionData]:
    return [data for topic in reply.responses for data in topic.partitions]


def acquired_in(data: PartitionData) -> list[tuple[int, int]]:
    """As a client does it: of the records that came, those that it was told are its own."""
    offsets = {record.offset for record in records_in(data.records)} if data.records else set()
    return [
        (offset, part.delivery_count)
        for part in data.acquired_records
        for offset in range(part.first_offset, part.last_offset + 1)
        if offset in offsets
    ]


def once(offsets: Sequence[int] | range) -> list[tuple[int, int]]:
    return [(offset, 1) for offset in offsets]


async def set_group(catalog: TopicCatalog, group: str = GROUP, **settings: str) -> None:
    """Settings by Kafka's names with _ for the dots."""
    wanted = {name.replace("_", "."): value for name, value in settings.items()}
    outcome = await catalog.alter_group(group, lambda stored: {**stored, **wanted})
    assert isinstance(outcome, Settled), outcome
