"""Commands on a terminal: what brokers and messages say is shown there, never obeyed. A pipe gets every byte."""

from __future__ import annotations

import ast
import io
import os
import pty
import sys
from pathlib import Path

import pytest

import penstock.cli
from penstock.cli.failure import report
from penstock.cli.output import print_json, print_table, say, write_bytes, write_text

HOSTILE = "\x1b]0;owned\x07\x9b2J"


class Terminal:
    """The master's side of a pseudo terminal that standard output and standard error are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._master, slave = pty.openpty()
        self._stream = open(slave, "w", encoding="utf-8")  # noqa: SIM115  closed by `shown`
        monkeypatch.setattr(sys, "stdout", self._stream)
        monkeypatch.setattr(sys, "stderr", self._stream)

    def shown(self) -> bytes:
        self._stream.close()
        data = b""
        try:
            while chunk := os.read(self._master, 65_536):
                data += chunk
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(self._master)
        return data


def test_nothing_that_commands_print_steers_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not a fixture: pytest takes standard output back between the two.
    terminal = Terminal(monkeypatch)
    write_bytes(HOSTILE.encode() + b"\n\x9b2J\n")
    write_text(HOSTILE + "\n")
    print_json({"key": HOSTILE})
    print_table(("key",), [(HOSTILE,)], title=HOSTILE)
    say(HOSTILE)
    report(HOSTILE, exit_code=1, as_json=False)
    report(HOSTILE, exit_code=1, as_json=True)
    shown = terminal.shown()
    assert b"\x1b]" not in shown
    assert b"\x07" not in shown
    assert b"\x9b" not in shown
    assert shown.count(b"owned") == 8


def test_a_pipe_gets_every_byte_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="utf-8"))
    write_bytes(b"\x1b[2J\xff\x00\n")
    assert data.getvalue() == b"\x1b[2J\xff\x00\n"


def test_commands_write_by_the_module_that_looks_at_the_terminal() -> None:
    """`output` and `failure` look; app writes only Typer's own help."""
    folder = Path(penstock.cli.__file__).parent
    found = []
    for file in sorted(folder.rglob("*.py")):
        if file.name in ("output.py", "failure.py", "app.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
                ("sys.stdout.write", "sys.stdout.buffer", "sys.stderr.write", "print", "typer.echo")
            ):
                name = ast.unparse(node.func)
                if name == "print" or not name.startswith("print"):
                    found.append(f"{file.relative_to(folder)}:{node.lineno}: {name}")
    # Its lines are its own figures.
    assert [line for line in found if not line.startswith("work/bench/report.py")] == []
