"""What is wrong with a pipeline file: where, what, and what was probably meant. All of it at once, never the first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

import msgspec

# Of a name and its misspelling; below that a suggestion is a guess.
_LIKENESS_MIN: Final = 0.6

# Keys of mappings and numbers in lists, from the top of the document.
Path = tuple[str | int, ...]


class Place(msgspec.Struct, frozen=True):
    """Where a value stands in the file; lines and columns count from 1."""

    line: int
    column: int
    # Where its text begins: in a block (`sql: |`) on the next line.
    text_line: int


class Problem(msgspec.Struct, frozen=True):
    path: str
    text: str
    line: int | None = None
    column: int | None = None
    is_warning: bool = False

    def sentence(self, file: str) -> str:
        where = file if self.line is None else f"{file}:{self.line}"
        kind = "warning: " if self.is_warning else ""
        return f"{where}: {kind}{self.path + ': ' if self.path else ''}{self.text}"


class Problems:
    """Gathers them; `places` tells where a path stands."""

    def __init__(self) -> None:
        self.places: dict[Path, Place] = {}
        self.found: list[Problem] = []

    def add(self, path: Path, text: str, *, line: int | None = None, is_warning: bool = False) -> None:
        place = self.place_of(path)
        problem = Problem(
            write_path(path),
            text,
            line if line is not None else None if place is None else place.line,
            None if place is None or line is not None else place.column,
            is_warning,
        )
        # Something may be looked at twice, and is told once.
        if problem not in self.found:
            self.found.append(problem)

    def place_of(self, path: Path) -> Place | None:
        """Of the value, or of the nearest thing around it that stands in the file."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path)

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.found if not problem.is_warning]

    def in_order(self) -> list[Problem]:
        return sorted(self.found, key=lambda problem: problem.line or 0)


def write_path(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def check_filled(text: str | None, path: Path, problems: Problems) -> None:
    """A variable that is set to nothing leaves nothing: as a path, that would be the file's own directory."""
    if text is not None and not text.strip():
        problems.add(path, "is empty")


def suggestion(name: str, known: Iterable[str], *, likeness_min: float = _LIKENESS_MIN) -> str:
    """`; did you mean 'topic'?`, or nothing."""
    likely = difflib.get_close_matches(name, sorted(known), n=1, cutoff=likeness_min)
    return f"; did you mean {likely[0]!r}?" if likely else ""
