"""`penstock report`: the declaration; the work is in `work/report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, HTTP_DEFAULT, AsJson, Bootstrap, Http


def report(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="The topic to look at.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page to write. [TOPIC.html]")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="From then on, such as '-2h'.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to then.")] = None,
    master: Annotated[str | None, typer.Option("--master", help="Spark's master. [this machine]")] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """A page with pictures, computed in Spark: throughput, sizes, keys, hot partitions, delays, dead letters."""
    from penstock.cli.work import report as report_work

    report_work.report(
        topic, output=output, since=since, until=until, master=master, bootstrap=bootstrap, http=http, as_json=as_json
    )
