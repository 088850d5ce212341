"""Paths as a pipeline file gives them."""

from __future__ import annotations

from pathlib import Path
from posixpath import normpath


def locate(path: str, directory: Path) -> str:
    """A path that is not absolute lies beside the file; a URI is left as it is."""
    if is_uri(path):
        return path
    return str((directory / Path(path).expanduser()).absolute())


def normal(path: str) -> str:
    """The same text for the same place, as far as the text alone tells."""
    return path.rstrip("/") if is_uri(path) else normpath(path)


def is_uri(path: str) -> bool:
    return "://" in path
