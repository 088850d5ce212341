"""Results as files: one JSON a run, and one picture beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from bench import machine

RESULTS: Final = Path(__file__).parent / "results"


def save(name: str, result: dict[str, Any]) -> Path:
    path = _path(name, "json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return path


def save_picture(name: str, figure: Any) -> Path:
    path = _path(name, "svg")
    # Without a date inside, so that the same figures give the same file.
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    # matplotlib leaves blanks at the ends of lines, which every later diff would show.
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))
    return path


def _path(name: str, suffix: str) -> Path:
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{machine.today()}-{name}.{suffix}"
