"""Programs of ours in Go with franz-go, fetched and built once; a test that wants one is skipped where it cannot be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

# Fixed, because what franz-go makes of a table of APIs is its own affair and may change from release to release.
MODULES: Final = (
    "github.com/twmb/franz-go@v1.22.2",
    "github.com/twmb/franz-go/pkg/kadm@v1.19.0",
    "github.com/twmb/franz-go/pkg/kmsg@v1.15.0",
)
# Fetching some megabytes and compiling them on one busy core.
BUILD_SECONDS_MAX: Final = 400
DIRECTORY: Final = Path(__file__).parents[3] / "build" / "franz-go"


def franz_program(source: Path) -> Path:
    """The built program; what was built before of the same source is used again."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("franz-go needs go, which is not here")
    home = DIRECTORY / source.stem
    program, copy = home / source.stem, home / "main.go"
    if program.is_file() and copy.is_file() and copy.read_bytes() == source.read_bytes():
        return program
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for words in (
        ["mod", "init", source.stem],
        ["get", *MODULES],
        ["build", "-o", str(program), str(shutil.copy(source, copy))],
    ):
        try:
            subprocess.run([go, *words], cwd=home, check=True, capture_output=True, timeout=BUILD_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            pytest.skip(f"franz-go could not be had: {error}")
        except subprocess.CalledProcessError as error:
            if words[0] == "get":
                pytest.skip(f"franz-go could not be fetched: {error.stderr.decode()[-500:]}")
            raise AssertionError(error.stderr.decode()) from error
    return program
