from __future__ import annotations

import re

import pytest

from penstock import __version__
from penstock.cli.app import run
from penstock.main import app, application_for, ready_line

DOORS = {"kafka": "127.0.0.1:9092", "http": "127.0.0.1:8080"}


def test_ready_tells_doors_version_and_directory() -> None:
    line = ready_line(DOORS, data_dir="/var/lib/penstock", as_json=False)
    doors = f"http={DOORS['http']} kafka={DOORS['kafka']}"
    assert line == f"ready {doors} version={__version__} data_dir=/var/lib/penstock"


def test_whoever_looks_for_addresses_in_the_ready_line_finds_them() -> None:
    line = ready_line(DOORS, data_dir="/a b/kafka=x", as_json=False)
    assert line.startswith("ready ")
    assert dict(re.findall(r"\b(\w+)=(\S+)", line))["http"] == DOORS["http"]
    assert "data_dir='/a b/kafka=x'" in line


def test_serve_alone_says_the_same_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for application in (app, application_for(["serve"])):
        assert run(application, ["serve", "--help"]) == 0
        said.append(capsys.readouterr().out)
    assert "--data-dir" in said[0]
    assert said[0] == said[1]


def test_serve_alone_refuses_what_all_commands_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for application in (app, application_for(["serve"])):
        code = run(application, ["serve", "--no-such-option"])
        said.append((code, capsys.readouterr()))
    assert said[0] == said[1]
    assert said[0][0] != 0


@pytest.mark.parametrize("arguments", [[], ["--help"], ["topic", "list"], ["--user", "somebody", "serve"]])
def test_every_other_line_has_all_commands(arguments: list[str]) -> None:
    assert application_for(arguments) is app
