"""Incremental fetch sessions, as a consumer of many partitions speaks them."""

from __future__ import annotations

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse, ForgottenTopic
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.gateways.kafka.handlers.fetch import UNKNOWN_MAX
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import batch, by_partition, fetch_many, produce, values_in, wanted

FOR_EVER_MS = 60_000
OPEN = (0, 0)
NONE = ErrorCode.NONE


class Consumer:
    """One consumer of a topic's partitions; keeps the session's id and counts its epochs."""

    def __init__(self, talk: Conversation, topic_id: bytes, version: int) -> None:
        self._talk = talk
        self._topic_id = topic_id
        self._version = version
        self.session_id = 0
        self.epoch = 0

    async def ask(
        self, offsets: dict[int, int], *, forget: tuple[int, ...] = (), wait_ms: int = 0, bytes_max: int = 2**31 - 1
    ) -> FetchResponse:
        await self.send(offsets, forget=forget, wait_ms=wait_ms, bytes_max=bytes_max)
        return await self.hear()

    async def send(
        self, offsets: dict[int, int], *, forget: tuple[int, ...] = (), wait_ms: int = 0, bytes_max: int = 2**31 - 1
    ) -> None:
        topics = [wanted("orders", offsets, topic_id=self._topic_id)] if offsets else []
        forgotten = [ForgottenTopic(topic="orders", topic_id=self._topic_id, partitions=forget)] if forget else []
        request = fetch_many(
            topics,
            session=(self.session_id, self.epoch),
            forgotten=forgotten,
            wait_ms=wait_ms,
            bytes_max=bytes_max,
        )
        await self._talk.send(request, self._version)

    async def hear(self) -> FetchResponse:
        reply = await self._talk.hear(FetchResponse)
        if reply.error_code == NONE:
            self.session_id = reply.session_id
            self.epoch += 1
        return reply


@pytest.fixture(params=[7, 12, 13, 18])
async def consumer(request: pytest.FixtureRequest, node: TalkingNode) -> Consumer:
    topic_id = await node.create_topic("orders", 4, durability="interval")
    return Consumer(await node.connect(), topic_id, request.param)


async def write(talk: Conversation, partition: int, *values: bytes) -> None:
    await talk.ask(produce("orders", batch(*values), partition), ProduceResponse, 9)


async def test_full_fetch_opens_a_session_and_answers_everything(consumer: Consumer) -> None:
    reply = await consumer.ask({0: 0, 1: 0, 2: 0})
    assert reply.session_id > 0
    assert sorted(by_partition(reply)) == [0, 1, 2]


async def test_incremental_fetch_answers_only_what_changed(consumer: Consumer, talk: Conversation) -> None:
    await consumer.ask({0: 0, 1: 0, 2: 0})
    assert by_partition(await consumer.ask({})) == {}
    await write(talk, 1, b"a")
    reply = await consumer.ask({})
    assert {index: values_in(data.records) for index, data in by_partition(reply).items()} == {1: [b"a"]}


async def test_changed_offset_is_remembered(consumer: Consumer, talk: Conversation) -> None:
    await write(talk, 0, b"a")
    await write(talk, 0, b"b")
    await consumer.ask({0: 0, 1: 0})
    assert values_in(by_partition(await consumer.ask({0: 1}))[0].records) == [b"b"]
    assert values_in(by_partition(await consumer.ask({}))[0].records) == [b"b"]
    assert by_partition(await consumer.ask({0: 2})) == {}


async def test_partitions_join_and_are_forgotten(consumer: Consumer, talk: Conversation) -> None:
    await consumer.ask({0: 0})
    for index in range(4):
        await write(talk, index, b"a")
    assert sorted(by_partition(await consumer.ask({3: 0}))) == [0, 3]
    assert sorted(by_partition(await consumer.ask({1: 0}, forget=(0,)))) == [1, 3]
    assert sorted(by_partition(await consumer.ask({}, forget=(1,)))) == [3]


