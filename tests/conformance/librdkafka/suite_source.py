"""The suite itself: fetched by name and version with npm, built once, kept in `build/`. Nothing of it is ours.

librdkafka's tests are not published on their own; the npm package of Confluent's JavaScript client carries the whole
source of librdkafka. `npm pack` brings that one archive and runs nothing of it. It can be built without RapidJSON and
without zstd, but then some tests are left out; the Python bindings of both libraries carry their sources.

One line is changed before building: where tests create topics, three replicas become one. A single node has no place
for three, and what those tests prove (transactions, most of them) is not replication.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

PACKAGE: Final = "@confluentinc/kafka-javascript"
# Carries librdkafka 2.15.1.
VERSION: Final = "1.10.1"
# Goes up when it is built in another way: then the old one is not taken for it.
RECIPE: Final = 2
RAPIDJSON: Final = ("python_rapidjson", "1.20")
ZSTD: Final = ("zstandard", "0.23.0")
CACHE: Final = Path(__file__).parents[3] / "build" / "librdkafka"
PROGRAMS: Final = ("npm", "gcc", "g++", "make", "pkg-config", "nm")
HEADERS: Final = {"openssl/ssl.h": "libssl-dev", "zlib.h": "zlib1g-dev"}
FETCH_SECONDS_MAX: Final = 300
# Three minutes on one core of 2024; a slow machine is not a broken one.
BUILD_SECONDS_MAX: Final = 3_600

REPLICAS_ASKED: Final = "rd_kafka_NewTopic_new(topicname, partition_cnt, replication_factor,"
REPLICAS_TAKEN: Final = "rd_kafka_NewTopic_new(topicname, partition_cnt, RD_MIN(replication_factor, 1),"

Say = Callable[[str], None]


class Suite(msgspec.Struct, frozen=True):
    tests: Path

    @property
    def program(self) -> Path:
        return self.tests / "test-runner"

    @property
    def table(self) -> Path:
        return self.tests / "test.c"

    def environment(self) -> dict[str, str]:
        root = self.tests.parent
        return {**os.environ, "LD_LIBRARY_PATH": f"{root / 'src'}:{root / 'src-cpp'}"}


class NoSuite(msgspec.Struct, frozen=True):
    """The suite cannot be had on this machine; not a failure of Penstock."""

    reason: str


def prepare_suite(say: Say, *, jobs: int = 1) -> Suite | NoSuite:
    """The built suite. The second call finds what the first one made."""
    home = CACHE / f"{VERSION}-{RECIPE}"
    suite = Suite(home / "package" / "deps" / "librdkafka" / "tests")
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "built").exists() and suite.program.exists():
            return suite
        missing = _missing()
        if missing:
            return NoSuite(f"librdkafka's suite needs {', '.join(missing)}, which this machine does not have")
        if not suite.table.exists():
            say(f"fetching {PACKAGE} {VERSION}, which carries the source of librdkafka")
            problem = _fetch(home)
            if problem is not None:
                return NoSuite(problem)
        problem = _ask_for_one_replica(suite.table)
        if problem is not None:
            return NoSuite(problem)
        libraries = _libraries(home)
        if isinstance(libraries, str):
            return NoSuite(libraries)
        say(f"building librdkafka and its tests in {home} (some minutes, once)")
        problem = _build(suite.tests.parent, home / "build.log", libraries, jobs)
        if problem is not None:
            return NoSuite(problem)
        (home / "built").touch()
        return suite


def _missing() -> list[str]:
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    if programs:
        return programs
    return [f"{header} ({package})" for header, package in HEADERS.items() if not _compiles(header)]


def _compiles(header: str) -> bool:
    words = ["gcc", "-fsyntax-only", "-x", "c", "-include", header, os.devnull]
    return subprocess.run(words, capture_output=True, timeout=FETCH_SECONDS_MAX).returncode == 0


def _fetch(home: Path) -> str | None:
    words = ["npm", "pack", f"{PACKAGE}@{VERSION}", "--silent", "--ignore-scripts", "--pack-destination", str(home)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, cwd=home)
    except subprocess.TimeoutExpired:
        return f"npm did not bring {PACKAGE} {VERSION} within {FETCH_SECONDS_MAX} s"
    archives = sorted(home.glob("*.tgz"))
    if done.returncode or not archives:
        return f"npm could not bring {PACKAGE} {VERSION}: {done.stderr.strip()[-400:] or 'it gave no reason'}"
    shutil.unpack_archive(archives[0], home)
    archives[0].unlink()
    return None


def _ask_for_one_replica(test_c: Path) -> str | None:
    text = test_c.read_text()
    if REPLICAS_TAKEN not in text:
        if text.count(REPLICAS_ASKED) != 1:
            return f"{test_c} does not create topics where we know it: this version of the suite is not known"
        test_c.write_text(text.replace(REPLICAS_ASKED, REPLICAS_TAKEN))
    return None


def _libraries(home: Path) -> dict[str, str] | str:
    """What the compilers are to be told of the two libraries, or why they are not here."""
    rapidjson, zstd = _python_source(home, *RAPIDJSON), _python_source(home, *ZSTD)
    if isinstance(rapidjson, str) or isinstance(zstd, str):
        return rapidjson if isinstance(rapidjson, str) else str(zstd)
    place = zstd / "zstd"
    steps = (
        # The decoder has a part in assembler, in a file of its own that the one big file does not hold.
        ["gcc", "-O2", "-fPIC", "-DZSTD_DISABLE_ASM=1", "-c", "zstd.c", "-o", "zstd.o"],
        ["ar", "rcs", "libzstd.a", "zstd.o"],
    )
    for step in steps:
        done = subprocess.run(step, cwd=place, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
        if done.returncode:
            return f"{' '.join(step)} failed: {done.stderr.strip()[-400:]}"
    return {
        "CPLUS_INCLUDE_PATH": str(rapidjson / "rapidjson" / "include"),
        "CPATH": str(place),
        "LIBRARY_PATH": str(place),
    }


def _python_source(home: Path, package: str, version: str) -> Path | str:
    """The unpacked source of a Python package; it is not built."""
    unpacked = home / f"{package}-{version}"
    if unpacked.exists():
        return unpacked
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--no-binary", ":all:", "--dest", str(home), f"{package}=={version}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"pip did not bring {package} {version} within {FETCH_SECONDS_MAX} s"
    archive = home / f"{package}-{version}.tar.gz"
    if done.returncode or not archive.exists():
        return f"pip could not bring {package} {version}: {done.stderr.strip()[-400:] or 'it gave no reason'}"
    shutil.unpack_archive(archive, home)
    archive.unlink()
    return unpacked


def _build(root: Path, log_path: Path, libraries: dict[str, str], jobs: int) -> str | None:
    steps = (
        ["./configure", "--disable-curl"],
        ["make", f"-j{jobs}", "libs"],
        ["make", f"-j{jobs}", "-C", "tests", "build"],
    )
    for step in steps:
        with log_path.open("ab") as log_file:
            try:
                done = subprocess.run(
                    ["nice", "-n", "10", *step],
                    cwd=root,
                    env={**os.environ, **libraries},
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    timeout=BUILD_SECONDS_MAX,
                )
            except subprocess.TimeoutExpired:
                return f"{' '.join(step)} did not end within {BUILD_SECONDS_MAX} s: {log_path}"
        if done.returncode:
            return f"{' '.join(step)} failed with code {done.returncode}: {log_path}"
    return None
