"""The program: `penstock serve` runs a node; every other command speaks to one over the wire."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock import __version__, metadata_command
from penstock.base import garbage
from penstock.cli.app import app, new_app, run

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node import Node

# A thread that has synced the disk asks for the interpreter at most this long; the default of 5 ms would show in
# every acknowledgement of a busy node.
SWITCH_INTERVAL_SECONDS: Final = 0.0005
# Instead of a directory, where there is none.
MEMORY: Final = "memory"


def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, in TOML or YAML.")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="PENSTOCK_DATA_DIR", help="Where the logs lie.  [default: penstock-data]"),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The Kafka door, or off.  [default: 127.0.0.1:9092]")
    ] = None,
    advertised: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where Kafka clients are told to connect.  [default: the --kafka address; with 0.0.0.0 the address "
            "that each client came in by]",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The HTTP and SQS door, or off.  [default: 127.0.0.1:8080]"),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The page for Prometheus, or off.  [default: off]")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="sqlite:PATH|etcd:URL,URL",
            help="The metadata: a file, or etcd's members.  [default: in the data directory]",
        ),
    ] = None,
    allow_old_etcd: Annotated[
        bool, typer.Option("--allow-old-etcd", help="Take an etcd that may lose changes, for development.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Keep everything in memory; nothing survives.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The line that says ready as a JSON object.")] = False,
) -> None:
    """Runs a node until it is told to stop (SIGTERM, Ctrl-C)."""
    garbage.begin_start()
    from penstock.base import log_events
    from penstock.base.config_error import ConfigError
    from penstock.config import Settings, load_config

    flags: Settings = {"node": {}, "metadata": {}, "kafka": {}, "http": {}, "metrics": {}}
    for section, key, value in (
        ("node", "data_dir", None if data_dir is None else str(data_dir)),
        ("node", "metadata", metadata),
        ("node", "memory", memory or None),
        ("metadata", "allow_old_etcd", allow_old_etcd or None),
        ("kafka", "listen", kafka),
        ("kafka", "advertised", advertised),
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
        try:
            runner.run(_run(Node(loaded), partial(ready_line, data_dir=_directory_of(loaded), as_json=as_json)))
        except ConfigError as error:
            # What no single setting shows is found at the start, where nobody knows who said what.
            raise error if config is None else ConfigError(f"{error} (configuration file {config})") from error


def _directory_of(loaded: Config) -> str:
    return MEMORY if loaded.node.memory else str(Path(loaded.node.data_dir).resolve())


def ready_line(addresses: Mapping[str, str], *, data_dir: str, as_json: bool) -> str:
    """What a node says on standard output when its doors are open; others wait for it, and read the addresses."""
    facts = {**dict(sorted(addresses.items())), "version": __version__, "data_dir": data_dir}
    if as_json:
        return msgspec.json.encode({"is_ready": True, **facts}).decode()
    return " ".join(["ready", *(f"{name}={shlex.quote(fact)}" for name, fact in facts.items())])


async def _run(node: Node, tell_ready: Callable[[Mapping[str, str]], str]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await node.start()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    garbage.begin_serving()
    print(tell_ready(node.addresses), flush=True)
    await stop.wait()
    await node.stop()


app.command("serve")(serve)
app.add_typer(metadata_command.app, name="metadata")


def application_for(arguments: Sequence[str]) -> typer.Typer:
    """All commands; or `serve` alone where it is the one asked for, so that a start does not wait for the others."""
    if arguments[:1] != ["serve"]:
        return app
    alone = new_app()
    alone.command("serve")(serve)
    return alone


def main() -> None:
    sys.exit(run(application_for(sys.argv[1:])))


if __name__ == "__main__":
    main()
