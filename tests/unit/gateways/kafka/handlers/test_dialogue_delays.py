"""Delayed records of Kafka producers: into the schedule at once, a hole in the topic, and never at once."""

from __future__ import annotations

import pytest

from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, PendingPage
from penstock.codec.batch.compression import Codec
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.schedule.records import ProducerBatch
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import (
    altered,
    fetch,
    only_partition,
    outcome,
    outcomes,
    produce,
    produce_many,
    produced,
    records_in,
)
from support.schedule.delay_phrases import HOUR_MS, Later, all_records, at, eventually, headers_in, mixed_batch, pending
from support.storage.gated_disk import GatedDisk
from support.storage.held_disk import HeldDisk


@pytest.fixture(autouse=True)
async def _topic(node: TalkingNode) -> None:
    await node.create_topic("orders")


async def send(talk: Conversation, records: bytes, *, acks: int = -1, version: int = 12) -> tuple[ErrorCode, int]:
    return outcome(await talk.ask(produce("orders", records, acks=acks), ProduceResponse, version))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("acks", [1, -1])
async def test_delayed_record_leaves_a_hole(node: TalkingNode, talk: Conversation, codec: Codec, acks: int) -> None:
    sent = mixed_batch(b"a", Later(b"b"), b"c", Later(b"d"), codec=codec, producer_id=7, sequence=0)
    assert await send(talk, sent, acks=acks) == (ErrorCode.NONE, 0)
    assert await send(talk, mixed_batch(b"e", producer_id=7, sequence=4)) == (ErrorCode.NONE, 4)
    reply = only_partition(await talk.ask(fetch("orders"), FetchResponse, 12))
    assert [(record.offset, record.value) for record in await all_records(talk)] == [(0, b"a"), (2, b"c"), (4, b"e")]
    header = headers_in(reply.records)[0]
    assert (header.record_count, header.last_offset_delta, header.base_sequence) == (2, 3, 0)
    assert (header.codec, header.max_timestamp - header.base_timestamp) == (codec, 2)
    assert pending(node) == 2


async def test_wholly_delayed_batch_keeps_its_offsets_and_its_sequence(node: TalkingNode, talk: Conversation) -> None:
    assert await send(talk, mixed_batch(Later(b"a"), Later(b"b"), producer_id=7, sequence=0)) == (ErrorCode.NONE, 0)
    assert await send(talk, mixed_batch(b"c", producer_id=7, sequence=2)) == (ErrorCode.NONE, 2)
    assert [(record.offset, record.value) for record in await all_records(talk)] == [(2, b"c")]
    assert pending(node) == 2
    assert node.shell("orders").log.record_count == 1


