"""The work of `penstock pipeline list`, `status` and `reset`: no Spark is needed for them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.clock import Clock, SystemClock
from penstock.cli.cells import moment
from penstock.cli.confirmation import confirm
from penstock.cli.failure import CommandError
from penstock.cli.options import BOOTSTRAP_DEFAULT
from penstock.cli.output import counted, print_json, print_table, run_async, say
from penstock.cli.work.pipeline import open_sound_file
from penstock.cli.work.pipeline_view import status_table
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.pipeline.declared.prepare import state_of
from penstock.pipeline.declared.problems import suggestion
from penstock.pipeline.declared.state import StateError
from penstock.pipeline.declared.status import ALIVE, LOST, Status, forget, lag_of, read_statuses

WATCH_SECONDS: Final = 1.0


def list_pipelines(bootstrap: str | None, *, as_json: bool) -> None:
    statuses = run_async(_read(bootstrap or BOOTSTRAP_DEFAULT, None, SystemClock(), with_lag=False))
    if as_json:
        print_json({"pipelines": [msgspec.to_builtins(status) for status in statuses]})
        return
    if not statuses:
        say("no pipeline has run here yet")
        return
    rows = [
        (status.name, status.state, ", ".join(status.sources), status.sink, status.host, moment(status.updated_ms))
        for status in statuses
    ]
    print_table(("pipeline", "state", "reads", "writes", "on", "last heard of"), rows)


def status(bootstrap: str | None, name: str | None, *, is_watching: bool, as_json: bool) -> None:
    address = bootstrap or BOOTSTRAP_DEFAULT
    clock = SystemClock()
    if is_watching and sys.stdout.isatty():
        run_async(_watch(address, name, clock))
        return
    statuses = run_async(_read(address, name, clock, with_lag=True))
    if as_json:
        print_json({"pipelines": [msgspec.to_builtins(status) for status in statuses]})
    elif name is not None:
        _print_one(statuses[0])
    elif statuses:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 200).print(status_table(statuses))
    else:
        say("no pipeline has run here yet")


async def _read(bootstrap: str, name: str | None, clock: Clock, *, with_lag: bool) -> list[Status]:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        return await _read_by(client, name, clock, with_lag=with_lag)


async def _read_by(client: ClusterClient, name: str | None, clock: Clock, *, with_lag: bool) -> list[Status]:
    statuses = await read_statuses(client, now_ms=clock.now_ms())
    if name is not None:
        chosen = [status for status in statuses if status.name == name]
        if not chosen:
            told = suggestion(name, [status.name for status in statuses])
            raise CommandError(f"no pipeline {name!r} has run here yet{told}")
        statuses = chosen
    if not with_lag:
        return statuses
    # Asked anew: of one that does not run, the lag grows all the same.
    return [
        msgspec.structs.replace(status, lag=await lag_of(client, status.group)) if status.group else status
        for status in statuses
    ]


async def _watch(bootstrap: str, name: str | None, clock: Clock) -> None:
    from rich.live import Live

    async with ClusterClient(parse_addresses(bootstrap)) as client:
        with Live(refresh_per_second=4) as live:
            while True:
                live.update(status_table(await _read_by(client, name, clock, with_lag=True)))
                await asyncio.sleep(WATCH_SECONDS)


def _print_one(found: Status) -> None:
    facts: list[tuple[str, object]] = [
        ("state", found.state),
        ("reads", ", ".join(found.sources)),
        ("writes", found.sink),
        ("rows a second", f"{found.rows_per_second:,.0f}"),
        ("time of a batch", f"{found.batch_ms:,} ms"),
        ("batch", found.batch_id if found.batch_id >= 0 else None),
        ("rows in", found.rows_in),
        ("rows out", found.rows_out),
        ("bad rows", found.bad_rows),
        ("lag", found.lag),
        ("watermark", found.watermark or None),
        ("restarts", found.restarts),
        ("last error", found.last_error or None),
        ("its details", f"{found.host}:{found.log_file}" if found.log_file else None),
        ("file", found.file),
        ("runs on", f"{found.host}, process {found.pid}, master {found.master}"),
        ("started", moment(found.started_ms)),
        ("last heard of", moment(found.updated_ms)),
    ]
    print_table(None, facts, title=f"pipeline {found.name}")


def reset(file: Path, names: Sequence[str], bootstrap: str | None, *, is_confirmed: bool, as_json: bool) -> None:
    loaded, pipelines = open_sound_file(file, names, bootstrap)
    question = f"Forget how far {', '.join(pipelines)} {'is' if len(pipelines) == 1 else 'are'}?"
    confirm(f"{question} The next run writes its rows again.", is_confirmed=is_confirmed)
    elsewhere: list[str] = []
    removed: list[str] = []
    for name, pipeline in pipelines.items():
        state = state_of(loaded.site, name, pipeline)
        if state.is_elsewhere:
            elsewhere += [state.checkpoint, state.dead_letter_checkpoint]
            say(f"not on this machine, to be removed there: {', '.join(elsewhere[-2:])}")
        try:
            state.lock()
            for path in state.reset():
                removed.append(str(path))
                if not as_json:
                    say(f"removed {path}")
        except StateError as error:
            raise CommandError(str(error)) from error
        finally:
            state.release()
    run_async(_forget(loaded.site.bootstrap, list(pipelines), SystemClock()))
    if as_json:
        print_json({"pipelines": list(pipelines), "removed": removed, "left_elsewhere": elsewhere})
    if elsewhere:
        raise CommandError(f"{counted(len(elsewhere), 'checkpoint')} left, not on this machine")


async def _forget(bootstrap: str, names: Sequence[str], clock: Clock) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        known = await read_statuses(client, now_ms=clock.now_ms())
        gone = [found.name for found in known if found.name in names and found.state not in ALIVE - {LOST}]
        if gone:
            await forget(client, gone, now_ms=clock.now_ms())
