"""One function changes the image, and tells what has changed."""

from __future__ import annotations

import pytest

from penstock.cluster.catalog.topic_image import (
    NodeConfigChanged,
    PartitionsGrown,
    StoredTopic,
    Topic,
    TopicAdded,
    TopicConfigChanged,
    TopicImage,
    TopicRemoved,
)
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Entry, Event, Range, StoreDamagedError
from penstock.cluster.store.values import encode

KEYS = KeySpace()
A, B = b"a" * 16, b"b" * 16


def put(name: str, topic_id: bytes = A, partitions: int = 1, **overrides: str) -> Event:
    return Event(KEYS.topic(name), encode(StoredTopic(topic_id, partitions, overrides, 7)), 1, 1)


def gone(name: str) -> Event:
    return Event(KEYS.topic(name), None, 1, 2)


def topic(name: str, topic_id: bytes = A, partitions: int = 1, **overrides: str) -> Topic:
    return Topic(name, topic_id, partitions, overrides, 7)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = TopicImage(KEYS)
    assert image.apply([put("orders")]) == [TopicAdded(topic("orders"))]
    assert image.by_name("orders") == image.by_id(A) == topic("orders")
    assert image.names() == ["orders"]
    assert not topic("orders").is_internal


def test_a_removed_topic_is_not_found() -> None:
    image = TopicImage(KEYS)
    image.apply([put("orders")])
    assert image.apply([gone("orders"), gone("never there")]) == [TopicRemoved(topic("orders"))]
    assert image.by_name("orders") is image.by_id(A) is None
    assert len(image) == 0


def test_growth_and_settings_are_told_apart() -> None:
    image = TopicImage(KEYS)
    image.apply([put("orders")])
    grown, changed = topic("orders", A, 3), topic("orders", A, 3, x="1")
    assert image.apply([put("orders", A, 3)]) == [PartitionsGrown(topic("orders"), grown)]
    assert image.apply([put("orders", A, 3, x="1")]) == [TopicConfigChanged(grown, changed)]
    assert image.apply([put("orders", A, 3, x="1")]) == []


def test_another_id_under_an_old_name_is_another_topic() -> None:
    image = TopicImage(KEYS)
    image.apply([put("orders", A)])
    changes = image.apply([put("orders", B)])
    assert changes == [TopicRemoved(topic("orders", A)), TopicAdded(topic("orders", B))]
    assert image.by_id(A) is None


def test_keys_of_others_are_passed_over() -> None:
    assert TopicImage(KEYS).apply([Event(KEYS.producer_ids, b"1000", 1, 1), Event("/x", b"?", 1, 1)]) == []


def test_settings_of_nodes_are_kept_apart_from_those_of_one_node() -> None:
    image = TopicImage(KEYS)
    every, one = KEYS.node_config(None), KEYS.node_config(3)
    assert image.apply([Event(every, encode({"a": "1"}), 1, 1)]) == [NodeConfigChanged(None, {"a": "1"})]
    assert image.apply([Event(one, encode({"b": "2"}), 1, 1)]) == [NodeConfigChanged(3, {"b": "2"})]
    assert (image.node_config(None), image.node_config(3)) == ({"a": "1"}, {"b": "2"})
    assert image.apply([Event(one, None, 1, 2)]) == [NodeConfigChanged(3, {})]
    assert image.node_config(3) == {}


def test_a_range_leads_to_the_same_image_as_the_events() -> None:
    image = TopicImage(KEYS)
    image.apply([put("stays"), put("goes", b"g" * 16), put("replaced", b"r" * 16)])
    image.apply([Event(KEYS.node_config(1), encode({"a": "1"}), 1, 1)])
    now = [put("new", b"n" * 16), put("replaced", b"s" * 16), put("stays", A, 2)]
    entries = tuple(Entry(event.key, event.value or b"", 1, 1) for event in now)
    changes = image.apply(image.events_to(Range(entries, 9)))
    assert changes == [
        TopicRemoved(topic("goes", b"g" * 16)),
        NodeConfigChanged(1, {}),
        TopicAdded(topic("new", b"n" * 16)),
        TopicRemoved(topic("replaced", b"r" * 16)),
        TopicAdded(topic("replaced", b"s" * 16)),
        PartitionsGrown(topic("stays"), topic("stays", A, 2)),
    ]
    assert image.apply(image.events_to(Range(entries, 9))) == []


def test_a_value_that_cannot_be_read_changes_nothing() -> None:
    image = TopicImage(KEYS)
    with pytest.raises(StoreDamagedError, match="topics/bad holds a value that cannot be read"):
        image.apply([put("good"), Event(KEYS.topic("bad"), b"{", 1, 1)])
    assert len(image) == 0


def test_fields_of_a_later_version_are_passed_over() -> None:
    image = TopicImage(KEYS)
    value = encode({"topic_id": "YWFhYWFhYWFhYWFhYWFhYQ==", "partition_count": 1, "invented_later": [1]})
    image.apply([Event(KEYS.topic("orders"), value, 1, 1)])
    assert image.by_id(A) == Topic("orders", A, 1, {}, 0)
