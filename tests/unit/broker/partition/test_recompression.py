"""A topic with a codec of its own: what is stored of what comes in another one."""

from __future__ import annotations

import msgspec
import pytest

from penstock.broker.partition.outcome import Appended, AppendRefused, DelayPossible, Refusal
from penstock.broker.partition.recompression import LOOP_BYTES_MAX, OWN_BYTES_MAX, Recompression, recompression_of
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.compression import Codec, compress
from penstock.codec.batch.header import BatchHeader, check_batch
from penstock.codec.batch.records import Record, StoredRecord, build_batch, read_records
from penstock.codec.batch.rewrite import header_of
from penstock.domain.config.topic import make_topic_config
from penstock.storage.files.memory import MemoryFiles
from support.partition import PartitionDesk

NAMES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
RECORDS = [
    Record(b"value %d" % number, b"key", 5_000 + number, (("trace", b"%d" % number), ("empty", None)))
    for number in range(20)
]


def desk_of(name: str, **settings: str) -> PartitionDesk:
    return PartitionDesk(MemoryFiles(), durability="interval", compression_type=name, **settings)


def batch_of(codec: Codec, sequence: int = 0, records: list[Record] | None = None) -> memoryview:
    return memoryview(
        build_batch(records or RECORDS, codec=codec, producer_id=7, producer_epoch=3, base_sequence=sequence)
    )


def stored(shell: PartitionShell) -> list[tuple[BatchHeader, list[StoredRecord]]]:
    """Every batch as a consumer gets it, its checksum looked at."""
    found = []
    offset = 0
    while offset < shell.readable_end:
        data = shell.read(offset, bytes_max=1).records
        header, records = check_batch(data), read_records(data)
        assert isinstance(header, BatchHeader), header
        assert isinstance(records, list), records
        found.append((header, records))
        offset = header.next_offset
    return found


@pytest.mark.parametrize("sent", list(Codec))
@pytest.mark.parametrize("name", list(NAMES))
async def test_batch_is_stored_in_the_codec_of_its_topic(name: str, sent: Codec) -> None:
    shell = desk_of(name).shell
    before = header_of(batch_of(sent))
    assert isinstance(shell.produce(batch_of(sent)), Appended)
    assert isinstance(shell.produce(batch_of(sent, sequence=20)), Appended)
    (first, records), (second, _) = stored(shell)
    assert (first.codec, second.codec) == (NAMES[name], NAMES[name])
    assert (second.base_offset, second.base_sequence) == (20, 20)
    same = msgspec.structs.replace(
        before, length=first.length, checksum=first.checksum, attributes=first.attributes, leader_epoch=0
    )
    assert first == same, "all but codec, length and checksum is as it was sent"
    assert [(each.timestamp_ms, each.key, each.value, each.headers) for each in records] == [
        (each.timestamp_ms, each.key, each.value, each.headers) for each in RECORDS
    ]


@pytest.mark.parametrize("sent", list(Codec))
async def test_producers_codec_is_kept_where_the_topic_leaves_it_to_them(sent: Codec) -> None:
    shell = desk_of("producer").shell
    assert shell.recompression is None
    assert isinstance(shell.produce(batch_of(sent)), Appended)
    ((header, _),) = stored(shell)
    assert header.checksum == header_of(batch_of(sent)).checksum


async def test_batch_that_is_as_it_should_be_is_stored_as_it_came() -> None:
    shell = desk_of("lz4").shell
    assert isinstance(shell.produce(batch_of(Codec.LZ4)), Appended)
    ((header, _),) = stored(shell)
    assert header.checksum == header_of(batch_of(Codec.LZ4)).checksum


async def test_retry_is_known_again_and_stored_once() -> None:
    shell = desk_of("zstd").shell
    assert isinstance(shell.produce(batch_of(Codec.GZIP)), Appended)
    again = shell.produce(batch_of(Codec.GZIP))
    assert isinstance(again, Appended)
    assert (again.base_offset, shell.log.log_end) == (0, 20)


async def test_date_of_the_broker_and_the_codec_of_the_topic_go_together() -> None:
    desk = desk_of("zstd", message_timestamp_type="LogAppendTime")
    assert isinstance(desk.shell.produce(batch_of(Codec.NONE)), Appended)
    ((header, records),) = stored(desk.shell)
    assert (header.codec, header.has_log_append_time) == (Codec.ZSTD, True)
    assert {each.timestamp_ms for each in records} == {desk.clock.now_ms()}


@pytest.mark.parametrize("name", list(NAMES))
async def test_what_takes_long_is_not_compressed_on_the_loop(name: str) -> None:
    shell = desk_of(name).shell
    source = Codec.NONE if name != "uncompressed" else Codec.ZSTD
    large = [Record(bytes(LOOP_BYTES_MAX[NAMES[name]] + 1))]
    assert isinstance(shell.produce(batch_of(source, records=large)), DelayPossible)
    assert shell.log.log_end == 0


@pytest.mark.parametrize(("codec", "level"), [("gzip", "9"), ("zstd", "19")])
async def test_slow_level_is_never_for_the_loop(codec: str, level: str) -> None:
    shell = desk_of(codec, **{f"compression_{codec}_level": level}).shell
    assert isinstance(shell.produce(batch_of(Codec.NONE)), DelayPossible)


@pytest.mark.parametrize(("name", "told"), [("uncompressed", "uncompressed"), ("lz4", "compressed by lz4")])
async def test_batch_that_grows_beyond_what_its_topic_takes_is_refused(name: str, told: str) -> None:
    shell = desk_of(name, max_message_bytes="200").shell
    sent = batch_of(Codec.ZSTD, records=[Record(bytes(60_000))])
    assert len(sent) < 200
    refused = shell.produce(sent)
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.TOO_LARGE
    assert f"{told}, max.message.bytes is 200" in refused.reason


def test_topics_of_our_own_stay_as_they_are() -> None:
    desk = desk_of("zstd")
    shell = PartitionShell(
        "__consumer_offsets",
        0,
        desk.shell.log,
        store=desk.store,
        clock=desk.clock,
        config=make_topic_config({"compression.type": "zstd"}),
        role=desk.shell.role,
    )
    assert shell.recompression is None


# What is made here


@pytest.mark.parametrize("name", list(NAMES))
async def test_batch_of_our_own_is_compressed_too(name: str) -> None:
    desk = desk_of(name)
    desk.append()
    ((header, _),) = stored(desk.shell)
    assert header.codec == NAMES[name]


async def test_large_batch_of_our_own_keeps_nobody_waiting() -> None:
    desk = desk_of("gzip")
    assert isinstance(desk.shell.append(desk.batch(bytes(OWN_BYTES_MAX))), Appended)
    ((header, _),) = stored(desk.shell)
    assert header.codec == Codec.NONE


# Levels


def test_level_of_the_topic_is_used() -> None:
    text = b"".join(b'{"number": %d, "square": %d}' % (number, number * number) for number in range(5000))
    sizes = {
        level: len(_recompressed({"compression.type": "zstd", "compression.zstd.level": level}, text))
        for level in ("1", "19")
    }
    assert sizes["19"] < sizes["1"]
    assert _recompressed({"compression.type": "gzip"}, text)[61:] == compress(Codec.GZIP, _plain(text), 6)


def _plain(text: bytes) -> bytes:
    return bytes(build_batch([Record(text)])[61:])


def _recompressed(settings: dict[str, str], text: bytes) -> bytes:
    recompression = recompression_of(make_topic_config(settings))
    assert isinstance(recompression, Recompression)
    return bytes(recompression.recompress_own(build_batch([Record(text)])))
