"""Copies of the storage modules with a bug in one of them, under another name and next to the real ones."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

import msgspec

import penstock
from support.storage.model import Storage

SOURCE = Path(penstock.__file__).parent
# What is copied: everything else is shared with the real package.
COPIED = (
    "penstock.storage",
    "penstock.domain.log.producer_sequence",
    "penstock.domain.transaction.partition",
    "penstock.domain.log.aborted_index",
)


_PACKAGE = "__init__.py"


def _source_of(name: str) -> Path:
    """Where a module's text lies, named without its root package."""
    path = SOURCE.joinpath(*name.split("."))
    return path / _PACKAGE if path.is_dir() else path.with_suffix(".py")


class PlantedBug(msgspec.Struct, frozen=True):
    """One hunk of one module, as somebody might have written it."""

    name: str
    module: str
    right: str
    wrong: str
    # Promises that the simulation may find broken by it: whichever the seed comes to first.
    caught_by: tuple[str, ...]
    # Where the search begins. Any seed will do in the end; this one is known to be quick.
    first_seed: int = 0


class _PlantedLoader(Loader):
    def __init__(self, package: str, bug: PlantedBug) -> None:
        self._package = package
        self._bug = bug

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(f"{self._package}.") if "." in module.__name__ else ""
        path = _source_of(name)
        if path.name == _PACKAGE:
            module.__path__ = []
        text = path.read_text()
        if name == self._bug.module:
            assert text.count(self._bug.right) == 1, f"{self._bug.name}: the hunk is not there, or not once"
            text = text.replace(self._bug.right, self._bug.wrong)
        for copied in COPIED:
            text = text.replace(copied, f"{self._package}{copied.removeprefix('penstock')}")
        exec(compile(text, str(path), "exec"), module.__dict__)


class _PlantedFinder(MetaPathFinder):
    def __init__(self, package: str, bug: PlantedBug) -> None:
        self._package = package
        self._loader = _PlantedLoader(package, bug)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._package and not fullname.startswith(f"{self._package}."):
            return None
        is_package = _source_of(fullname.removeprefix(self._package).removeprefix(".")).name == _PACKAGE
        return spec_from_loader(fullname, self._loader, is_package=is_package)


def plant(bug: PlantedBug, number: int) -> Storage:
    package = f"planted_{number}"
    finder = _PlantedFinder(package, bug)
    sys.meta_path.insert(0, finder)
    try:
        return Storage(importlib.import_module, package)
    finally:
        sys.meta_path.remove(finder)
