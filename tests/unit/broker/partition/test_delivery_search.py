"""What of a producer's batch is looked at, and who is told that nobody heeds what it says."""

from __future__ import annotations

import pytest
import structlog

from penstock.base.clock import ManualClock
from penstock.broker.partition.batch_look import GZIP_PLAIN_BYTES_MAX, PLAIN_BYTES_MAX, BatchLook
from penstock.broker.partition.delivery_search import LOOK_EVERY_MS, WARN_EVERY_MS, DeliverySearch
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.batch.rewrite import header_of
from penstock.domain.config.topic import make_topic_config

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
DELAYED = Record(b"v", headers=(("penstock-delay-ms", b"5"),))
AT = Record(b"v", headers=(("other", b"x"), ("penstock-deliver-at", b"5")))


class Desk:
    def __init__(self, *, is_on: bool) -> None:
        self.clock = ManualClock()
        self.search = DeliverySearch("orders", 3, clock=self.clock)
        self._look = BatchLook(self.search)
        names = {"penstock.delivery.headers": str(is_on).lower(), "penstock.record.check": "false"}
        self._look.configure(make_topic_config(names))

    def look(self, *records: Record, codec: Codec = Codec.NONE) -> bool:
        batch = build_batch(records, codec=codec)
        return self._look.look(memoryview(batch), header_of(batch), self.clock.now_ms()) is not False


@pytest.mark.parametrize("codec", list(Codec))
def test_delivery_headers_are_found_in_every_compression(codec: Codec) -> None:
    desk = Desk(is_on=True)
    plain = Record(b"v" * 500)
    assert desk.look(plain, DELAYED, codec=codec)
    assert desk.look(AT, plain, codec=codec)
    assert not desk.look(plain, plain, codec=codec)
    # What they begin with alone, as dead letters have it.
    assert not desk.look(Record(b"v", headers=(("penstock-delivery-count", b"5"),)), codec=codec)
    assert desk.search.ignored_count == 0


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_takes_too_long_to_open_is_for_somebody_else(codec: Codec) -> None:
    bytes_max = GZIP_PLAIN_BYTES_MAX if codec is Codec.GZIP else PLAIN_BYTES_MAX
    assert Desk(is_on=True).look(Record(bytes(bytes_max)), codec=codec)
    assert not Desk(is_on=True).look(Record(bytes(bytes_max - 1000)), codec=codec)
    assert not Desk(is_on=False).look(Record(bytes(bytes_max)), codec=codec)


def test_ignored_headers_are_counted_and_told_once_a_minute() -> None:
    desk = Desk(is_on=False)
    with structlog.testing.capture_logs() as told:
        for _ in range(10):
            assert not desk.look(DELAYED)
        assert desk.search.ignored_count == 10
        assert [(event["event"], event["topic"], event["partition"]) for event in told] == [
            ("delivery header ignored", "orders", 3)
        ]
        desk.clock.advance_ms(WARN_EVERY_MS)
        desk.look(AT)
        assert [event["batches"] for event in told] == [1, 11]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_compressed_batches_are_opened_once_a_second_where_nobody_heeds_them(codec: Codec) -> None:
    desk = Desk(is_on=False)
    for expected in (1, 1, 1):
        assert not desk.look(DELAYED, codec=codec)
        assert desk.search.ignored_count == expected
    desk.clock.advance_ms(LOOK_EVERY_MS)
    assert not desk.look(DELAYED, codec=codec)
    assert desk.search.ignored_count == 2
