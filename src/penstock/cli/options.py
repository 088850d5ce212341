"""Options that many commands share, declared once."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock.cli.failure import EXIT_USAGE, CommandError

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
HTTP_DEFAULT: Final = "127.0.0.1:8080"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker to ask first; several separated by commas.",
    ),
]
Http = Annotated[
    str,
    typer.Option(
        "--http", envvar="PENSTOCK_HTTP", metavar="HOST:PORT", help="A node's HTTP door; several separated by commas."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config; may be repeated."),
]


def parse_pairs(texts: list[str] | None, *, option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"{option} {text!r} is not of the form NAME=VALUE", exit_code=EXIT_USAGE)
        pairs[name] = value
    return pairs
