"""Bugs planted into the transaction machines: a one-hunk change to a module's source, and the world built upon it.

The modules under change, and the world that uses them, are imported anew for each bug; the rest of the process keeps
the true ones.
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
from typing import Final

import msgspec

DOMAIN: Final = "penstock.domain"
WORLD: Final = "support.transaction_world"
# What is imported anew: everything that holds a name from a module which may be changed.
_ANEW: Final = (f"{DOMAIN}.transaction_", f"{DOMAIN}.aborted_", WORLD)


class Bug(msgspec.Struct, frozen=True):
    name: str
    # Of the module in `penstock.domain`.
    module: str
    right: str
    wrong: str
    # Which invariant of the world catches it.
    invariant: str


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
        if fullname != f"{DOMAIN}.{self._bug.module}":
            return None
        assert path is not None
        source_path = Path(next(iter(path))) / f"{self._bug.module}.py"
        return importlib.util.spec_from_loader(fullname, _PlantingLoader(source_path, self._bug))


@contextmanager
def planted(bug: Bug) -> Iterator[ModuleType]:
    """The module `support.transaction_world`, on machines with the bug in them."""
    true_modules = {name: module for name, module in sys.modules.items() if name.startswith(_ANEW)}
    for name in true_modules:
        del sys.modules[name]
    finder = _PlantingFinder(bug)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module(WORLD)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(_ANEW)]:
            del sys.modules[name]
        for name, module in true_modules.items():
            sys.modules[name] = module
            parent, _dot, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)
