"""`penstock log …`: the declarations; the work is in log_work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson

app = typer.Typer(help="Look at a stopped node's data directory.", no_args_is_help=True)

DataDirectory = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", envvar="PENSTOCK_DATA_DIR", show_default=False)
]
Topic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", show_default=False)]
Partition = Annotated[int | None, typer.Argument(metavar="[PARTITION]", show_default=False, min=0)]