async def test_repeated_batch_is_answered_as_before_and_schedules_nothing(
    node: TalkingNode, talk: Conversation
) -> None:
    sent = mixed_batch(Later(b"a"), b"b", producer_id=7, sequence=0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    assert pending(node) == 1
    assert len(await all_records(talk)) == 1


async def test_batch_out_of_order_schedules_nothing(node: TalkingNode, talk: Conversation) -> None:
    assert await send(talk, mixed_batch(b"a", producer_id=7, sequence=0)) == (ErrorCode.NONE, 0)
    late = mixed_batch(Later(b"c"), producer_id=7, sequence=5)
    assert await send(talk, late) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert pending(node) == 0


async def test_due_record_comes_back_with_what_it_was_sent_with(node: TalkingNode, talk: Conversation) -> None:
    assert await send(talk, mixed_batch(b"a", Later(b"b", delay_ms=50))) == (ErrorCode.NONE, 0)
    first, second = await eventually(talk, 2)
    assert (first.offset, first.value) == (0, b"a")
    assert (second.offset, second.value) == (2, b"b")
    headers = dict(second.headers)
    assert headers["penstock-origin-delay-ms"] == b"50"
    assert "penstock-delay-ms" not in headers
    assert pending(node) == 0


async def test_what_is_due_already_is_published_as_it_came(node: TalkingNode, talk: Conversation) -> None:
    sent = mixed_batch(at(b"a", 1), Later(b"b", delay_ms=0))
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    assert [(record.value, len(record.headers)) for record in await all_records(talk)] == [(b"a", 1), (b"b", 1)]
    assert pending(node) == 0


async def test_what_is_due_already_and_could_be_sent_again_comes_by_the_schedule_at_once(
    node: TalkingNode, talk: Conversation
) -> None:
    """Or it would come twice if it was not yet due, and in the schedule, when its batch was sent for the first time."""
    sent = mixed_batch(at(b"a", 1), b"b", Later(b"c", delay_ms=0), producer_id=7, sequence=0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    found = [(record.offset, record.value) for record in await eventually(talk, 3)]
    assert found == [(1, b"b"), (2, b"c"), (3, b"a")]


@pytest.mark.parametrize("producer_id", [-1, 7])
async def test_large_batch_is_scheduled_in_portions(node: TalkingNode, talk: Conversation, producer_id: int) -> None:
    values = [Later(b"%d" % number) if number % 5 else b"now" for number in range(3000)]
    sent = mixed_batch(*values, producer_id=producer_id, sequence=0 if producer_id >= 0 else -1)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    assert pending(node) == 2400
    assert len(await all_records(talk)) == 600


async def test_batch_that_is_in_the_schedule_in_part_is_completed(node: TalkingNode, talk: Conversation) -> None:
    """As after a crash that has kept some of the schedule's rows and lost the others."""
    schedule = await node.parts.schedules.shell_of(node.shell("orders"))
    assert isinstance(schedule, ScheduleShell)
    far_ms = node.parts.site.clock.now_ms() + HOUR_MS
    kept = [DelayedMessage(far_ms, None, value) for value in (b"a", b"b")]
    await schedule.schedule(kept, producer=ProducerBatch(7, 0, 0))
    sent = mixed_batch(Later(b"a"), b"x", Later(b"b"), Later(b"c"), at(b"d", far_ms), producer_id=7, sequence=0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    page = await schedule.pending.list_due(None, 10)
    assert isinstance(page, PendingPage)
    assert sorted(message.value or b"" for message in page.messages) == [b"a", b"b", b"c", b"d"]
    assert [record.value for record in await all_records(talk)] == [b"x"]


async def test_batch_under_the_sequence_of_one_that_was_given_up_is_scheduled() -> None:
    """It came into the schedule and not into the topic; the producer gave up, and goes on with the sequence that it
    had."""
    given_up = mixed_batch(Later(b"a"), Later(b"b"), producer_id=7, sequence=0)
    other = mixed_batch(Later(b"a"), Later(b"c"), producer_id=7, sequence=0)
    disk = HeldDisk()
    async with running_node(files=lambda: disk) as node:
        topic_id = await node.create_topic("orders")
        talk = await node.connect()
        disk.refuse_opens(topic_id.hex(), 2)
        for refusals_left in (1, 0):
            assert (await send(talk, given_up))[0] is not ErrorCode.NONE
            assert disk.refusals_left == refusals_left, "the topic's log has no file to write to"
            assert pending(node) == 2, "sent again, it is there once"
        assert await send(talk, other) == (ErrorCode.NONE, 0)
        assert pending(node) == 4


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_header_without_a_sense_names_its_records_and_nothing_is_written(
    node: TalkingNode, talk: Conversation, codec: Codec
) -> None:
    sent = mixed_batch(b"a", Later(b"b"), at(b"c", b"tomorrow"), Later(b"d", delay_ms=b"-1"), codec=codec)
    reply = await talk.ask(produce("orders", sent), ProduceResponse, 12)
    (partition,) = reply.responses[0].partition_responses
    assert partition.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in partition.record_errors] == [2, 3]
    assert partition.error_message == ("record 2: header penstock-deliver-at: b'tomorrow' is no number of milliseconds")
    assert pending(node) == 0
    assert node.shell("orders").log.log_end == 0


async def test_name_in_a_value_delays_nothing(node: TalkingNode, talk: Conversation) -> None:
    sent = mixed_batch(b"penstock-delay-ms", b"penstock-deliver-at: 5")
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    assert len(await all_records(talk)) == 2
    assert pending(node) == 0


async def test_topic_without_delivery_headers_delivers_at_once_and_is_counted(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("plain", penstock_delivery_headers="false")
    for codec in (Codec.NONE, Codec.GZIP):
        sent = mixed_batch(Later(b"a"), codec=codec)
        assert outcome(await talk.ask(produce("plain", sent), ProduceResponse, 12))[0] is ErrorCode.NONE
    assert len(await all_records(talk, "plain")) == 2
    search = node.shell("plain").batch_look.search
    assert search is not None
    assert search.ignored_count == 2


async def test_setting_is_followed_at_once(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("plain", penstock_delivery_headers="false")
    await node.catalog.replace_config("plain", {"penstock.delivery.headers": "true"})
    await talk.ask(produce("plain", mixed_batch(Later(b"a"))), ProduceResponse, 12)
    assert pending(node, "plain") == 1


async def test_batches_behind_a_delayed_one_wait_for_it(node: TalkingNode, talk: Conversation) -> None:
    """All sent before the first reply: a producer's batches stay in order."""
    for sequence in range(5):
        values = (Later(b"%d" % sequence), b"x") if sequence % 2 == 0 else (b"%d" % sequence, b"y")
        await talk.send(produce("orders", mixed_batch(*values, producer_id=7, sequence=2 * sequence)), 11)
    for sequence in range(5):
        await talk.expect(produced("orders", offset=2 * sequence))
    assert pending(node) == 3
    assert len(await all_records(talk)) == 7


async def test_known_road_of_a_producer_finds_delays_too(node: TalkingNode, talk: Conversation) -> None:
    for number in range(4):
        assert await send(talk, mixed_batch(b"%d" % number)) == (ErrorCode.NONE, number)
    assert await send(talk, mixed_batch(Later(b"later"))) == (ErrorCode.NONE, 4)
    assert await send(talk, mixed_batch(b"5")) == (ErrorCode.NONE, 5)
    assert pending(node) == 1


async def test_no_reply_where_none_was_asked_for(node: TalkingNode, talk: Conversation) -> None:
    await talk.send_unanswered(produce("orders", mixed_batch(Later(b"a"), b"b"), acks=0), 12)
    await talk.expect_open()
    assert pending(node) == 1
    await talk.send_unanswered(produce("orders", mixed_batch(Later(b"a", delay_ms=b"x")), acks=0), 12)
    await talk.expect_closed()


async def test_large_compressed_batch_is_opened_elsewhere(node: TalkingNode, talk: Conversation) -> None:
    values = [b"%d" % number * 200_000 for number in range(10)]
    plain = mixed_batch(*values, codec=Codec.ZSTD, producer_id=7, sequence=0)
    assert await send(talk, plain) == (ErrorCode.NONE, 0)
    sent = mixed_batch(*values, Later(b"later"), codec=Codec.ZSTD, producer_id=7, sequence=10)
    assert await send(talk, sent) == (ErrorCode.NONE, 10)
    assert pending(node) == 1
    assert len(await all_records(talk)) == 20


async def test_unreadable_compressed_batch_is_refused(node: TalkingNode, talk: Conversation) -> None:
    broken = bytearray(mixed_batch(b"a" * 100, codec=Codec.ZSTD))
    broken[70:80] = bytes(10)
    assert await send(talk, altered(bytes(broken))) == (ErrorCode.INVALID_RECORD, -1)
    assert pending(node) == 0


async def test_reader_past_the_last_record_waits_behind_the_holes(node: TalkingNode, talk: Conversation) -> None:
    """kafkajs goes on from the last record that it got, not from the end of its batch."""
    sent = mixed_batch(b"a", Later(b"b"), Later(b"c"), codec=Codec.LZ4, producer_id=7, sequence=0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    for offset in (1, 2, 3):
        reply = only_partition(await talk.ask(fetch("orders", offset), FetchResponse, 12))
        assert (records_in(reply.records), reply.high_watermark) == ([], 3)
    await send(talk, mixed_batch(b"d", producer_id=7, sequence=3))
    for offset in (1, 2, 3):
        assert [record.offset for record in await all_records(talk, offset=offset)] == [3]
    assert [record.offset for record in await all_records(talk)] == [0, 3]


async def test_log_append_time_is_told_and_dates_what_is_left(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("dated", message_timestamp_type="LogAppendTime")
    reply = await talk.ask(produce("dated", mixed_batch(Later(b"a"))), ProduceResponse, 12)
    (partition,) = reply.responses[0].partition_responses
    assert partition.log_append_time_ms > 0
    assert node.shell("dated").log.max_timestamp == -1
    await talk.ask(produce("dated", mixed_batch(Later(b"a"), b"b")), ProduceResponse, 12)
    (record,) = await all_records(talk, "dated")
    assert record.timestamp_ms == node.shell("dated").log.max_timestamp > partition.log_append_time_ms - 1


async def test_compacted_topic_still_refuses_records_without_a_key(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("state", cleanup_policy="compact")
    reply = await talk.ask(produce("state", mixed_batch(Later(b"a"))), ProduceResponse, 12)
    assert outcome(reply)[0] is ErrorCode.INVALID_RECORD
    reply = await talk.ask(produce("state", mixed_batch(Later(b"a"), b"b", key=b"k")), ProduceResponse, 12)
    assert outcome(reply) == (ErrorCode.NONE, 0)
    assert pending(node, "state") == 1


async def test_delay_without_end_is_taken(node: TalkingNode, talk: Conversation) -> None:
    assert await send(talk, mixed_batch(Later(b"a", delay_ms=1000 * 365 * 24 * HOUR_MS))) == (ErrorCode.NONE, 0)
    assert pending(node) == 1


async def test_partitions_of_one_request_have_answers_of_their_own(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("many", 5)
    sent = [
        mixed_batch(Later(b"a"), b"b"),
        mixed_batch(b"c"),
        mixed_batch(Later(b"d", delay_ms=b"x")),
        mixed_batch(Later(b"e"), codec=Codec.GZIP),
    ]
    request = produce_many([("many", number, records) for number, records in enumerate(sent)] + [("many", 9, sent[0])])
    reply = await talk.ask(request, ProduceResponse, 12)
    assert outcomes(reply) == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 0),
        (ErrorCode.INVALID_RECORD, -1),
        (ErrorCode.NONE, 0),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
    assert pending(node, "many") == 2


async def test_topic_that_is_synced_later_has_a_durable_schedule_all_the_same(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("quick", durability="interval")
    await talk.ask(produce("quick", mixed_batch(Later(b"a"), b"b"), acks=1), ProduceResponse, 12)
    schedule = node.parts.schedules.open_shell(node.shell("quick"))
    assert schedule is not None
    assert schedule.companion.log.durable_end == schedule.companion.log.log_end == 1


async def test_schedule_is_durable_before_the_topic_has_a_hole() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        # What is made on the way, a schedule and its files, is there by now.
        assert await send(talk, mixed_batch(Later(b"first"), b"x")) == (ErrorCode.NONE, 0)
        disk.close_gate()
        await talk.send(produce("orders", mixed_batch(Later(b"a"), b"b", producer_id=7, sequence=0)), 12)
        other = await node.connect()
        await other.expect_open()
        assert (node.shell("orders").log.log_end, talk.has_heard) == (2, False)
        disk.open_gate()
        assert outcome(await talk.hear(ProduceResponse)) == (ErrorCode.NONE, 2)
        assert pending(node) == 2
        disk.open_gate()
