"""`penstock cluster …`: the declarations; the work is in `work/cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, HTTP_DEFAULT, AsJson, Bootstrap, Http

app = typer.Typer(help="See how a cluster is, and run one on this machine.", no_args_is_help=True)


@app.command("status")
def status(*, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False) -> None:
    """The nodes, the controller, and every partition that is not as it should be."""
    from penstock.cli.work.cluster import status as status_work

    status_work.status(bootstrap, as_json=as_json)


@app.command("verify")
def verify(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)] = None,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Compares the replicas of one topic, or of all, below what is committed. Exit code 1: they differ."""
    from penstock.cli.work.cluster import verify as verify_work

    verify_work.verify(http, topic, as_json=as_json)


@app.command("up")
def up(
    *,
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=99, help="How many.")] = 3,
    directory: Annotated[
        Path, typer.Option("--directory", "-d", metavar="DIR", help="Node 1 has DIR/1, and so on.")
    ] = Path("penstock-cluster"),
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="sqlite:PATH|etcd:URL,URL",
            help="What the nodes share: a file, or etcd's members.  [default: DIR/metadata.sqlite]",
        ),
    ] = None,
    kafka_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Of node 1; the others count up.  0: any that are free.")
    ] = 9092,
    http_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Of node 1; the others count up.  0: any that are free.")
    ] = 8080,
    cluster_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="For the other nodes.  0: any that are free.")
    ] = 19092,
    as_json: Annotated[bool, typer.Option("--json", help="The line that says ready as a JSON object.")] = False,
) -> None:
    """Runs a cluster of several nodes on this machine until it is told to stop (SIGTERM, Ctrl-C)."""
    from penstock.cli.work.cluster import up as up_work
    from penstock.cli.work.cluster.local_node import ClusterPlan

    plan = ClusterPlan(
        node_count=nodes,
        directory=directory.absolute(),
        metadata=metadata or f"sqlite:{directory.absolute() / 'metadata.sqlite'}",
        kafka_port=kafka_port,
        http_port=http_port,
        cluster_port=cluster_port,
    )
    up_work.up(plan, as_json=as_json)
