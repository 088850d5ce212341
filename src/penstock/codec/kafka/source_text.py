"""Python source under construction: lines, fresh names, and the objects that the names stand for.

Consecutive values of fixed size are collected in a *run* and moved by one `struct` call. A compiler adds to
the run with `want` and must `flush` before anything whose place or presence depends on what was read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class SourceText:
    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.run: list[tuple[str, str]] = []
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """The lines written inside are indented below `opening`."""
        assert not self.run, "a run reaches into a block"
        self.line(opening)
        self._depth += 1
        yield
        assert not self.run, "a run reaches out of a block"
        self._depth -= 1

    def name(self, stem: str) -> str:
        """A name not used before. All of a message is one function, so nested parts must not share names."""
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """A name for an object that cannot be written down in source."""
        for known, other in self.namespace.items():
            if other is value and known.startswith(stem):
                return known
        name = self.name(stem)
        self.namespace[name] = value
        return name

    def want(self, character: str, value: str) -> None:
        self.run.append((character, value))

    def begin_steps(self, count: int) -> None:
        """The function is a generator, which yields each time that `step` was passed so often."""
        self.line(f"steps_left = {count}")
        with self.block("if not steps_left:"):
            self.line("yield")

    def step(self, count: int) -> None:
        self.line("steps_left -= 1")
        with self.block("if not steps_left:"):
            self.line(f"steps_left = {count}")
            self.line("yield")

    def take_run(self) -> tuple[struct.Struct, list[str]]:
        """The run's format and its values; the run is empty afterwards. A pad byte (`x`) has no value."""
        layout = struct.Struct(">" + "".join(character for character, _ in self.run))
        values = [value for character, value in self.run if character != "x"]
        self.run.clear()
        return layout, values

    def build(self, title: str) -> Any:
        """Compiles the text and returns its function, the last thing defined."""
        text = self.text()
        code = compile(text, f"<{title}>", "exec")
        exec(code, self.namespace)  # noqa: S102  our own text, made from declarations, never from input
        return self.namespace["run"]

    def text(self) -> str:
        assert not self.run, "a run was never flushed"
        return "\n".join(self._lines) + "\n"
