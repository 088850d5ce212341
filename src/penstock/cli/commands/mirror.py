"""`penstock mirror …`: the declarations; the work is in `work/mirror`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import AsJson

app = typer.Typer(
    help="Copy topics, settings and positions of groups to another cluster, and keep at it.", no_args_is_help=True
)

Name = Annotated[str, typer.Option("--name", help="Of this mirror: under it the target remembers how far it is.")]
Source = Annotated[str, typer.Option("--from", metavar="HOST:PORT", show_default=False, help="The source cluster.")]
Target = Annotated[str, typer.Option("--to", metavar="HOST:PORT", show_default=False, help="The target cluster.")]


@app.command("run")
def run(
    *,
    source: Source,
    target: Target,
    name: Name = "mirror",
    topics: Annotated[
        str, typer.Option("--topics", metavar="REGEX", help="Topics whose whole name matches; internal ones never do.")
    ] = ".*",
    groups: Annotated[
        str, typer.Option("--groups", metavar="REGEX", help="Groups whose positions are translated.")
    ] = ".*",
    prefix: Annotated[
        str, typer.Option("--prefix", help="Before each topic's name in the target, such as 'west.'.")
    ] = "",
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Only what comes from now on, where nothing was mirrored before.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="End when everything that is there now is mirrored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mirror until Ctrl-C. Each record exactly once; started again, it goes on where it was."""
    from penstock.cli.work import mirror as mirror_work

    mirror_work.run(
        mirror_work.plan_of(
            name=name,
            source=source,
            target=target,
            topics=topics,
            groups=groups,
            prefix=prefix,
            from_latest=from_latest,
        ),
        once=once,
        as_json=as_json,
    )


@app.command("status")
def status(*, source: Source, target: Target, name: Name = "mirror", as_json: AsJson = False) -> None:
    """How far a mirror is, partition by partition, whether it runs or not."""
    from penstock.cli.work import mirror as mirror_work

    mirror_work.status(source, target, name, as_json=as_json)
