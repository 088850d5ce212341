"""The program: `penstock serve` runs a node; every other command speaks to one over the wire."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock import metadata_command
from penstock.cli.app import app, run

# A thread that has synced the disk asks for the interpreter at most this long; the default of 5 ms would show in
# every acknowledgement of a busy node.
SWITCH_INTERVAL_SECONDS: Final = 0.0005
# Requests leave no cycles behind, so the collector finds nothing young: look seldom.
COLLECT_AFTER_ALLOCATIONS: Final = 50_000


def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML or YAML file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the logs lie.  [default: penstock-data]")] = None,
    kafka: Annotated[str | None, typer.Option(help="HOST:PORT or off.  [default: 127.0.0.1:9092]")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT or off.  [default: 127.0.0.1:8080]")] = None,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT or off.  [default: off]")] = None,
    metadata: Annotated[str | None, typer.Option(help="sqlite:PATH.  [default: in the data directory]")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep everything in memory; nothing survives.")] = False,
) -> None:
    """Runs a node until it is told to stop (SIGTERM, Ctrl-C)."""
    from penstock.base import log_events
    from penstock.config import Settings, load_config

    flags: Settings = {"node": {}, "kafka": {}, "http": {}, "metrics": {}}
    for section, key, value in (
        ("node", "data_dir", None if data_dir is None else str(data_dir)),
        ("node", "metadata", metadata),
        ("node", "memory", memory or None),
        ("kafka", "listen", kafka),
        ("http", "listen", http),
        ("metrics", "listen", metrics),
    ):
        if value is not None:
            flags[section][key] = value
    loaded = load_config(config, os.environ, flags)
    log_events.configure(loaded.log.format, loaded.log.level)

    import uvloop

    from penstock.base.process_memory import keep_freed_memory
    from penstock.gateways.connection_room import raise_file_limit
    from penstock.node import Node

    raise_file_limit()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(Node(loaded)))


async def _run(node: object) -> None:
    from penstock.node import Node

    assert isinstance(node, Node)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Before the start: a replay makes millions of objects that stay, and looking through them again and again would
    # cost more than making them.
    gc.set_threshold(COLLECT_AFTER_ALLOCATIONS, 20, 100)
    await node.start()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.collect()
    gc.freeze()
    print("ready", *(f"{door}={address}" for door, address in sorted(node.addresses.items())), flush=True)
    await stop.wait()
    await node.stop()


app.command("serve")(serve)
app.add_typer(metadata_command.app, name="metadata")


def main() -> None:
    sys.exit(run(app))


if __name__ == "__main__":
    main()
