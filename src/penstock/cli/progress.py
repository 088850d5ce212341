"""A live line on standard error while a bench runs; nothing at all when that is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Often enough to look alive, seldom enough not to be part of what is measured.
REFRESH_PER_SECOND: Final = 4


class BenchProgress:
    def __init__(self, title: str, total: float | None) -> None:
        self._title = title
        self._total = total
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._progress = _make_progress()
            self._task = self._progress.add_task(self._title, total=self._total, note="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def is_shown(self) -> bool:
        return self._progress is not None

    def update(self, done: float, note: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)


def _make_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=REFRESH_PER_SECOND,
        transient=True,
    )
