"""`penstock consume`: the declaration; the work is in `work/consume`."""

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


class Isolation(StrEnum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


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
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="From the first message at or after '2026-11-15 10:00', '10:00', 'yesterday 10:00' or '-2h'; "
            "partitions are merged by time.",
        ),
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--between",
            metavar="TIME TIME",
            help="Only messages stamped at or after the first and before the second; reads on to the end to find all.",
        ),
    ] = None,
    late_max: Annotated[
        str | None,
        typer.Option(
            "--late-max",
            metavar="DURATION",
            help="With --between: no message is later than that ('10 minutes'), so stop reading where that is certain.",
        ),
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="The last value of each key; with --at TIME or --until-offset as of then."),
    ] = False,
    until_offset: Annotated[
        int | None,
        typer.Option("--until-offset", min=0, help="With --snapshot: as of this offset, itself not included."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after N messages.")] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", min=0, help="Begin N offsets before the end of each partition."),
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
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="read_committed leaves out messages of open and aborted transactions."),
    ] = Isolation.READ_UNCOMMITTED,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Short for --isolation read_committed.")
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Go on behind batches that cannot be read, and say how many they were."),
    ] = False,
) -> None:
    """Read messages, by default from the earliest to the end as of now."""
    from penstock.cli.record_format import RowShape
    from penstock.cli.work.consume.request import ConsumeRequest, carry_out

    if template is not None and (as_json or print_key or print_headers):
        raise CommandError("--format excludes --json, --print-key and --print-headers", exit_code=EXIT_USAGE)
    request = ConsumeRequest(
        topic=topic,
        start=start,
        at=at,
        between=between,
        late_max=late_max,
        is_snapshot=snapshot,
        until_offset=until_offset,
        partitions=tuple(sorted(set(partition or ()))),
        count=count,
        last=last,
        is_following=follow,
        is_tail=tail,
        is_read_committed=read_committed or isolation is Isolation.READ_COMMITTED,
        skips_damaged=skip_damaged,
    )
    shape = RowShape(
        key_format=key_format.value,
        value_format=value_format.value,
        is_json=as_json,
        has_key=print_key,
        has_headers=print_headers,
        template=template,
    )
    carry_out(bootstrap, request, shape)
