from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.queue.receipt import (
    MessageId,
    Receipt,
    ReceiptReader,
    ReceiptWriter,
    read_message_id,
    read_receipt,
    receipt_reader,
    write_message_id,
    write_receipt,
)

TOPIC = bytes(range(16))
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


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**62)), min_size=1), st.integers(0, 1_000))
def test_many_at_once_are_written_and_read_as_each_alone(places: list[tuple[int, int]], partition: int) -> None:
    reader = ReceiptReader("workers")
    for offset, number in places:
        writer = ReceiptWriter("workers", TOPIC, partition, number)
        receipt = Receipt("workers", TOPIC, partition, offset, number)
        assert writer.receipt(offset) == write_receipt(receipt)
        assert writer.message_id(offset) == write_message_id(MessageId(TOPIC, partition, offset))
        assert reader.read(writer.receipt(offset)) == receipt


@given(st.text(max_size=80), st.integers(0, 60))
def test_a_reader_takes_what_reading_one_takes_and_nothing_else(noise: str, place: int) -> None:
    good = ReceiptWriter("workers", TOPIC, 3, 7).receipt(5)
    reader = ReceiptReader("workers")
    assert reader.read(good) is not None
    for text in (good[:place] + noise + good[place + len(noise) :], good + noise, noise, good[: max(place, 1)]):
        assert reader.read(text) == read_receipt(text, group="workers")


def test_a_reader_tells_partitions_and_groups_apart() -> None:
    reader = ReceiptReader("workers")
    for partition in (0, 1, 255, 256, 257, 0):
        text = ReceiptWriter("workers", TOPIC, partition, 9).receipt(4)
        assert reader.read(text) == Receipt("workers", TOPIC, partition, 4, 9)
        assert reader.read(ReceiptWriter("others", TOPIC, partition, 9).receipt(4)) is None


def test_one_reader_serves_the_requests_of_a_group_whatever_they_bring() -> None:
    reader = receipt_reader("workers")
    assert receipt_reader("workers") is reader
    for topic_id in (TOPIC, b"u" * 16, TOPIC):
        text = ReceiptWriter("workers", topic_id, 1, 9).receipt(4)
        assert reader.read(text) == Receipt("workers", topic_id, 1, 4, 9)
        assert reader.read("no receipt") is None
        assert receipt_reader("others").read(text) is None
