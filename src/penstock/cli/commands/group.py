"""`penstock group …`: the declarations; the work is in `work/group`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]


@app.command("list")
def list_groups(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state, such as Empty; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="Only groups of this type, classic, consumer or share.")
    ] = None,
) -> None:
    """Every group with its type and state."""
    from penstock.cli.work import group as group_work

    group_work.list_groups(bootstrap, states=state or [], types=kind or [], as_json=as_json)


@app.command("describe")
def describe(
    group: GroupName,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """A group's members and how far they have read: lag per partition and member."""
    from penstock.cli.work import group as group_work

    group_work.describe(bootstrap, group, as_json=as_json)


@app.command("reset")
def reset(
    group: GroupName,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            show_default=False,
            help="earliest, latest, an offset, a time such as '2026-11-15 10:00', or '10 minutes ago'.",
        ),
    ],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:N,N]",
            help="Only this topic, or these partitions of it; may be repeated. Default: all that the group has read.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a group's offsets. Refused while it has members."""
    from penstock.cli.work import group as group_work

    group_work.reset(bootstrap, group, to=to, topics=topic or [], is_dry_run=dry_run, as_json=as_json)


@app.command("delete")
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their offsets. Refused while they have members."""
    from penstock.cli.work import group as group_work

    group_work.delete(bootstrap, groups, is_confirmed=yes, as_json=as_json)
