"""Every command of the program, found by walking it: nobody has to remember a new one here but for its arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from penstock.cli.app import run
from penstock.main import app

pytestmark = pytest.mark.heavy

KAFKA: Final = ("-b", "127.0.0.1:1")
HTTP: Final = ("--http", "127.0.0.1:1")
# What a command needs to be understood; nothing listens on port 1, and no file of these is there.
ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "produce": ("t", *KAFKA),
    "consume": ("t", *KAFKA),
    "trace": ("--topic", "t", "--offset", "0", *HTTP),
    "why": ("--topic", "t", "--offset", "0", *HTTP),
    "report": ("t", *KAFKA),
    "serve": ("--kafka", "nowhere"),
    "topic list": KAFKA,
    "topic create": ("t", *KAFKA),
    "topic describe": ("t", *KAFKA),
    "topic alter": ("t", "-p", "2", *KAFKA),
    "topic delete": ("t", "-y", *KAFKA),
    "group list": KAFKA,
    "group describe": ("g", *KAFKA),
    "group reset": ("g", "--to", "earliest", *KAFKA),
    "group delete": ("g", "-y", *KAFKA),
    "queue list": HTTP,
    "queue describe": ("t", "g", *HTTP),
    "queue create": ("t", "g", *HTTP),
    "queue delete": ("t", "g", "-y", *HTTP),
    "queue receive": ("t", "g", *HTTP),
    "queue ack": ("t", "g", "receipt", *HTTP),
    "queue peek": ("t", "g", *HTTP),
    "queue pause": ("t", "g", *HTTP),
    "queue resume": ("t", "g", *HTTP),
    "queue purge": ("t", "g", "-y", *HTTP),
    "dlq list": HTTP,
    "dlq show": ("t", *HTTP),
    "dlq redrive": ("t", *HTTP),
    "dlq purge": ("t", "-y", *HTTP),
    "schedule create": ("n", "--cron", "* * * * *", "-t", "t", *HTTP),
    "schedule list": HTTP,
    "schedule show": ("n", *HTTP),
    "schedule delete": ("n", "-y", *HTTP),
    "schedule pending": HTTP,
    "schedule cancel": ("id", *HTTP),
    "schedule reschedule": ("id", "--in", "5m", *HTTP),
    "transaction list": KAFKA,
    "transaction describe": ("x", *KAFKA),
    "transaction describe-producers": ("-t", "t", *KAFKA),
    "transaction find-hanging": KAFKA,
    "transaction abort": ("-t", "t", "--start-offset", "0", *KAFKA),
    "mirror run": ("--from", "127.0.0.1:1", "--to", "127.0.0.1:1", "--topic", "t"),
    "mirror status": ("--from", "127.0.0.1:1", "--to", "127.0.0.1:1"),
    "cluster status": KAFKA,
    "cluster verify": HTTP,
    "log verify": ("--data-dir", "absent"),
    "log dump": ("t", "--data-dir", "absent"),
    "log repair": ("-y", "--data-dir", "absent"),
    "metadata rebuild": ("-y", "--data-dir", "absent"),
    "metadata adopt": ("-y", "--data-dir", "absent"),
    "pipeline run": ("absent.yaml", *KAFKA),
    "pipeline validate": ("absent.yaml", *KAFKA),
    "pipeline explain": ("absent.yaml", *KAFKA),
    "pipeline preview": ("absent.yaml", *KAFKA),
    "pipeline list": KAFKA,
    "pipeline status": KAFKA,
    "pipeline reset": ("absent.yaml", "-y", *KAFKA),
    "user list": KAFKA,
    "user create": ("u", *KAFKA),
    "user delete": ("u", "-y", *KAFKA),
    "archive show": ("absent",),
    "archive forget": ("absent", "t"),
    "archive compact": ("absent",),
    "bench produce": KAFKA,
    "bench consume": KAFKA,
    "bench latency": KAFKA,
}
# Not run here: why.
NOT_RUN: Final = {
    "query": "starts Spark before it needs a node",
    "replay": "starts Spark before it needs a node",
    "archive run": "starts Spark before it needs a node",
    "archive list": "nothing in a directory is no failure",
    "cluster up": "passes on what its nodes say",
    "bench queue": "measures the machine alone before it needs a node",
}


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    found = typer.main.get_command(app) if group is None else group
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_no_command_is_forgotten_here() -> None:
    assert {name for name, _ in commands()} == set(ARGUMENTS) | set(NOT_RUN)


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_command_answers_in_json_if_asked(name: str, command: Any) -> None:
    options = [option for parameter in command.params for option in parameter.opts]
    assert "--json" in options, f"{name}: programs call it too"


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_help_shows_defaults_in_brackets(name: str, command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, [*name.split(), "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    for parameter in command.params:
        text = "".join((getattr(parameter, "help", None) or "").split())
        assert text in shown, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_failure_is_a_json_object_if_json_was_asked_for(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run(app, [*name.split(), *ARGUMENTS[name], "--json"])
    captured = capsys.readouterr()
    assert code in (1, 2)
    assert captured.out == "", "half an answer"
    failure = json.loads(captured.err)
    assert failure["exit_code"] == code
    assert failure["error"]
    assert "unexpected" not in failure["error"], "nobody thought of it"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_failure_is_one_sentence_for_people(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(app, [*name.split(), *ARGUMENTS[name]]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.err.startswith("penstock: ")
    assert captured.err.count("\n") == 1


def test_line_that_cannot_be_understood_is_refused_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["topic", "lst", "--json"]) == 2
    assert "no such command 'lst'" in json.loads(capsys.readouterr().err)["error"]
    # Behind the two dashes it is a topic's name.
    assert run(app, ["consume", *KAFKA, "--", "--json"]) == 1
    assert capsys.readouterr().err.startswith("penstock: ")


@pytest.mark.parametrize(
    ("shell", "words", "expected"),
    [
        ("bash", "penstock to", "topic"),
        ("bash", "penstock topic de", "describe"),
        ("bash", "penstock queue cr", "create"),
    ],
)
def test_shell_completes_commands(shell: str, words: str, expected: str) -> None:
    program = "from penstock.main import app, run; import sys; sys.argv[0] = 'penstock'; sys.exit(run(app))"
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, env=environment, timeout=60
    )
    assert expected in done.stdout.split(), done
