"""Where a password comes from, and that it does not come from nowhere."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from penstock.cli.failure import CommandError
from penstock.cli.secret_input import ask_password, read_password, remember_login


@pytest.mark.parametrize(
    ("text", "password"), [("secret", "secret"), ("secret\n", "secret"), ("se cret \r\nmore\n", "se cret ")]
)
def test_first_line_of_a_file_is_the_password(tmp_path: Path, text: str, password: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(text.encode())
    assert read_password(str(file)) == password


@pytest.mark.parametrize("text", [b"", b"\n", b"\nsecret", b"\xff\xfe"])
def test_file_without_a_password_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(text)
    with pytest.raises(CommandError):
        read_password(str(file))


def test_standard_input_gives_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\nrest\n"))
    assert read_password("-") == "secret"


def test_where_nobody_can_be_asked_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(CommandError, match="--password-file"):
        ask_password("alice")


def test_login_is_remembered_for_every_client_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_USER", "PENSTOCK_SASL_MECHANISM"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PENSTOCK_PASSWORD", "secret")
    remember_login("alice", password_file=None, mechanism="PLAIN")
    assert [os.environ[f"PENSTOCK_{name}"] for name in ("USER", "PASSWORD", "SASL_MECHANISM")] == [
        "alice",
        "secret",
        "PLAIN",
    ]
