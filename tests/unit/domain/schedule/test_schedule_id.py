"""Ids of messages that were delayed are told from those of messages that were not."""

from __future__ import annotations

from penstock.domain.queue.receipt import (
    MessageId,
    read_message_id,
    read_scheduled_id,
    write_message_id,
    write_scheduled_id,
)


def test_id_of_a_delayed_message_names_its_place_in_the_schedule() -> None:
    place = MessageId(b"t" * 16, 3, 12_345)
    text = write_scheduled_id(place)
    assert read_scheduled_id(text) == place
    assert read_message_id(text) is None
    assert read_scheduled_id(write_message_id(place)) is None
    assert read_scheduled_id(text[:-1]) is None
