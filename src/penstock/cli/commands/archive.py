"""`penstock archive …`: the declarations; the work is in `work/archive`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap


class RunUnlessNamed(TyperGroup):
    """`archive orders --to …` is `archive run orders --to …`: what is no command is a topic."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunUnlessNamed,
    help="Topics into Delta tables, each message exactly once: penstock archive TOPIC... --to PATH",
    no_args_is_help=True,
)

Path = Annotated[str, typer.Argument(metavar="PATH", show_default=False, help="The archive's Delta table.")]
Keep = Annotated[
    str | None, typer.Option("--keep", metavar="DURATION", help="Remove days that ended longer ago, such as 90d.")
]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="A Spark cluster's. [this machine, all cores]")
]


@app.command("run")
def run(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    *,
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="The Delta table; made when the first rows come.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    once: Annotated[bool, typer.Option("--once", help="What is there now, and end.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often a commit is made.")] = "10s",
    rows: Annotated[int, typer.Option("--rows", min=1, help="At most N messages in one commit.")] = 2_000_000,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="Columns made of the values: 'id bigint, name string'."),
    ] = None,
    value_format: Annotated[str, typer.Option("--format", metavar="json|csv", help="How the values are written.")] = (
        "json"
    ),
    compact_every: Annotated[
        int, typer.Option("--compact-every", min=0, metavar="N", help="Put small files together after N commits.")
    ] = 20,
    keep: Keep = None,
    group: Annotated[
        str, typer.Option("--group", help="The group that shows how far it is; retention.archive.group of the topics.")
    ] = "penstock-archive",
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where retention has removed messages before they came here.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Archive topics, from where the table ends. Ctrl-C ends it. Each message gets there exactly once."""
    from penstock.cli.work import archive as archive_work

    archive_work.run(
        archive_work.request_of(
            bootstrap, topics, to, every=every, rows=rows, schema=schema, value_format=value_format,
            compact_every=compact_every, group=group, is_once=once, allows_loss=allow_loss,
        ),
        keep=keep, master=master, as_json=as_json,
    )  # fmt: skip


@app.command("list")
def list_archives(
    directory: Annotated[str, typer.Argument(metavar="[DIRECTORY]", help="At or below it.")] = ".",
    *,
    as_json: AsJson = False,
) -> None:
    """Archives in a directory: topics, messages, size, last commit."""
    from penstock.cli.work import archive_show as archive_show_work

    archive_show_work.list_archives(directory, as_json=as_json)


@app.command("show")
def show(
    path: Path,
    *,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """What an archive holds of each partition: offsets, times, files."""
    from penstock.cli.work import archive_show as archive_show_work

    archive_show_work.show(path, topic=topic, as_json=as_json)


@app.command("forget")
def forget(
    path: Path,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    only_id: Annotated[
        bool,
        typer.Option(
            "--only-id", help="Keep the messages: a topic of that name with another id goes on where they end."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a topic's messages; an archive of it begins anew. Their files go with compact, seven days later."""
    from penstock.cli.work import archive_show as archive_show_work

    archive_show_work.forget(path, topic, only_id=only_id, as_json=as_json)


@app.command("compact")
def compact(
    path: Path,
    *,
    keep: Keep = None,
    vacuum_after: Annotated[
        str,
        typer.Option(
            "--vacuum-after", metavar="DURATION", help="Delete files that left the table longer ago than this."
        ),
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Put small files together, remove old days, delete files that no version in use has. May run beside an archive."""
    from penstock.cli.work import archive_show as archive_show_work

    archive_show_work.compact(path, keep=keep, vacuum_after=vacuum_after, as_json=as_json)
