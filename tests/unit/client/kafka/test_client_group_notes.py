from __future__ import annotations

import pytest

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.group_notes import leave_note, read_notes
from penstock.codec.kafka import APIS, ErrorCode
from penstock.codec.kafka.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from penstock.codec.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.codec.kafka.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.net.errors import BrokerError
from support.client.fake_broker import FakeBroker

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10


def broker_of(commit_code: int = 0) -> FakeBroker:
    broker = FakeBroker({"orders": 1})
    for key in (OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR):
        broker.versions[key] = (APIS[key].version_min, APIS[key].version_max)
    outcome = OffsetCommitResponseTopic(name="orders", partitions=[OffsetCommitResponsePartition(0, commit_code)])
    broker.replies[FIND_COORDINATOR] = lambda _: FindCoordinatorResponse(
        node_id=1, coordinators=[Coordinator(key="box", node_id=1)]
    )
    broker.replies[OFFSET_COMMIT] = lambda _: OffsetCommitResponse(topics=[outcome])
    broker.replies[OFFSET_FETCH] = lambda _: OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic("orders", [OffsetFetchResponsePartition(0, 7, metadata="old way")])],
        groups=[
            OffsetFetchResponseGroup(
                "box",
                [
                    OffsetFetchResponseTopics(
                        name="orders",
                        partitions=[
                            OffsetFetchResponsePartitions(0, 7, metadata="new way"),
                            OffsetFetchResponsePartitions(1, 7, metadata=""),
                            OffsetFetchResponsePartitions(2, 7, metadata=None),
                        ],
                    )
                ],
            )
        ],
    )
    return broker


async def leave(broker: FakeBroker) -> OffsetCommitRequest:
    async with ClusterClient([broker.address]) as client:
        await leave_note(client, "box", ("orders", 0), 7, "totals", retention_ms=1_000)
    request = broker.requests[-1]
    assert isinstance(request, OffsetCommitRequest)
    return request


async def test_a_note_says_how_long_it_is_kept() -> None:
    async with broker_of().running() as broker:
        request = await leave(broker)
    assert (request.group_id, request.retention_time_ms) == ("box", 1_000)
    assert request.topics[0].partitions[0].committed_metadata == "totals"


async def test_a_broker_that_is_not_told_how_long_takes_a_note_too() -> None:
    broker = broker_of()
    broker.versions[OFFSET_COMMIT] = (6, 8)
    async with broker.running():
        request = await leave(broker)
    assert request.topics[0].partitions[0].committed_metadata == "totals"


async def test_a_note_that_is_refused_is_told() -> None:
    async with broker_of(ErrorCode.OFFSET_METADATA_TOO_LARGE).running() as broker:
        with pytest.raises(BrokerError, match="the note in group 'box' was not written: offset metadata too large"):
            await leave(broker)


@pytest.mark.parametrize(("version", "note"), [(2, "old way"), (8, "new way")])
async def test_notes_are_read_in_either_shape(version: int, note: str) -> None:
    broker = broker_of()
    broker.versions[OFFSET_FETCH] = (1, version)
    async with broker.running(), ClusterClient([broker.address]) as client:
        assert await read_notes(client, "box") == [note]
