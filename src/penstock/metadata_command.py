"""`penstock metadata …`, on the data directory of a node that is stopped.

Beside the other commands and not among them: those reach a node by wire alone, and this one opens what else only a
node opens.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.commands.log import DataDirectory
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.options import AsJson
from penstock.cli.output import print_json, say

if TYPE_CHECKING:
    from penstock.broker.directory.adopt import AdoptionPlan
    from penstock.broker.directory.rebuild import Rebuild, RebuildPlan
    from penstock.cluster.store.protocol import MetadataStore

app = typer.Typer(help="Restore a stopped node's metadata.", no_args_is_help=True)


@app.callback()
def metadata() -> None:
    """Restore a stopped node's metadata."""


@app.command("rebuild")
def rebuild(
    *,
    data_dir: DataDirectory,
    metadata: Annotated[
        str, typer.Option("--metadata", metavar="sqlite:PATH", help="As the node has it.  [default: in the directory]")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Go on although something is lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the metadata anew: from what is whole of them, from their copy, and from the directories of topics."""
    from penstock.storage.repair.check import locked_directory

    root, path = str(data_dir), _store_path(data_dir, metadata)
    with locked_directory(root, None) as files:
        made = _plan(root, path)
        if not as_json:
            _tell(made.plan)
        is_done = not dry_run and not made.plan.is_needless
        if is_done:
            _ask(made.plan, path, accept=accept, yes=yes)
            from penstock.broker.directory.rebuild import SET_ASIDE, apply_plan
            from penstock.cluster.store.keys import KeySpace

            aside = f"{root}/{SET_ASIDE}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
            apply_plan(made, files, root=root, path=path, aside=aside, keys=KeySpace())
            say(f"rebuilt; what was there before is in {aside}")
    if as_json:
        print_json({"plan": made.plan, "is_done": is_done})


@app.command("adopt")
def adopt(
    *,
    data_dir: DataDirectory,
    metadata: Annotated[
        str,
        typer.Option(
            "--metadata", metavar="sqlite:PATH|etcd:URL,URL", help="As the node has it.  [default: in the directory]"
        ),
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="As the node has it: how to get into etcd.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Go on although something is lost.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with metadata that are empty, or behind what the node has acted on: a new generation of them begins."""
    from penstock.broker.directory.adopt import AdoptionRefusedError
    from penstock.cluster.store.protocol import StoreError

    def is_wanted(plan: AdoptionPlan) -> bool:
        if not as_json:
            _tell_adoption(plan)
        if dry_run or plan.is_needless:
            return False
        if plan.losses and not accept:
            raise CommandError("nothing was changed: --accept says that what is lost may be")
        if not yes and not typer.confirm(f"Begin generation {plan.generation} of the metadata?", err=True):
            raise CommandError("nothing was changed")
        return True

    try:
        plan, is_done = asyncio.run(_adopt(str(data_dir), metadata, config, is_wanted))
    except (AdoptionRefusedError, StoreError) as error:
        raise CommandError(f"nothing was adopted: {error}") from error
    if is_done:
        say(f"adopted: the metadata are in generation {plan.generation}; start the nodes")
    if as_json:
        print_json({"plan": plan, "is_done": is_done})


async def _adopt(
    root: str, metadata: str, config: Path | None, is_wanted: Callable[[AdoptionPlan], bool]
) -> tuple[AdoptionPlan, bool]:
    from penstock.base.clock import SystemClock
    from penstock.broker.directory.adopt import AdoptionRefusedError, adopt, plan_adoption
    from penstock.cluster.store.keys import KeySpace
    from penstock.storage.files.identity import read_identity
    from penstock.storage.repair.check import locked_directory
    from penstock.storage.repair.directory import survey_topics

    keys, clock = KeySpace(), SystemClock()
    with locked_directory(root, None) as files:
        identity = read_identity(files, root)
        if identity is None:
            raise AdoptionRefusedError(f"the data directory {root} is of no node yet")
        store = await _open_store(root, metadata, config)
        try:
            current, on_disk = await store.range(keys.root), survey_topics(files, root)
            adoption = plan_adoption(current, on_disk, identity, keys=keys, now_ms=clock.now_ms())
            is_done = is_wanted(adoption.plan)
            if is_done:
                await adopt(store, adoption, keys)
        finally:
            await store.close()
    return adoption.plan, is_done


async def _open_store(root: str, metadata: str, config: Path | None) -> MetadataStore:
    from penstock.assembly import metadata_location
    from penstock.base.clock import SystemClock
    from penstock.cluster.store.keys import KeySpace
    from penstock.cluster.store.settings import EtcdLocation
    from penstock.cluster.store.sqlite import SqliteStore
    from penstock.config import Settings, load_config

    flags: Settings = {"node": {"data_dir": root}}
    if metadata:
        flags["node"]["metadata"] = metadata
    loaded = load_config(config, os.environ, flags)
    location = metadata_location(loaded.node)
    if isinstance(location, EtcdLocation):
        from penstock.cluster.store.etcd.engine import EtcdStore

        return await EtcdStore.open(location, loaded.metadata)
    return await SqliteStore.open(location.path, clock=SystemClock(), is_secret=KeySpace().is_secret)


def _tell_adoption(plan: AdoptionPlan) -> None:
    lines = [f"the metadata are at revision {plan.store_revision}, the directory has acted on {plan.acted_on}"]
    if plan.is_needless:
        lines.append("they are not behind the directory: there is nothing to adopt")
    else:
        lines.append(f"generation {plan.generation}: {plan.topics} topics, {_partitions(plan.partitions)}")
        lines += [f"topic {name}: from its directory" for name in plan.added]
    _write("", lines)
    _write("lost: ", () if plan.is_needless else plan.losses)


def _store_path(data_dir: Path, metadata: str) -> str:
    if not metadata:
        return str(data_dir / "metadata.sqlite")
    from penstock.cluster.store.settings import EtcdLocation, LocationInvalidError, parse_location

    try:
        location = parse_location(metadata)
    except LocationInvalidError as error:
        raise CommandError(f"--metadata: {error}", exit_code=EXIT_USAGE) from error
    if isinstance(location, EtcdLocation):
        raise CommandError("--metadata: etcd is restored from its own snapshots, not rebuilt", exit_code=EXIT_USAGE)
    return location.path


def _plan(root: str, path: str) -> Rebuild:
    """The caller holds the directory's lock."""
    from penstock.base.clock import SystemClock
    from penstock.broker.directory.rebuild import make_plan
    from penstock.broker.directory.sources import read_sources
    from penstock.cluster.store.keys import KeySpace
    from penstock.storage.files.directory import DirectoryFiles
    from penstock.storage.files.identity import read_identity
    from penstock.storage.repair.directory import read_cluster_id, survey_topics

    files, keys = DirectoryFiles(), KeySpace()
    belongs_to = read_cluster_id(files, root)
    sources = read_sources(path, belongs_to=belongs_to, keys=keys)
    on_disk, identity = survey_topics(files, root), read_identity(files, root)
    seen_revision = 0 if identity is None else identity.metadata_revision
    now_ms = SystemClock().now_ms()
    return make_plan(sources, on_disk, belongs_to=belongs_to, keys=keys, now_ms=now_ms, seen_revision=seen_revision)


def _ask(plan: RebuildPlan, path: str, *, accept: bool, yes: bool) -> None:
    if plan.losses and not accept:
        raise CommandError(f"nothing was changed: --accept says that what is lost may be ({len(plan.losses)} named)")
    if not yes and not typer.confirm(f"Replace {path} by this?", err=True):
        raise CommandError("nothing was changed")


def _tell(plan: RebuildPlan) -> None:
    lines = list(plan.notes)
    if plan.is_needless:
        lines.append("the metadata are whole and fit the directories: there is nothing to rebuild")
    else:
        lines.append("there will be " + ", ".join(f"{count} {kind}" for kind, count in plan.counts.items()))
    lines += [f"topic {each.name}: from its directory, {_partitions(each.partition_count)}" for each in plan.added]
    lines += [f"topic {each.name}: {_partitions(each.partition_count)}, as its directory has" for each in plan.grown]
    lines += [f"topic {each.name}: {each.reason}, which is put right" for each in plan.renamed]
    _write("", lines)
    _write("lost: ", plan.losses)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _write(head: str, lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{head}{line}\n" for line in lines)
