"""Encoded Metadata replies are kept while they hold, and within bounds."""

from __future__ import annotations

from penstock.gateways.kafka.handlers.metadata_cache import BYTES_MAX, ENTRIES_MAX, ReplyCache


def test_reply_is_kept_until_anything_changes() -> None:
    cache = ReplyCache()
    cache.put(1, "a", b"one")
    assert cache.get(1, "a") == b"one"
    assert cache.get(2, "a") is None
    cache.put(2, "b", b"two")
    assert (cache.get(2, "a"), cache.get(2, "b")) == (None, b"two")


def test_oldest_replies_make_room() -> None:
    cache = ReplyCache()
    for number in range(ENTRIES_MAX + 1):
        cache.put(1, number, b"body")
    assert (cache.get(1, 0), cache.get(1, 1)) == (None, b"body")
    cache.put(1, "large", bytes(BYTES_MAX))
    assert (cache.get(1, 1), cache.get(1, "large")) == (None, bytes(BYTES_MAX))
