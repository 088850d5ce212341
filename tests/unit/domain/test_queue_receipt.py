from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.queue_receipt import (
    MessageId,
    Receipt,
    read_message_id,
    read_receipt,
    write_message_id,
    write_receipt,
)

topic_ids = st.binary(min_size=16, max_size=16)
partitions = st.integers(0, (1 << 31) - 1)
numbers = st.integers(0, (1 << 63) - 1)


@given(st.text(max_size=50), topic_ids, partitions, numbers, numbers)
def test_a_receipt_is_read_as_it_was_written(
    group: str, topic_id: bytes, partition: int, offset: int, number: int
) -> None:
    receipt = Receipt(group, topic_id, partition, offset, number)
    text = write_receipt(receipt)
    assert read_receipt(text, group=group) == receipt
    assert read_receipt(text, group=group + "x") is None
    assert read_message_id(text) is None


@given(topic_ids, partitions, numbers)
def test_a_message_id_is_read_as_it_was_written(topic_id: bytes, partition: int, offset: int) -> None:
    message_id = MessageId(topic_id, partition, offset)
    assert read_message_id(write_message_id(message_id)) == message_id


@given(st.text(max_size=80))
def test_any_other_text_is_none(text: str) -> None:
    assert read_receipt(text, group="g") is None
    assert read_message_id(text) is None


def test_a_receipt_that_was_changed_in_its_unused_bits_is_none() -> None:
    text = write_receipt(Receipt("g", b"t" * 16, 0, 5, 77))
    changed = [text[:-1] + letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"]
    read = [receipt for each in changed if (receipt := read_receipt(each, group="g")) is not None]
    assert read.count(Receipt("g", b"t" * 16, 0, 5, 77)) == 1
