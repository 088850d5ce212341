"""`penstock transaction …`: the declarations; the work is in `work/transaction`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False)]
SomePartitions = Annotated[
    list[str],
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:N,N]",
        show_default=False,
        help="This topic, or these partitions of it; may be repeated.",
    ),
]


@app.command("list")
def list_transactions(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only those in this state, such as Ongoing; may be repeated.")
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", metavar="N", help="Only this producer's; may be repeated.")
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="DURATION", help="Only those under way for longer, such as '5 minutes'."),
    ] = None,
    id_pattern: Annotated[
        str | None, typer.Option("--id-pattern", metavar="REGEX", help="Only transactional ids that match as a whole.")
    ] = None,
) -> None:
    """Every transactional id with its producer and state."""
    from penstock.cli.work import transaction as transaction_work

    transaction_work.list_transactions(
        bootstrap,
        states=state or [],
        producer_ids=producer_id or [],
        longer_than=longer_than,
        id_pattern=id_pattern,
        as_json=as_json,
    )


@app.command("describe")
def describe(
    transactional_id: TransactionalId,
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """A transactional id's producer, its transaction and the partitions in it."""
    from penstock.cli.work import transaction as transaction_work

    transaction_work.describe(bootstrap, transactional_id, as_json=as_json)


@app.command("describe-producers")
def describe_producers(
    *,
    topic: SomePartitions,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """The producers that partitions remember, and where their open transactions begin."""
    from penstock.cli.work import transaction as transaction_work

    transaction_work.describe_producers(bootstrap, topics=topic, as_json=as_json)


@app.command("find-hanging")
def find_hanging(
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:N,N]",
            help="Only this topic, or these partitions of it; may be repeated. Default: every topic.",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Transactions open in a partition that no coordinator knows: nothing but `abort` ends them."""
    from penstock.cli.work import transaction as transaction_work

    transaction_work.find_hanging(bootstrap, topics=topic or [], as_json=as_json)


@app.command("abort")
def abort(
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", show_default=False)],
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, show_default=False)],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", metavar="OFFSET", help="Where the transaction begins.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option("--producer-id", metavar="N", help="Or: whose it is.")] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a hanging transaction in one partition. Refused while a coordinator looks after it."""
    from penstock.cli.work import transaction as transaction_work

    transaction_work.abort(
        bootstrap,
        (topic, partition),
        start_offset=start_offset,
        producer_id=producer_id,
        is_confirmed=yes,
        as_json=as_json,
    )
