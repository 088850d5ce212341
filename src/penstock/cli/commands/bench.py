"""`penstock bench …`: the declarations; the work is in `work/bench`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from penstock.cli.commands.produce import AcksChoice, AcksName, Compression, CompressionName
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap

if TYPE_CHECKING:
    from penstock.cli.work.bench.plan import BenchPlan

app = typer.Typer(help="Measure a node with the built-in client.", no_args_is_help=True)

_ACKS: Final[dict[AcksName, Literal[-1, 0, 1]]] = {AcksName.ALL: -1, AcksName.LEADER: 1, AcksName.NONE: 0}
# Where neither --messages nor --seconds is given.
_SECONDS_DEFAULT: Final = 10.0


class DurabilityName(StrEnum):
    FSYNC = "fsync"
    INTERVAL = "interval"


Topic = Annotated[
    str | None,
    typer.Option("--topic", help="A topic to use; by default one is made, and deleted afterwards."),
]
Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Of the topic that is made.")]
Messages = Annotated[int | None, typer.Option("--messages", "-n", min=1, help="End after N messages.")]
Seconds = Annotated[float | None, typer.Option("--seconds", "-s", min=0.1, help="End after N seconds.")]
Size = Annotated[int, typer.Option("--size", min=1, help="Bytes of each value.")]
BatchBytes = Annotated[int, typer.Option("--batch-bytes", min=100, help="Size of a batch.")]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=256, help="Requests under way.")]
Durability = Annotated[DurabilityName, typer.Option("--durability", help="Of the topic that is made.")]
Keep = Annotated[bool, typer.Option("--keep", help="Do not delete the topic that was made.")]


def _plan(
    *,
    bootstrap: str,
    topic: str | None,
    partitions: int,
    durability: DurabilityName,
    messages: int | None,
    seconds: float | None,
    size: int,
    compression: CompressionName,
    keep: bool,
    as_json: bool,
    **own: Any,
) -> BenchPlan:
    """Of the options that every bench of a topic has; `own` are those of one, by the names of the plan's fields."""
    from penstock.cli.work.bench.plan import BenchPlan

    if messages is None and seconds is None:
        seconds = _SECONDS_DEFAULT
    return BenchPlan(
        bootstrap=bootstrap,
        topic=topic,
        partitions=partitions,
        durability=durability.value,
        messages=messages,
        seconds=seconds,
        size_bytes=size,
        compression=compression.value,
        is_kept=keep,
        is_json=as_json,
        **own,
    )


@app.command("produce")
def produce(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    topic: Topic = None,
    partitions: Partitions = 1,
    messages: Messages = None,
    seconds: Seconds = None,
    size: Size = 100,
    batch_bytes: BatchBytes = 256 * 1024,
    in_flight: InFlight = 8,
    compression: Compression = CompressionName.NONE,
    acks: AcksChoice = AcksName.ALL,
    durability: Durability = DurabilityName.FSYNC,
    keep: Keep = False,
    as_json: AsJson = False,
) -> None:
    """How much the node takes: whole batches, a few requests under way."""
    from penstock.cli.work.bench.produce import bench_produce

    bench_produce(
        _plan(
            bootstrap=bootstrap,
            topic=topic,
            partitions=partitions,
            durability=durability,
            messages=messages,
            seconds=seconds,
            size=size,
            compression=compression,
            keep=keep,
            as_json=as_json,
            acks=_ACKS[acks],
            batch_bytes=batch_bytes,
            in_flight_max=in_flight,
        )
    )


@app.command("consume")
def consume(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    topic: Topic = None,
    partitions: Partitions = 1,
    messages: Messages = 2_000_000,
    seconds: Seconds = None,
    size: Size = 100,
    batch_bytes: BatchBytes = 256 * 1024,
    compression: Compression = CompressionName.NONE,
    durability: Durability = DurabilityName.INTERVAL,
    keep: Keep = False,
    as_json: AsJson = False,
) -> None:
    """How much the node gives: a topic from its start to its end; an empty one is filled first."""
    from penstock.cli.work.bench.consume import bench_consume

    bench_consume(
        _plan(
            bootstrap=bootstrap,
            topic=topic,
            partitions=partitions,
            durability=durability,
            messages=messages,
            seconds=seconds,
            size=size,
            compression=compression,
            keep=keep,
            as_json=as_json,
            batch_bytes=batch_bytes,
        )
    )


@app.command("latency")
def latency(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    topic: Topic = None,
    partitions: Partitions = 1,
    messages: Messages = None,
    seconds: Seconds = None,
    size: Size = 100,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Messages a second, kept come what may.")] = 100_000,
    linger_ms: Annotated[
        float,
        typer.Option("--linger-ms", min=1, max=1000, help="One request every so often, with all that is due."),
    ] = 2.0,
    compression: Compression = CompressionName.NONE,
    acks: AcksChoice = AcksName.ALL,
    durability: Durability = DurabilityName.FSYNC,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="A directory on the node's disk: its own syncs are timed too."),
    ] = None,
    keep: Keep = False,
    as_json: AsJson = False,
) -> None:
    """How long an acknowledgement takes at a fixed rate, from when a message was due."""
    from penstock.cli.work.bench.latency import bench_latency

    if acks is AcksName.NONE:
        raise CommandError("--acks 0 has no acknowledgement whose latency could be measured", exit_code=EXIT_USAGE)
    bench_latency(
        _plan(
            bootstrap=bootstrap,
            topic=topic,
            partitions=partitions,
            durability=durability,
            messages=messages,
            seconds=seconds,
            size=size,
            compression=compression,
            keep=keep,
            as_json=as_json,
            acks=_ACKS[acks],
            linger_ms=linger_ms,
            rate=rate,
            probe_directory=data_dir,
        )
    )


class QueuePart(StrEnum):
    MACHINE = "machine"
    SHARE = "share"
    HTTP = "http"
    SQS = "sqs"


@app.command("queue")
def queue(
    *,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    http: Annotated[
        str, typer.Option("--http", envvar="PENSTOCK_HTTP", metavar="HOST:PORT", help="The node's HTTP door.")
    ] = "127.0.0.1:8080",
    parts: Annotated[
        list[QueuePart] | None, typer.Option("--part", help="Only this one; may be repeated. By default all of them.")
    ] = None,
    messages: Annotated[
        int, typer.Option("--messages", "-n", min=100, help="Received and acked at each door.")
    ] = 200_000,
    machine_messages: Annotated[
        int, typer.Option("--machine-messages", min=100, help="Through the machine alone.")
    ] = 1_000_000,
    sqs_messages: Annotated[
        int, typer.Option("--sqs-messages", min=100, help="Of each kind of batch, received over SQS.")
    ] = 20_000,
    size: Size = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Messages of a receive and an ack.")] = 100,
    connections: Annotated[int, typer.Option("--connections", min=1, max=256, help="Each waits for its replies.")] = 8,
    partitions: Partitions = 1,
    as_json: AsJson = False,
) -> None:
    """How many messages are received and acknowledged one by one: the machine alone, and at each door."""
    from penstock.cli.work.bench.queue import QueueBenchPlan, bench_queue

    bench_queue(
        QueueBenchPlan(
            bootstrap=bootstrap,
            http=http,
            messages=messages,
            machine_messages=machine_messages,
            sqs_messages=sqs_messages,
            size_bytes=size,
            batch=batch,
            connections=connections,
            partitions=partitions,
            parts=tuple(part.value for part in parts or QueuePart),
            is_json=as_json,
        )
    )
