from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import typer

from penstock.cli import failure
from penstock.cli.app import app, run
from penstock.cli.failure import CommandError
from penstock.cli.output import print_table

PROGRAM = "import sys; from penstock.cli.app import app, run; sys.exit(run(app))"


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["topic"], ["produce"], ["consume"], ["log"], ["bench"], ["bench", "latency"]):
        assert run(app, [*words, "--help"]) == 0
        assert "Usage" in capsys.readouterr().out


def test_tables_show_what_moves_a_cursor_and_take_brackets_for_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key",), [("\x1b[2Jgone\x07",), ("[red]a[/]",)], title="queue orders/[/x]")
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "[red]a[/]" in told
    assert "orders/[/x]" in told


def test_help_loads_no_codec_and_no_client() -> None:
    check = "import sys; import penstock.cli.app; print([m for m in sys.modules if m.startswith("
    check += "('penstock.codec', 'penstock.client', 'penstock.storage', 'polars', 'rich', 'uvloop'))])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["topic", "lis"], "no such command 'lis'"),
        (["produce"], "missing argument 'TOPIC'"),
        (["topic", "create", "t", "--partitions", "x"], "invalid value for"),
        (["topic", "create", "t", "--partitions", "0"], "a topic cannot have 0 partitions"),
        (["topic", "create", "t", "--config", "x"], "--config 'x' is not of the form NAME=VALUE"),
        (["topic", "alter", "t"], "nothing to change"),
        (["produce", "t", "--key", "a", "--key-separator", ":"], "exclude each other"),
        (["consume", "t", "--from", "tomorrow"], "'tomorrow' is not a place to start from"),
        (["consume", "t", "--from", "0", "--tail"], "exclude each other"),
        (["consume", "t", "--format", "%q"], "%q is unknown"),
        (["bench", "latency", "--acks", "0"], "no acknowledgement"),
        (["topic", "list", "--bootstrap", "::"], "is no address"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, words) != 0
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["topic", "describe", "t"],
        ["topic", "delete", "t", "--yes"],
        ["produce", "t"],
        ["consume", "t"],
        ["bench", "produce"],
    ],
)
def test_no_broker_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    port = unused_port()
    assert run(app, [*words, "--bootstrap", f"127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == f"penstock: cannot connect to 127.0.0.1:{port}: connection refused\n"


def application_that(error: BaseException) -> typer.Typer:
    application = typer.Typer()

    @application.command()
    def fail() -> None:
        raise error

    return application


@pytest.mark.parametrize(
    ("error", "sentence", "code"),
    [
        (CommandError("no such thing", exit_code=3), "no such thing", 3),
        (ValueError("two\nlines"), "unexpected ValueError: two lines", 1),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), "x.txt: no such file or directory", 1),
        (ExceptionGroup("g", [CommandError("inner")]), "inner", 1),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    error: Exception, sentence: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(application_that(error), []) == code
    written = capsys.readouterr().err
    assert written.startswith(f"penstock: {sentence}")
    assert written.count("\n") == 1


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("penstock ")


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(application_that(KeyboardInterrupt()), []) == failure.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = "import sys, typer; from penstock.cli.app import run\n"
    program += "def main():\n    for n in range(100_000): sys.stdout.write('line\\n')\n"
    program += "application = typer.Typer(); application.command()(main); sys.exit(run(application, []))"
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
