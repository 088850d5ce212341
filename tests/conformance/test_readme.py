"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.node_process import NodeProcess

README: Final = Path(__file__).parents[2] / "README.md"
SECONDS_MAX: Final = 120


def typed_by_a_newcomer() -> str:
    """All blocks that are marked as a shell's, in their order."""
    section = README.read_text().partition("## First quarter of an hour")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    return "".join(blocks)


def test_first_quarter_of_an_hour_works_as_it_is_written(tmp_path: Path) -> None:
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("bash or curl is not there")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "penstock").write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    (programs / "penstock").chmod(0o755)
    with NodeProcess(tmp_path / "node", memory=True, has_http=True) as node:
        script = typed_by_a_newcomer().replace("127.0.0.1:8080", node.http)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-x", "-c", script],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PENSTOCK_BOOTSTRAP": node.kafka,
                "PENSTOCK_HTTP": node.http,
            },
        )
    assert done.returncode == 0, done.stderr
    assert "1 message acknowledged: partition 0, offset 0\n" in done.stderr
    # An id is shown, and then it is asked for.
    asked = re.search(r"penstock why (\S+)", done.stderr)
    assert asked is not None
    assert f"message {asked[1]}" in done.stdout
    assert "later" in done.stdout