async def test_session_waits_for_any_of_its_partitions(consumer: Consumer, talk: Conversation) -> None:
    await consumer.ask({0: 0, 1: 0, 2: 0})
    await consumer.send({}, wait_ms=FOR_EVER_MS)
    await write(talk, 2, b"a")
    assert sorted(by_partition(await consumer.hear())) == [2]


async def test_error_is_told_again_until_it_is_gone(consumer: Consumer) -> None:
    await consumer.ask({0: 5, 1: 0})
    for _ in range(2):
        reply = await consumer.ask({}, wait_ms=FOR_EVER_MS)
        assert {index: data.error_code for index, data in by_partition(reply).items()} == {
            0: ErrorCode.OFFSET_OUT_OF_RANGE
        }
    assert by_partition(await consumer.ask({0: 0}))[0].error_code == NONE
    assert by_partition(await consumer.ask({})) == {}


async def test_partitions_that_are_not_there_are_not_remembered_by_thousands(consumer: Consumer) -> None:
    """Or sixty bytes could ask for all of them again, for seconds, as often as somebody likes."""
    # Four of the topic's are there.
    too_many = UNKNOWN_MAX + 5
    reply = await consumer.ask(dict.fromkeys(range(too_many), 0))
    assert (reply.session_id, len(by_partition(reply))) == (0, too_many)
    consumer.epoch = 0
    reply = await consumer.ask(dict.fromkeys(range(UNKNOWN_MAX), 0))
    assert reply.session_id != 0
    # What joins later counts too.
    assert (await consumer.ask(dict.fromkeys(range(UNKNOWN_MAX, too_many), 0))).session_id == 0
    consumer.epoch = 0
    assert (await consumer.ask({0: 0})).session_id != 0


async def test_small_limit_starves_no_partition(consumer: Consumer, talk: Conversation) -> None:
    for index in range(4):
        await write(talk, index, b"a")
    served = list(served_in(await consumer.ask(dict.fromkeys(range(4), 0), bytes_max=1)))
    for _ in range(3):
        served += served_in(await consumer.ask({}, bytes_max=1))
    assert sorted(served) == [0, 1, 2, 3]


def served_in(reply: FetchResponse) -> list[int]:
    return [index for index, data in by_partition(reply).items() if data.records]


async def test_wrong_epoch_is_refused_and_the_session_stays(consumer: Consumer) -> None:
    await consumer.ask({0: 0})
    right, consumer.epoch = consumer.epoch, 7
    reply = await consumer.ask({})
    assert (reply.error_code, reply.session_id, reply.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, ())
    consumer.epoch = right
    assert (await consumer.ask({})).error_code == NONE


async def test_unknown_session_is_refused(consumer: Consumer) -> None:
    await consumer.ask({0: 0})
    consumer.session_id += 1
    assert (await consumer.ask({})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_final_epoch_ends_the_session(consumer: Consumer) -> None:
    await consumer.ask({0: 0})
    session_id = consumer.session_id
    consumer.epoch = -1
    reply = await consumer.ask({0: 0})
    assert (reply.session_id, sorted(by_partition(reply))) == (0, [0])
    consumer.session_id, consumer.epoch = session_id, 1
    assert (await consumer.ask({})).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_session_of_names_does_not_take_ids(node: TalkingNode, talk: Conversation) -> None:
    topic_id = await node.create_topic("orders")
    by_name = Consumer(talk, topic_id, 12)
    await by_name.ask({0: 0})
    by_id = Consumer(talk, topic_id, 13)
    by_id.session_id, by_id.epoch = by_name.session_id, by_name.epoch
    assert (await by_id.ask({})).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_session_survives_its_connection(node: TalkingNode, consumer: Consumer, talk: Conversation) -> None:
    await consumer.ask({0: 0})
    consumer._talk.close()
    consumer._talk = await node.connect()
    await write(talk, 0, b"a")
    assert served_in(await consumer.ask({})) == [0]
