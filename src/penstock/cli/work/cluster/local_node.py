"""One node of `penstock cluster up`: a process, what it says, and whether it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

_FACTS: Final = msgspec.json.Decoder(dict[str, str | bool])

LOCAL: Final = "127.0.0.1"
# A node that drains waits 30 s for others to lead what it leads, and then syncs.
STOP_S_MAX: Final = 60.0
PAUSE_S_FIRST: Final = 1.0
PAUSE_S_MAX: Final = 30.0
# Whoever ran for so long did not end by the fault of its start.
STEADY_S: Final = 60.0
# Of one line that a node says; longer ones come in pieces.
LINE_BYTES_MAX: Final = 64 * 1024


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Ports are those of node 1, and the others count up; 0: each takes one that is free."""

    node_count: int
    directory: Path
    metadata: str
    kafka_port: int
    http_port: int
    cluster_port: int

    def arguments(self, number: int) -> list[str]:
        doors = [f"{LOCAL}:{_counted_up(port, number)}" for port in (self.kafka_port, self.http_port)]
        return [
            *("serve", "--json", "--data-dir", str(self.directory / str(number)), "--metadata", self.metadata),
            *("--kafka", doors[0], "--http", doors[1]),
        ]

    def settings(self, number: int) -> dict[str, str]:
        """What has no flag."""
        listen = f"{LOCAL}:{_counted_up(self.cluster_port, number)}"
        return {"PENSTOCK_NODE__ID": str(number), "PENSTOCK_CLUSTER__LISTEN": listen}


def _counted_up(port: int, number: int) -> int:
    return port + number - 1 if port else 0


class NodeEndedError(Exception):
    """It ended by itself."""


class LocalNode:
    def __init__(
        self, number: int, plan: ClusterPlan, tell: Callable[[str], None], listening: asyncio.TaskGroup
    ) -> None:
        """`tell` is given a line at a time, of what the node says and of what becomes of it."""
        self.number = number
        self.addresses: dict[str, str] = {}
        self._plan = plan
        self._tell = tell
        self._process: Process | None = None
        self._tasks = listening
        self._listening: list[asyncio.Task[None]] = []
        # What it says when it is ready; None: it ended.
        self._ready: asyncio.Future[dict[str, str] | None] | None = None

    async def start(self) -> None:
        """Returns when it is ready; NodeEndedError: it ended instead."""
        self._ready = asyncio.get_running_loop().create_future()
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.main", *self._plan.arguments(self.number)),
            env={**os.environ, **self._plan.settings(self.number)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_BYTES_MAX,
            # Ctrl-C is for this command, which tells its nodes itself.
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._listening = [
            self._tasks.create_task(self._listen(process.stdout, self._hear)),
            self._tasks.create_task(self._listen(process.stderr, self._pass_on)),
        ]
        addresses = await self._ready
        if addresses is None:
            raise NodeEndedError(await self._ended())
        self.addresses = addresses

    async def keep(self) -> None:
        """For ever: whenever it ends it is started again."""
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S_FIRST
        while True:
            began = loop.time()
            sentence = await self._ended()
            if loop.time() - began > STEADY_S:
                pause_s = PAUSE_S_FIRST
            self._tell(f"{sentence}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            try:
                await self.start()
                self._tell(f"node {self.number} is ready again")
            except NodeEndedError:
                continue  # told at the next turn

    async def stop(self) -> None:
        """In good order, or after too long by force."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    await process.wait()
            except TimeoutError:
                self._tell(f"node {self.number} did not stop within {STOP_S_MAX:g} s and is killed")
                process.kill()
        await self._ended()

    async def _ended(self) -> str:
        """How, when it has said its last."""
        assert self._process is not None
        code = await self._process.wait()
        await asyncio.gather(*self._listening)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"node {self.number} {how}"

    async def _listen(self, stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                continue  # longer than the limit: what there was of it is gone
            take(line.decode(errors="replace").rstrip("\n"))
            if not line:
                return

    def _hear(self, line: str) -> None:
        """The one line that a node says on its standard output, and an empty one at its end."""
        if self._ready is None or self._ready.done():
            return
        if not line:
            self._ready.set_result(None)
            return
        facts = _FACTS.decode(line)
        self._ready.set_result({name: fact for name, fact in facts.items() if isinstance(fact, str)})

    def _pass_on(self, line: str) -> None:
        if line:
            self._tell(f"{self.number} | {line}")
