"""`penstock produce`: the declaration; the work is in `work/produce`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, parse_pairs


class CompressionName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class AcksName(StrEnum):
    ALL = "all"
    LEADER = "1"
    NONE = "0"


Compression = Annotated[CompressionName, typer.Option("--compression", "-z", help="Of whole batches.")]
AcksChoice = Annotated[
    AcksName, typer.Option("--acks", help="Who must have a message before it counts as sent; 0 waits for no answer.")
]


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="Read lines from here, not from stdin; may be repeated."),
    ] = None,
    whole_file: Annotated[
        bool, typer.Option("--whole-file", help="Each --file (or all of stdin) is one message.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Splits a line into key and value."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Of every message; may be repeated."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    compression: Compression = CompressionName.NONE,
    acks: AcksChoice = AcksName.ALL,
    batch_lines: Annotated[int, typer.Option("--batch-lines", min=1, help="Most lines in one batch.")] = 10_000,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="Deliver after this time, such as '30s'."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option("--deliver-at", metavar="TIME", help="Deliver at this time, such as 'tomorrow 08:00'."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document with the partition, offset and id of each message.")
    ] = False,
) -> None:
    """Send lines from standard input or files as messages, and tell where they are."""
    from penstock.cli.work import produce as produce_work

    if key is not None and key_separator is not None:
        raise CommandError("--key and --key-separator exclude each other", exit_code=EXIT_USAGE)
    if key_separator == "":
        raise CommandError("--key-separator cannot be empty", exit_code=EXIT_USAGE)
    plan = produce_work.ProducePlan(
        topic=topic,
        files=tuple(file or ()),
        is_whole_file=whole_file,
        key=None if key is None else key.encode(),
        key_separator=None if key_separator is None else key_separator.encode(),
        headers=(
            *((name, value.encode()) for name, value in parse_pairs(header, option="--header").items()),
            *_delivery_headers(delay, deliver_at),
        ),
        partition=partition,
        compression=compression.value,
        acks={"all": -1, "1": 1, "0": 0}[acks.value],
        batch_lines_max=batch_lines,
        is_delayed=delay is not None or deliver_at is not None,
    )
    produce_work.produce(bootstrap, plan, as_json=as_json)


def _delivery_headers(delay: str | None, deliver_at: str | None) -> tuple[tuple[str, bytes], ...]:
    """Every Kafka producer can send these."""
    if delay is None and deliver_at is None:
        return ()
    from penstock.base.clock import SystemClock
    from penstock.cli.option_values import duration_ms, future_ms
    from penstock.domain.schedule.headers import DELAY_HEADER, DELIVER_AT_HEADER

    if delay is not None and deliver_at is not None:
        raise CommandError("--delay and --deliver-at exclude each other", exit_code=EXIT_USAGE)
    if delay is not None:
        return ((DELAY_HEADER, b"%d" % duration_ms(delay, "--delay")),)
    due_ms = future_ms(deliver_at or "", "--deliver-at", now_ms=SystemClock().now_ms())
    return ((DELIVER_AT_HEADER, b"%d" % due_ms),)
