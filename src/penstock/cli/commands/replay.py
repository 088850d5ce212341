"""`penstock replay`: the declaration; the work is in `work/replay`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import BOOTSTRAP_DEFAULT, AsJson, Bootstrap


def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="The source topic.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where copies of them go.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    archive: Annotated[
        str | None, typer.Option("--archive", "-a", metavar="PATH", help="Older messages come from this archive.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 'yesterday 10:00', '-2h'.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before then.")] = None,
    from_offset: Annotated[int | None, typer.Option("--from-offset", min=0, help="In every partition.")] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="Up to this offset, which is not included.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option("--partition", min=0, help="Only these; repeat it.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/s", help="At most N messages a second, or /min, /h.")
    ] = None,
    speed: Annotated[
        str | None, typer.Option("--speed", metavar="Nx", help="In their own rhythm, N times as fast: 1x, 10x.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help='Only those: "json:amount::double > 100". Columns as in query.'),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only those with this key.")] = None,
    keep_partition: Annotated[
        bool, typer.Option("--keep-partition", help="To the partition of the same number. [by key]")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Goes on where a replay of this name has ended. [a new one]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and send nothing.")] = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on where messages are neither in the log nor in the archive.")
    ] = False,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="A Spark cluster's. [this machine, all cores]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copies of messages into a topic, in order, each exactly once; headers penstock-origin-* say where from."""
    from penstock.cli.work import replay as replay_work

    wanted = replay_work.ReplayWish(
        bootstrap=bootstrap, topic=topic, target=to, archive=archive, since=since, until=until,
        from_offset=from_offset, to_offset=to_offset, partitions=tuple(partition) if partition else None,
        rate=rate, speed=speed, where=where, key=key, keeps_partition=keep_partition, name=name,
        is_dry_run=dry_run, fails_on_data_loss=not allow_loss, master=master,
    )  # fmt: skip
    replay_work.replay(wanted, as_json=as_json)
