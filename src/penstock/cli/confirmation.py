"""Asks before something is lost; `--yes` has answered already."""

from __future__ import annotations

import typer

from penstock.cli.failure import CommandError


def confirm(question: str, *, is_confirmed: bool, refused: str = "nothing was done") -> None:
    """On standard error, so that the output of a pipe stays what it is."""
    if not is_confirmed and not typer.confirm(question, err=True):
        raise CommandError(refused)
