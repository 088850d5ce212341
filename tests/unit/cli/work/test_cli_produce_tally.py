from __future__ import annotations

from typing import Any

import msgspec

from penstock.cli.output import counted
from penstock.cli.work.produce_tally import MESSAGES_NAMED_MAX, ProduceTally
from penstock.client.kafka.producer import UNKNOWN_OFFSET, Acknowledged, PartitionBatch
from penstock.domain.queue.receipt import MessageId, read_message_id

TOPIC_ID = bytes(range(16))


def acknowledged(partition: int, base_offset: int, count: int = 1) -> Acknowledged:
    return Acknowledged(PartitionBatch("t", partition, b"", count), base_offset)


def tally_of(*outcomes: Acknowledged, **facts: bool) -> ProduceTally:
    tally = ProduceTally("t", **facts)
    tally.topic_id = TOPIC_ID
    for outcome in outcomes:
        tally.add(outcome)
    return tally


def document_of(tally: ProduceTally) -> Any:
    return msgspec.to_builtins(tally.document())


def test_one_message_is_not_1_messages() -> None:
    assert [counted(count, "message") for count in (0, 1, 2, 1_000)] == [
        "0 messages", "1 message", "2 messages", "1,000 messages",
    ]  # fmt: skip


def test_partition_and_offset_are_told() -> None:
    assert tally_of(acknowledged(0, 0)).sentence() == "1 message acknowledged: partition 0, offset 0"
    two = tally_of(acknowledged(1, 7, 2), acknowledged(0, 0, 3))
    assert two.sentence() == "5 messages acknowledged: partition 0, offsets 0 to 2; partition 1, offsets 7 to 8"


def test_replies_that_overtake_each_other_do_not_move_the_first_offset() -> None:
    found = document_of(tally_of(acknowledged(0, 5, 5), acknowledged(0, 0, 5)))
    assert found["partitions"] == [{"partition": 0, "message_count": 10, "first_offset": 0, "last_offset": 9}]
    assert [place["offset"] for place in found["messages"]] == list(range(10))


def test_many_partitions_are_counted() -> None:
    tally = tally_of(*(acknowledged(partition, 0) for partition in range(5)))
    assert tally.sentence() == "5 messages acknowledged in 5 partitions"


def test_ids_name_the_place() -> None:
    place = document_of(tally_of(acknowledged(3, 41)))["messages"][0]
    assert (place["partition"], place["offset"]) == (3, 41)
    assert read_message_id(place["id"]) == MessageId(TOPIC_ID, 3, 41)


def test_broker_without_topic_ids_has_no_ids_of_ours() -> None:
    tally = ProduceTally("t")
    tally.add(acknowledged(0, 1))
    assert document_of(tally)["messages"] == [{"partition": 0, "offset": 1, "id": None}]


def test_only_so_many_are_named() -> None:
    found = document_of(tally_of(acknowledged(0, 0, MESSAGES_NAMED_MAX - 1), acknowledged(0, 20_000, 5)))
    assert len(found["messages"]) == MESSAGES_NAMED_MAX
    assert not found["are_all_named"]
    assert found["message_count"] == MESSAGES_NAMED_MAX + 4


def test_no_offset_is_told_that_is_not_known() -> None:
    assert tally_of(acknowledged(0, UNKNOWN_OFFSET)).sentence() == "1 message acknowledged: partition 0"
    unacknowledged = tally_of(acknowledged(0, UNKNOWN_OFFSET, 2), is_acknowledged=False)
    assert unacknowledged.sentence() == "2 messages sent, unacknowledged (acks=0)"
    # The batch's offset is a hole until the time has come.
    delayed = tally_of(acknowledged(0, 4), is_delayed=True)
    assert delayed.sentence().startswith("1 message acknowledged, to be delivered later: penstock schedule pending")
    assert document_of(delayed)["messages"] == []
