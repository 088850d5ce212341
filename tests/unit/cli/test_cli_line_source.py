from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.cli.failure import CommandError
from penstock.cli.line_source import BatchLimits, LineSource, read_lines


async def collect(source: LineSource, limits: BatchLimits) -> list[list[bytes]]:
    source.start()
    return [batch async for batch in source.batches(limits)]


async def test_lines_of_all_files_in_order_and_in_batches(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"1\n2\n\n")
    second.write_bytes(b"3\r\nlast")
    batches = await collect(LineSource([first, second], is_whole_file=False), BatchLimits(lines_max=2))
    assert [line for batch in batches for line in batch] == [b"1", b"2", b"", b"3\r", b"last"]
    assert max(map(len, batches)) <= 2


async def test_batches_are_bounded_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 60 + b"\n" + b"y" * 60 + b"\n" + b"z" * 500 + b"\n")
    batches = await collect(LineSource([file], is_whole_file=False), BatchLimits(bytes_max=100))
    assert [len(batch) for batch in batches] == [1, 1, 1]


async def test_a_whole_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"1\n2\n")
    assert await collect(LineSource([file], is_whole_file=True), BatchLimits()) == [[b"1\n2\n"]]


async def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        await collect(LineSource([tmp_path / "nope"], is_whole_file=False), BatchLimits())
    assert caught.value.filename == str(tmp_path / "nope")


async def test_a_slow_line_does_not_wait_for_the_next() -> None:
    reading, writing = os.pipe()
    source = LineSource([], is_whole_file=False, standard_input=reading)
    source.start()
    os.write(writing, b"first\n")
    batches = source.batches(BatchLimits(linger_ms=1))
    assert await asyncio.wait_for(anext(batches), 5) == [b"first"]
    os.write(writing, b"second\nthi")
    os.close(writing)
    assert [line async for batch in batches for line in batch] == [b"second", b"thi"]
    os.close(reading)


def test_a_line_that_never_ends_is_refused() -> None:
    with Path("/dev/zero").open("rb") as zeros, pytest.raises(CommandError, match="longer than 1,000 bytes"):
        list(read_lines(zeros.fileno(), "zeros", 1000))
