"""`penstock log …`: the declarations; the work is in `work/log`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson

app = typer.Typer(help="Look at a stopped node's data directory.", no_args_is_help=True)

DataDirectory = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", envvar="PENSTOCK_DATA_DIR", show_default=False)
]
TopicChoice = Annotated[str | None, typer.Argument(metavar="[TOPIC]", show_default=False)]
PartitionChoice = Annotated[int | None, typer.Argument(metavar="[PARTITION]", show_default=False, min=0)]


@app.command("verify")
def verify(
    topic: TopicChoice = None,
    partition: PartitionChoice = None,
    *,
    data_dir: DataDirectory,
    as_json: AsJson = False,
) -> int:
    """Check every batch of every log; exit code 1 when there is damage."""
    from penstock.cli.work import log as log_work

    return log_work.verify(data_dir, topic, partition, as_json=as_json)


@app.command("dump")
def dump(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="[PARTITION]", min=0)] = 0,
    *,
    data_dir: DataDirectory,
    from_offset: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0)] = 0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after N batches.")] = None,
    records: Annotated[bool, typer.Option("--records", help="Also the records of each batch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The batches of one log, as they lie on disk."""
    from penstock.cli.work import log as log_work

    log_work.dump(
        data_dir, topic, partition, from_offset=from_offset, count=count, with_records=records, as_json=as_json
    )


@app.command("repair")
def repair(
    topic: TopicChoice = None,
    partition: PartitionChoice = None,
    *,
    data_dir: DataDirectory,
    drop: Annotated[
        int | None,
        typer.Option("--drop", metavar="OFFSET", min=0, help="Also the batch with this offset, though it is whole."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set damaged bytes aside so that what is whole can be served again."""
    from penstock.cli.work import log as log_work

    log_work.repair(data_dir, topic, partition, drop=drop, is_confirmed=yes, as_json=as_json)
