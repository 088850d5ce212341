"""A group's positions inside a transaction: they count when it commits, and nobody commits them who may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.offset_commit import OffsetCommitResponse
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchResponse
from penstock.codec.kafka.messages.txn_offset_commit import TxnOffsetCommitResponse
from support.door.conversation import PATIENCE_SECONDS, Conversation, TalkingNode
from support.group.phrases import (
    GROUP,
    commit,
    found_positions,
    node_with_groups,
    offsets_of,
    only_member,
    positions,
)
from support.transaction.phrases import NONE, TransactionalProducer, offsets_in_transaction, until_state

Protocol = Literal[1, 2]
BOTH = pytest.mark.parametrize("protocol", [1, 2])
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
NO_SUCH_STATE = ErrorCode.INVALID_TXN_STATE


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_groups() as running:
        await running.create_topic("orders", 2)
        yield running


async def producer_on(talk: Conversation, protocol: Protocol = 2) -> TransactionalProducer:
    return await TransactionalProducer(talk, protocol).ready()


async def offsets(talk: Conversation) -> dict[int, int]:
    return offsets_of(await talk.ask(positions([0, 1]), OffsetFetchResponse, 9))


async def until_offsets(talk: Conversation, expected: dict[int, int]) -> None:
    """Stable ones: as long as the transaction is being ended, there are none."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            reply = await talk.ask(positions(list(expected), stable=True), OffsetFetchResponse, 9)
            if all(place.error_code != UNSTABLE for place in found_positions(reply).values()):
                break
    assert offsets_of(reply) == expected


@BOTH
async def test_positions_count_when_the_transaction_commits(talk: Conversation, protocol: Protocol) -> None:
    await talk.ask(commit({0: 5}), OffsetCommitResponse, 9)
    producer = await producer_on(talk, protocol)
    assert await producer.commit_offsets(GROUP, {0: 10, 1: 20}) == [NONE, NONE]
    assert await offsets(talk) == {0: 5, 1: -1}
    assert await producer.commit() is NONE
    await until_offsets(talk, {0: 10, 1: 20})


@BOTH
async def test_positions_of_an_aborted_transaction_never_count(talk: Conversation, protocol: Protocol) -> None:
    await talk.ask(commit({0: 5}), OffsetCommitResponse, 9)
    producer = await producer_on(talk, protocol)
    await producer.commit_offsets(GROUP, {0: 10})
    assert await producer.abort() is NONE
    await until_offsets(talk, {0: 5})
    await producer.commit_offsets(GROUP, {0: 11})
    assert await producer.commit() is NONE
    await until_offsets(talk, {0: 11})


async def test_reader_of_stable_positions_is_told_to_wait(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await producer.commit_offsets(GROUP, {0: 10})
    reply = await talk.ask(positions([0, 1], stable=True), OffsetFetchResponse, 9)
    codes = {place: found.error_code for (_, place), found in found_positions(reply).items()}
    assert codes == {0: UNSTABLE, 1: NONE}
    await producer.abort()
    await until_offsets(talk, {0: -1, 1: -1})


@BOTH
async def test_positions_and_records_are_one_transaction(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol)
    for number in range(1, 6):
        assert await producer.send("orders", b"%d" % number) is NONE
        assert await producer.commit_offsets(GROUP, {1: number}) == [NONE]
        assert await producer.end(is_commit=number != 5) is NONE
    await until_offsets(talk, {1: 4})


async def test_group_must_be_part_of_the_transaction_before_version_five(talk: Conversation) -> None:
    producer = await producer_on(talk, 1)
    await producer.add("orders", 0)
    for version, code in ((0, NO_SUCH_STATE), (3, NO_SUCH_STATE), (4, ABORTABLE)):
        request = offsets_in_transaction(producer, GROUP, {0: 1})
        reply = await talk.ask(request, TxnOffsetCommitResponse, version)
        assert reply.topics[0].partitions[0].error_code == code
    assert await producer.add_offsets(GROUP) is NONE
    assert await producer.commit_offsets_once(GROUP, {0: 1}) == [NONE]


async def test_zombie_commits_no_positions(node: TalkingNode, talk: Conversation) -> None:
    zombie = await producer_on(talk, 1)
    await zombie.commit_offsets(GROUP, {0: 1})
    successor = await producer_on(await node.connect(), 1)
    assert await zombie.add_offsets(GROUP) is ErrorCode.PRODUCER_FENCED
    assert await zombie.commit_offsets_once(GROUP, {0: 2}) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    await successor.commit_offsets(GROUP, {0: 3})
    assert await successor.commit() is NONE
    await until_offsets(talk, {0: 3})


async def test_member_of_an_old_generation_commits_no_positions(talk: Conversation) -> None:
    member_id, generation = await only_member(talk, 0, 1)
    producer = await producer_on(talk)
    refused = {
        ErrorCode.ILLEGAL_GENERATION: {"member_id": member_id, "generation": generation - 1},
        ErrorCode.UNKNOWN_MEMBER_ID: {"member_id": "stranger", "generation": generation},
    }
    for code, who in refused.items():
        assert await producer.commit_offsets(GROUP, {0: 1}, **who) == [code]
    who = {"member_id": member_id, "generation": generation}
    assert await producer.commit_offsets(GROUP, {0: 2}, **who) == [NONE]
    assert await producer.commit() is NONE
    await until_offsets(talk, {0: 2})


async def test_other_instance_of_a_static_member_is_fenced(talk: Conversation) -> None:
    member_id, generation = await only_member(talk, 0, 1, instance_id="one")
    producer = await producer_on(talk)
    who = {"member_id": "another", "generation": generation, "instance_id": "one"}
    assert await producer.commit_offsets(GROUP, {0: 1}, **who) == [ErrorCode.FENCED_INSTANCE_ID]
    assert await producer.commit_offsets(GROUP, {0: 1}, **{**who, "member_id": member_id}) == [NONE]


async def test_producer_without_a_member_is_taken_at_its_word(talk: Conversation) -> None:
    await only_member(talk, 0, 1)
    producer = await producer_on(talk, 1)
    # As producers from before KIP-447 do it, which say nothing of the consumer.
    assert await producer.commit_offsets(GROUP, {0: 1}) == [NONE]


async def test_unknown_partitions_are_reported_one_by_one(talk: Conversation) -> None:
    producer = await producer_on(talk)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.commit_offsets(GROUP, {0: 1, 7: 1}) == [NONE, unknown]
    assert await producer.commit_offsets_once(GROUP, {0: 1}, topic="missing") == [unknown]
    assert await producer.commit_offsets_once("", {0: 1}) == [ErrorCode.INVALID_GROUP_ID]


@BOTH
async def test_pending_positions_outlive_the_node(tmp_path: Path, protocol: Protocol) -> None:
    async with node_with_groups(data_dir=str(tmp_path)) as node:
        await node.create_topic("orders", 2)
        talk = await node.connect()
        await talk.ask(commit({0: 5}), OffsetCommitResponse, 9)
        producer = await producer_on(talk, protocol)
        assert await producer.commit_offsets(GROUP, {0: 10}) == [NONE]
    async with node_with_groups(data_dir=str(tmp_path)) as node:
        producer.talk = talk = await node.connect()
        assert await offsets(talk) == {0: 5, 1: -1}
        assert await producer.commit() is NONE
        await until_state(talk, "CompleteCommit")
    async with node_with_groups(data_dir=str(tmp_path)) as node:
        await until_offsets(await node.connect(), {0: 10})
