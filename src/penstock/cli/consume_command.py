"""`penstock consume`: the declaration; the work is in consume_work."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.options import BOOTSTRAP_DEFAULT, Bootstrap


class BytesFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="START",
            help="earliest, latest, an offset, a time in ms, '2026-11-15 10:00' or '10 minutes ago'.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after so many.")] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", min=0, help="Begin so many offsets before the end of each partition."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on after the end.")] = False,
    tail: Annotated[bool, typer.Option("--tail", help="Only what is new: --from latest --follow.")] = False,
    key_format: Annotated[BytesFormat, typer.Option("--key-format")] = BytesFormat.TEXT,
    value_format: Annotated[BytesFormat, typer.Option("--value-format")] = BytesFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    print_key: Annotated[bool, typer.Option("--print-key", help="Before the value, with a tab.")] = False,
    print_headers: Annotated[bool, typer.Option("--print-headers", help="Before key and value.")] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEMPLATE",
            help="%k key, %v value, %h headers, %o offset, %p partition, %t ms, %T ISO time, %n topic.",
        ),
    ] = None,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Leave out messages of open and aborted transactions.")
    ] = False,
) -> None:
    """Read messages, by default from the earliest to the end as of now."""
    from penstock.cli import consume_work

    if sum((start is not None, last is not None, tail)) > 1:
        raise CommandError("--from, --last and --tail exclude each other", exit_code=EXIT_USAGE)
    if template is not None and (as_json or print_key or print_headers):
        raise CommandError("--format excludes --json, --print-key and --print-headers", exit_code=EXIT_USAGE)
    plan = consume_work.ConsumePlan(
        topic=topic,
        start="latest" if tail else start or "earliest",
        last=last,
        partitions=tuple(sorted(set(partition or ()))),
        count=count,
        is_following=follow or tail,
        is_read_committed=read_committed,
    )
    shape = consume_work.RowShape(
        key_format=key_format.value,
        value_format=value_format.value,
        is_json=as_json,
        has_key=print_key,
        has_headers=print_headers,
        template=template,
    )
    consume_work.consume(bootstrap, plan, shape)
