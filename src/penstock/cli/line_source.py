"""Lines from pipes and files, in bounded memory, without waiting for a batch to be full.

    thread: os.read ──→ blocks of lines ──(8 blocks at most)──→ loop: batches

A thread reads, because a regular file cannot be waited for and a pipe may never speak. It is a daemon and
reads the descriptor itself, so that Ctrl-C need not wait for the next line. A batch leaves when it is full,
or `linger_ms` after its first line.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.cli.failure import CommandError

READ_BYTES: Final = 256 * 1024
BLOCKS_WAITING_MAX: Final = 8
# No broker takes a message of this size by default; a binary file without line ends must not fill the memory.
LINE_BYTES_MAX: Final = 64 * 1024 * 1024

STANDARD_INPUT: Final = 0


class BatchLimits(msgspec.Struct, frozen=True):
    lines_max: int = 10_000
    # Below Kafka's default message.max.bytes of 1,048,588 with room for the records' own headers.
    bytes_max: int = 900_000
    linger_ms: int = 100


class _Failed(msgspec.Struct, frozen=True):
    error: Exception


_Block = list[bytes] | _Failed | None


class LineSource:
    def __init__(self, files: Sequence[Path], *, is_whole_file: bool, standard_input: int = STANDARD_INPUT) -> None:
        """Without files, what comes by the descriptor `standard_input`."""
        self._files = files
        self._standard_input = standard_input
        self._is_whole_file = is_whole_file
        self._blocks: asyncio.Queue[_Block] = asyncio.Queue(BLOCKS_WAITING_MAX)
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        threading.Thread(target=self._read_all, name="line-source", daemon=True).start()

    async def batches(self, limits: BatchLimits) -> AsyncIterator[list[bytes]]:
        waiting: list[bytes] = []
        size, deadline = 0, None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    block = await self._blocks.get()
            except TimeoutError:
                yield waiting
                waiting, size, deadline = [], 0, None
                continue
            if isinstance(block, _Failed):
                raise block.error
            for line in block or ():
                if waiting and (len(waiting) >= limits.lines_max or size + len(line) > limits.bytes_max):
                    yield waiting
                    waiting, size, deadline = [], 0, None
                waiting.append(line)
                size += len(line)
            if block is None:
                if waiting:
                    yield waiting
                return
            if waiting and deadline is None:
                deadline = self._loop.time() + limits.linger_ms / 1000

    # -- in the thread

    def _read_all(self) -> None:
        try:
            for descriptor, name in self._open_each():
                blocks = read_whole(descriptor, name) if self._is_whole_file else read_lines(descriptor, name)
                for block in blocks:
                    self._hand_over(block)
            self._hand_over(None)
        except (OSError, CommandError) as error:
            self._hand_over(_Failed(error))
        except RuntimeError:
            # The loop has ended before us: nobody wants the rest.
            return

    def _open_each(self) -> Iterator[tuple[int, str]]:
        if not self._files:
            yield self._standard_input, "standard input"
            return
        for path in self._files:
            with path.open("rb", buffering=0) as file:
                yield file.fileno(), str(path)

    def _hand_over(self, block: _Block) -> None:
        asyncio.run_coroutine_threadsafe(self._blocks.put(block), self._loop).result()


def read_lines(descriptor: int, name: str, bytes_max: int = LINE_BYTES_MAX) -> Iterator[list[bytes]]:
    """Blocks of whole lines without their line ends; the last line need not have one."""
    rest = bytearray()
    while chunk := os.read(descriptor, READ_BYTES):
        end = chunk.rfind(b"\n")
        if end < 0:
            rest += chunk
            _refuse_if_long(len(rest), name, bytes_max)
            continue
        rest += memoryview(chunk)[:end]
        yield bytes(rest).split(b"\n")
        rest = bytearray(memoryview(chunk)[end + 1 :])
    if rest:
        yield [bytes(rest)]


def read_whole(descriptor: int, name: str) -> Iterator[list[bytes]]:
    """All of it as one block of one message."""
    content = bytearray()
    while chunk := os.read(descriptor, READ_BYTES):
        content += chunk
        _refuse_if_long(len(content), name, LINE_BYTES_MAX)
    yield [bytes(content)]


def _refuse_if_long(size: int, name: str, bytes_max: int) -> None:
    if size > bytes_max:
        raise CommandError(f"{name}: a message is longer than {bytes_max:,} bytes")
