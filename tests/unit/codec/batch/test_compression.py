"""Each codec against the library that others use for it, and against streams that want all our memory."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
from random import Random

import lz4.frame
import pytest
import snappy
import zstandard
from kafka.codec import snappy_decode, snappy_encode

from penstock.codec.batch.compression import Codec, CompressionError, compress, decompress, decompress_into

MIB = 1024 * 1024
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "text": b"the quick brown fox jumps over the lazy dog " * 4000,
    "random": Random(7).randbytes(200_000),
    "zeros": bytes(3_000_000),
    "one lz4 block": Random(8).randbytes(65_536),
    "one xerial block": Random(9).randbytes(32_768),
}


@pytest.fixture(params=SAMPLES.values(), ids=SAMPLES.keys())
def plain(request: pytest.FixtureRequest) -> bytes:
    return request.param


@pytest.mark.parametrize("codec", Codec)
def test_what_is_compressed_comes_back(codec: Codec, plain: bytes) -> None:
    assert decompress(codec, compress(codec, plain), bytes_max=len(plain)) == plain


@pytest.mark.parametrize("codec", Codec)
def test_any_buffer_is_taken(codec: Codec) -> None:
    plain = bytearray(b"abc" * 1000)
    compressed = compress(codec, memoryview(plain))
    assert decompress(codec, memoryview(bytearray(compressed)), bytes_max=3000) == plain


def test_others_read_what_we_write(plain: bytes) -> None:
    assert gzip.decompress(compress(Codec.GZIP, plain)) == plain
    assert lz4.frame.decompress(compress(Codec.LZ4, plain)) == plain
    assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(Codec.ZSTD, plain)) == plain
    if plain:
        assert snappy_decode(compress(Codec.SNAPPY, plain)) == plain


def test_we_read_what_others_write(plain: bytes) -> None:
    bytes_max = len(plain)
    assert decompress(Codec.GZIP, gzip.compress(plain), bytes_max=bytes_max) == plain
    assert decompress(Codec.SNAPPY, snappy_encode(plain), bytes_max=bytes_max) == plain
    assert decompress(Codec.SNAPPY, snappy.compress(plain), bytes_max=bytes_max) == plain
    assert decompress(Codec.ZSTD, zstandard.compress(plain), bytes_max=bytes_max) == plain


@pytest.mark.parametrize("block_linked", [True, False])
@pytest.mark.parametrize("store_size", [True, False])
@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
@pytest.mark.parametrize("checksums", [True, False])
def test_every_form_of_lz4_frame_is_read(
    plain: bytes, block_linked: bool, store_size: bool, block_size: int, checksums: bool
) -> None:
    compressed = lz4.frame.compress(
        plain,
        block_linked=block_linked,
        store_size=store_size,
        block_size=block_size,
        content_checksum=checksums,
        block_checksum=checksums,
    )
    assert decompress(Codec.LZ4, compressed, bytes_max=len(plain)) == plain


def test_streams_that_do_not_say_their_size_are_read(plain: bytes) -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    compressed = compressor.compress(plain) + compressor.flush()
    assert decompress(Codec.ZSTD, compressed, bytes_max=len(plain)) == plain


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_streams_of_several_members_are_read_to_the_end(codec: Codec) -> None:
    compressed = compress(codec, b"first" * 50_000) + compress(codec, b"second")
    assert decompress(codec, compressed, bytes_max=MIB) == b"first" * 50_000 + b"second"


def test_lz4_blocks_are_independent_because_java_refuses_linked_ones(plain: bytes) -> None:
    frame = lz4.frame.get_frame_info(compress(Codec.LZ4, plain))
    assert not frame["block_linked"]
    assert frame["block_size"] == 65_536


def test_snappy_is_written_in_xerial_framing() -> None:
    assert compress(Codec.SNAPPY, b"abc").startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_more_than_allowed_is_refused(codec: Codec) -> None:
    compressed = compress(codec, b"abcdefgh" * 10_000)
    assert len(decompress(codec, compressed, bytes_max=80_000)) == 80_000
    for bytes_max in (79_999, 100, 1, 0):
        with pytest.raises(CompressionError):
            decompress(codec, compressed, bytes_max=bytes_max)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_without_filling_memory(codec: Codec) -> None:
    bomb = compress(codec, bytes(200 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress(codec, bomb, bytes_max=MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_a_false_claim_of_size_allocates_nothing_like_it() -> None:
    # 600 MB claimed by gzip's trailer and by zstd's frame header, 3 bytes there.
    lying_gzip = bytearray(gzip.compress(b"abc"))
    lying_gzip[-4:] = (600_000_000).to_bytes(4, "little")
    lying_zstd = b"\x28\xb5\x2f\xfd\xa0" + (600_000_000).to_bytes(4, "little") + b"\x19\x00\x00abc"
    for codec, lie in ((Codec.GZIP, lying_gzip), (Codec.ZSTD, lying_zstd)):
        tracemalloc.start()
        try:
            with pytest.raises(CompressionError):
                decompress(codec, lie, bytes_max=1024 * MIB)
            assert tracemalloc.get_traced_memory()[1] < MIB
        finally:
            tracemalloc.stop()


def test_a_snappy_length_that_nothing_stands_behind_is_refused() -> None:
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00", bytes_max=MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_streams_are_refused(codec: Codec) -> None:
    compressed = compress(codec, SAMPLES["text"])
    for damaged in (b"", b"x", b"junk" * 10, compressed[: len(compressed) // 2], compressed[:-1], compressed[:10]):
        with pytest.raises(CompressionError):
            decompress(codec, damaged, bytes_max=MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_random_damage_gives_bytes_or_an_error_and_nothing_else(codec: Codec) -> None:
    random = Random(codec)
    compressed = compress(codec, SAMPLES["text"][:3000] + random.randbytes(500))
    for _ in range(1500):
        damaged = bytearray(compressed)
        for _ in range(random.randint(1, 6)):
            damaged[random.randrange(min(len(damaged), random.choice((24, 10_000))))] = random.randrange(256)
        del damaged[random.choice((len(damaged), random.randrange(len(damaged)))) :]
        with contextlib.suppress(CompressionError):
            assert len(decompress(codec, damaged, bytes_max=10_000)) <= 10_000


# Into a buffer that is there already


def forms(codec: Codec, plain: bytes) -> list[bytes]:
    """As we and as others write it."""
    others = {
        Codec.GZIP: [gzip.compress(plain[:100]) + gzip.compress(plain[100:])],
        Codec.SNAPPY: [snappy.compress(plain)],
        Codec.ZSTD: [zstandard.ZstdCompressor(write_content_size=False).compress(plain)],
        Codec.LZ4: [lz4.frame.compress(plain)],
    }
    return [compress(codec, plain), *others.get(codec, [])]


@pytest.mark.parametrize("codec", Codec)
def test_buffer_that_is_there_already_gets_the_same(codec: Codec, plain: bytes) -> None:
    for compressed in forms(codec, plain):
        for spare in (0, 1000):
            output = bytearray(b"!" * (len(plain) + spare))
            size_bytes = decompress_into(codec, memoryview(bytearray(compressed)), output)
            assert (size_bytes, output[:size_bytes]) == (len(plain), plain)


@pytest.mark.parametrize("codec", Codec)
def test_buffer_that_is_too_small_is_an_error(codec: Codec) -> None:
    for compressed in forms(codec, b"abcdefgh" * 10_000):
        for size_bytes in (79_999, 100, 1, 0):
            output = bytearray(size_bytes)
            with pytest.raises(CompressionError):
                decompress_into(codec, memoryview(compressed), output)
            assert len(output) == size_bytes


@pytest.mark.parametrize("codec", COMPRESSED)
def test_random_damage_is_the_same_for_both_ways(codec: Codec) -> None:
    random = Random(codec)
    output = bytearray(10_000)
    for compressed in forms(codec, SAMPLES["text"][:3000] + random.randbytes(500)):
        for _ in range(700):
            damaged = bytearray(compressed)
            for _ in range(random.randint(1, 6)):
                damaged[random.randrange(min(len(damaged), random.choice((24, 10_000))))] = random.randrange(256)
            del damaged[random.choice((len(damaged), random.randrange(len(damaged)))) :]
            try:
                expected = decompress(codec, damaged, bytes_max=10_000)
            except CompressionError:
                with pytest.raises(CompressionError):
                    decompress_into(codec, damaged, output)
            else:
                assert output[: decompress_into(codec, damaged, output)] == expected
