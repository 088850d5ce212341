"""kafkajs from the npm registry, fetched once; a test that wants it is skipped where it cannot be had, and says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

KAFKAJS: Final = "kafkajs@2.2.4"
INSTALL_SECONDS_MAX: Final = 120
DIRECTORY: Final = Path(__file__).parents[3] / "build" / "kafkajs"


def kafkajs_modules() -> Path:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("kafkajs needs node and npm, which are not here")
    found = DIRECTORY / "node_modules"
    if not (found / "kafkajs").is_dir():
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        words = [npm, "install", "--prefix", str(DIRECTORY), "--no-audit", "--no-fund", "--ignore-scripts", KAFKAJS]
        try:
            subprocess.run(words, check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{KAFKAJS} could not be fetched: {error}")
    return found
