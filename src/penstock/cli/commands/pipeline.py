"""`penstock pipeline`: pipelines that a YAML file declares, run by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson

app = typer.Typer(help="Run Spark SQL pipelines that a YAML file declares.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE.yaml", exists=True, dir_okay=False, readable=True)]
Names = Annotated[
    list[str] | None, typer.Option("--name", "-n", metavar="NAME", help="Only this pipeline; may be repeated.")
]
# None: what the file says overrides the default.
FileBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker to ask first; overrides the file's own.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", "-m", metavar="URL", help="Spark's master; local[*] if neither this nor the file says."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
]


@app.command()
def run(
    file: File,
    name: Names = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")] = False,
    master: Master = None,
    conf: Conf = None,
    bootstrap: FileBootstrap = None,
    as_json: Annotated[bool, typer.Option("--json", help="Events as JSON lines on standard error.")] = False,
) -> None:
    """Run pipelines until they are stopped (Ctrl-C: after the running batch). They go on where they were."""
    from penstock.cli.work import pipeline_run as pipeline_run_work

    pipeline_run_work.run(
        file, name or [], is_once=once, master=master, conf=conf, bootstrap=bootstrap, as_json=as_json
    )


@app.command()
def validate(
    file: File,
    name: Names = None,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask a node for topics and samples.")] = False,
    syntax: Annotated[bool, typer.Option("--syntax", help="Only the file itself: no node, no Spark; at once.")] = False,
    conf: Conf = None,
    bootstrap: FileBootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Tell everything that is wrong with a file: keys, topics, schemas, SQL. Nothing is run."""
    from penstock.cli.work import pipeline as pipeline_work

    pipeline_work.validate(
        file,
        name or [],
        is_offline=offline,
        is_syntax_only=syntax,
        conf=conf,
        bootstrap=bootstrap,
        as_json=as_json,
    )


@app.command()
def explain(
    file: File,
    name: Names = None,
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Only the graph, as Mermaid.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Spark's physical plan as well.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask a node for topics and samples.")] = False,
    conf: Conf = None,
    bootstrap: FileBootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Show what pipelines do: sources, their columns (found in a sample, if need be), steps, sink, graph."""
    from penstock.cli.work import pipeline as pipeline_work

    pipeline_work.explain(
        file,
        name or [],
        is_offline=offline,
        is_mermaid_only=mermaid,
        with_plan=plan,
        conf=conf,
        bootstrap=bootstrap,
        as_json=as_json,
    )


@app.command()
def preview(
    file: File,
    name: Names = None,
    *,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="How many rows.")] = 20,
    conf: Conf = None,
    bootstrap: FileBootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Show rows that a pipeline would write, computed once over what the topics hold now. Nothing is written."""
    from penstock.cli.work import pipeline as pipeline_work

    pipeline_work.preview(file, name or [], limit=limit, conf=conf, bootstrap=bootstrap, as_json=as_json)


@app.command("list")
def list_pipelines(*, bootstrap: FileBootstrap = None, as_json: AsJson = False) -> None:
    """List the pipelines that the cluster has heard of, and which of them run."""
    from penstock.cli.work import pipeline_status as pipeline_status_work

    pipeline_status_work.list_pipelines(bootstrap, as_json=as_json)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them; all, if none is named.")] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    bootstrap: FileBootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Show how pipelines are doing: rows a second, time of a batch, lag, bad rows, last error."""
    from penstock.cli.work import pipeline_status as pipeline_status_work

    pipeline_status_work.status(bootstrap, name, is_watching=watch, as_json=as_json)


@app.command()
def reset(
    file: File,
    name: Names = None,
    *,
    bootstrap: FileBootstrap = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget how far pipelines are: the next run begins at `starting`, and writes its rows again."""
    from penstock.cli.work import pipeline_status as pipeline_status_work

    pipeline_status_work.reset(file, name or [], bootstrap, is_confirmed=yes, as_json=as_json)
