"""What a purge hides of messages that were delayed."""

from __future__ import annotations

from penstock.broker.queue.hidden import marks_after, visible
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions
from penstock.domain.queue.receipt import MessageId, write_message_id, write_scheduled_id
from penstock.domain.queue.redrive import deadly_headers, living_headers
from penstock.domain.schedule.headers import released_headers

TOPIC_ID = b"t" * 16


def purged(*hidden_below: int) -> QueueDefinition:
    return QueueDefinition(QueueName("orders", "workers"), TOPIC_ID, QueueOptions(), 0, 0, 2, hidden_below)


def released(origin: int, *, topic_id: bytes = TOPIC_ID, partition: int = 0) -> StoredRecord:
    name = write_scheduled_id(MessageId(topic_id, partition, origin))
    headers = released_headers((), message_id=name, arrived_ms=1, written_ms=1)
    return StoredRecord(offset=origin, timestamp_ms=5, key=None, value=b"x", headers=headers)


def test_what_was_pending_at_the_purge_is_hidden_and_what_came_later_is_not() -> None:
    records = [released(3), released(4)]
    assert visible(records, purged(4), 0) == records[1:]
    assert visible(records, purged(), 0) is records
    assert visible(records, purged(4), 1) is records


def test_only_what_comes_from_this_schedule_is_hidden() -> None:
    plain = StoredRecord(offset=0, timestamp_ms=5, key=None, value=b"x", headers=())
    name = write_message_id(MessageId(TOPIC_ID, 0, 0)).encode()
    copied = StoredRecord(offset=1, timestamp_ms=5, key=None, value=b"x", headers=(("penstock-message-id", name),))
    others = [released(0, topic_id=b"u" * 16), released(0, partition=1)]
    records = [plain, copied, *others]
    assert visible(records, purged(100), 0) == records


def test_a_dead_letter_that_is_brought_back_after_the_purge_is_not_hidden() -> None:
    message = released(3)
    redriven = StoredRecord(
        offset=9,
        timestamp_ms=5,
        key=None,
        value=b"x",
        headers=living_headers(deadly_headers(message.headers)),
    )
    assert visible([message, redriven], purged(4), 0) == [redriven]


def test_marks_never_go_back_and_new_partitions_get_theirs() -> None:
    assert marks_after((), (5, 0)) == (5, 0)
    assert marks_after((7, 1), (5, 3, 2)) == (7, 3, 2)
