"""`penstock dlq …`: the declarations; the work is in `work/dlq`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, HTTP_DEFAULT, AsJson, Bootstrap, Http

app = typer.Typer(help="List, show, redrive and purge dead letters.", no_args_is_help=True)

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", show_default=False, help="The dead-letter topic, such as orders-dlq.")
]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", help="Only those that died of this: rejected, deliveries-exhausted, time-to-live-expired."
    ),
]
Key = Annotated[str | None, typer.Option("--key", help="Only messages with this key.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those that failed last at this time or later, such as '-2h'."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only those that failed last before, such as '10:00'.")
]


@app.command("list")
def list_topics(*, http: Http = HTTP_DEFAULT, as_json: AsJson = False) -> None:
    """Every dead-letter topic, and how many wait there for a decision."""
    from penstock.cli.work import dlq as dlq_work

    dlq_work.list_topics(http, as_json=as_json)


@app.command("show")
def show(
    topic: Topic,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="At most N.")] = 10,
    reason: Reason = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """The first dead letters: why they died, and where they came from."""
    from penstock.cli.work import dlq as dlq_work

    only = dlq_work.filter_of(reason=reason, key=key, since=since, until=until)
    dlq_work.show(http, topic, only, count=count, as_json=as_json)


@app.command("redrive")
def redrive(
    topic: Topic,
    *,
    http: Http = HTTP_DEFAULT,
    as_json: AsJson = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="All to this topic. [each to the one it came from]")
    ] = None,
    reason: Reason = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    rate: Annotated[
        int, typer.Option("--rate", min=0, metavar="N", help="Messages a second; 0 means as fast as possible.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would move, and move nothing.")] = False,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="With --spark: only those that fit, such as \"reason = 'rejected' and value like '%berlin%'\".",
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark look through them: for conditions, and for many.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="Spark's master. [this machine]")] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    background: Annotated[
        bool, typer.Option("--background", help="Do not wait for the end: the node goes on by itself.")
    ] = False,
) -> None:
    """Bring dead letters back, each exactly once. Ctrl-C cancels; what has moved has moved."""
    from penstock.cli.work import dlq as dlq_work
    from penstock.cli.work import dlq_spark as dlq_spark_work

    only = dlq_work.filter_of(reason=reason, key=key, since=since, until=until)
    if spark or where is not None:
        dlq_spark_work.redrive(
            dlq_spark_work.Selection(http, bootstrap, topic, where, master, is_by_spark=spark),
            only,
            target=to,
            rate=rate,
            is_dry=dry_run,
            is_awaited=not background,
            as_json=as_json,
        )
    elif dry_run:
        dlq_work.count(http, topic, only, as_json=as_json)
    else:
        dlq_work.redrive(http, topic, only, target=to, rate=rate, is_awaited=not background, as_json=as_json)


@app.command("purge")
def purge(
    topic: Topic,
    *,
    http: Http = HTTP_DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop all that is pending. The topic keeps it until its retention ends."""
    from penstock.cli.work import dlq as dlq_work

    dlq_work.purge(http, topic, is_confirmed=yes, as_json=as_json)
