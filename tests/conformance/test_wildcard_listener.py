"""A node that listens on every address, in a network of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ("unshare", "--map-root-user", "--net")


def has_own_network() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True, timeout=20).returncode == 0


def test_client_is_told_the_address_that_it_came_in_by(tmp_path: Path) -> None:
    if not has_own_network():
        pytest.skip("this machine gives no network namespace to users")
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "support.door.wildcard_scene", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["told"] == [seen["bootstrap"]]
    assert (seen["unsent"], seen["value"]) == (0, "hello")
