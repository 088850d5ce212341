"""Bugs planted into real modules: a one-hunk change to a source, and everything that builds on it imported anew.

A simulation is as good as what it catches. A bug names the place (text that stands exactly once in the module, so
that a bug whose place has moved fails loudly instead of being planted nowhere), what is written there instead, and
the invariant that has to catch it. The rest of the process keeps the true modules.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec


class Bug(msgspec.Struct, frozen=True):
    name: str
    # The whole name of the module, as in an import.
    module: str
    right: str
    wrong: str
    # Which invariant of the simulation catches it.
    invariant: str
    # Few stories bring some out: where the search for one begins.
    first_seed: int = 0

    def seeds(self, most: int) -> Iterator[int]:
        """All of them once, round from the first."""
        return ((self.first_seed + step) % most for step in range(most))


class _PlantingLoader(importlib.abc.Loader):
    def __init__(self, path: Path, bug: Bug) -> None:
        self._path = path
        self._bug = bug

    def exec_module(self, module: ModuleType) -> None:
        source = self._path.read_text()
        count = source.count(self._bug.right)
        assert count == 1, f"{self._path.name} has {count} places like {self._bug.right!r}: the bug needs one"
        code = compile(source.replace(self._bug.right, self._bug.wrong), str(self._path), "exec")
        exec(code, module.__dict__)


class _PlantingFinder(importlib.abc.MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._bug.module:
            return None
        assert path is not None
        source_path = Path(next(iter(path))) / f"{fullname.rpartition('.')[2]}.py"
        return importlib.util.spec_from_loader(fullname, _PlantingLoader(source_path, self._bug))


@contextmanager
def planted(bug: Bug, *, world: str, anew: tuple[str, ...]) -> Iterator[ModuleType]:
    """The module `world`, on modules with the bug in them.

    `anew` are the beginnings of the names of all modules that hold a name from the changed one, the world's too.
    """
    true_modules = {name: module for name, module in sys.modules.items() if name.startswith(anew)}
    for name in true_modules:
        del sys.modules[name]
    finder = _PlantingFinder(bug)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module(world)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(anew)]:
            del sys.modules[name]
        sys.modules.update(true_modules)
        for name, module in true_modules.items():
            parent, _dot, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)
