"""Nothing is lost unless somebody has said yes."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.confirmation import confirm
from penstock.cli.failure import CommandError

app = typer.Typer()


@app.command()
def drop(*, yes: bool = False) -> None:
    try:
        confirm("Drop it?", is_confirmed=yes, refused="nothing was dropped")
    except CommandError as error:
        typer.echo(error)
        return
    typer.echo("dropped")


@pytest.mark.parametrize(
    ("words", "answer", "told"),
    [(["--yes"], "", "dropped"), ([], "y\n", "dropped"), ([], "n\n", "nothing was dropped")],
)
def test_the_answer_decides(words: list[str], answer: str, told: str) -> None:
    result = CliRunner().invoke(app, words, input=answer)
    assert told in result.stdout.splitlines()
    assert "Drop it?" not in result.stdout
