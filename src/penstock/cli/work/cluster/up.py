"""What `penstock cluster up` does: several nodes on this machine, each a process of its own, kept running.

    node 1 starts ─► ready ─► the others start together ─► all ready: the bootstrap addresses are told ─► kept running
                                                                                        told to stop: all drain ─┘

Node 1 goes first, so that one of them makes what they share. A node that does not become ready at the first start ends
the command: what it says is why. Later one that ends is started again, after a pause that grows while it keeps ending.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.cli.failure import CommandError
from penstock.cli.output import run_async, say, write_text
from penstock.cli.work.cluster.local_node import ClusterPlan, LocalNode, NodeEndedError

# Closing the terminal too: nodes have sessions of their own and would stay.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def up(plan: ClusterPlan, *, as_json: bool) -> None:
    plan.directory.mkdir(parents=True, exist_ok=True)
    run_async(_up(plan, as_json=as_json))


async def _up(plan: ClusterPlan, *, as_json: bool) -> None:
    stopping = _Stopping()
    async with asyncio.TaskGroup() as listening:
        nodes = [LocalNode(number, plan, say, listening) for number in range(1, plan.node_count + 1)]
        try:
            await _run(nodes, as_json=as_json)
        except asyncio.CancelledError:
            stopping.confirm()
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))


async def _run(nodes: Sequence[LocalNode], *, as_json: bool) -> None:
    try:
        await nodes[0].start()
        await asyncio.gather(*(node.start() for node in nodes[1:]))
    except NodeEndedError as ended:
        raise CommandError(f"{ended} before it was ready; what it said stands above") from ended
    write_text(ready_line({node.number: node.addresses for node in nodes}, as_json=as_json) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*(node.keep() for node in nodes))


class _Stopping:
    """Ends what this task does at the first signal; those that follow find it stopping already."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._is_told = False
        for number in STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, self._tell)

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._task.cancel()

    def confirm(self) -> None:
        """It was cancelled by a signal, and goes on to stop its nodes; else by somebody else, and ends."""
        if not self._is_told:
            raise asyncio.CancelledError
        self._task.uncancel()


def ready_line(addresses: Mapping[int, Mapping[str, str]], *, as_json: bool) -> str:
    """What the command says on standard output when all nodes are ready."""
    bootstrap = ",".join(doors["kafka"] for doors in addresses.values())
    if as_json:
        nodes = [{"node": number, **doors} for number, doors in addresses.items()]
        return msgspec.json.encode({"is_ready": True, "bootstrap": bootstrap, "nodes": nodes}).decode()
    return f"ready bootstrap={bootstrap}"
