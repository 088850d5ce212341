"""`penstock query "SELECT …"`: the declaration; the work is in `work/query`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap


def query(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            show_default=False,
            help="Tables are topics; names with dots or dashes in backquotes: SELECT count(*) FROM `my-orders`",
        ),
    ],
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    archive: Annotated[
        list[str] | None,
        typer.Option(
            "--archive", "-a", metavar="PATH", help="Archives of these topics: older messages come from there."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only messages from this time on, such as '-2h'.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only messages before this time, such as '10:00'.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="At most N rows of the result; 0 means all.")
    ] = 1000,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Rows as CSV, with a header.")] = False,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Also messages of transactions that are open or aborted.")
    ] = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where messages are neither in the log nor in an archive.")
    ] = False,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="A Spark cluster's. [this machine, all cores]")
    ] = None,
) -> None:
    """SQL over topics, archive and log as one table: topic, partition, offset, timestamp, key, value, json, headers.

    json is the value, parsed: SELECT json:customer.id::string, count(*) FROM orders GROUP BY 1
    """
    from penstock.cli.work import query as query_work

    wanted = query_work.QueryWish(
        sql=sql, bootstrap=bootstrap, archives=tuple(archive or ()), since=since, until=until, row_limit=limit,
        is_read_committed=not uncommitted, fails_on_data_loss=not allow_loss, master=master,
    )  # fmt: skip
    query_work.query(wanted, as_json=as_json, as_csv=as_csv)
