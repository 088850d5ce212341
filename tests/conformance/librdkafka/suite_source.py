"""The suite itself: fetched by name and version with npm, built once, kept in `build/`. Nothing of it is ours.

librdkafka's tests are not published on their own; the npm package of Confluent's JavaScript client carries the whole
source of librdkafka. `npm pack` brings that one archive and runs nothing of it. Three tests that look into statistics
want the headers of RapidJSON as well; the Python binding of that library carries them.

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
HEADERS_PACKAGE: Final = "python-rapidjson"
HEADERS_VERSION: Final = "1.20"
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
    home = CACHE / VERSION
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
        headers = _rapidjson(home)
        if isinstance(headers, str):
            return NoSuite(headers)
        say(f"building librdkafka and its tests in {home} (some minutes, once)")
        problem = _build(suite.tests.parent, home / "build.log", headers, jobs)
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


def _rapidjson(home: Path) -> Path | str:
    """The directory to include from, or why there is none."""
    include = home / f"{HEADERS_PACKAGE.replace('-', '_')}-{HEADERS_VERSION}" / "rapidjson" / "include"
    if include.exists():
        return include
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # The source: a wheel holds the compiled binding and no headers.
    words += ["--no-binary", ":all:", "--dest", str(home), f"{HEADERS_PACKAGE}=={HEADERS_VERSION}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"pip did not bring {HEADERS_PACKAGE} {HEADERS_VERSION} within {FETCH_SECONDS_MAX} s"
    archives = sorted(home.glob("*rapidjson*.tar.gz"))
    if done.returncode or not archives:
        return f"pip could not bring {HEADERS_PACKAGE}: {done.stderr.strip()[-400:] or 'it gave no reason'}"
    shutil.unpack_archive(archives[0], home)
    archives[0].unlink()
    return include


def _build(root: Path, log_path: Path, headers: Path, jobs: int) -> str | None:
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
                    env={**os.environ, "CPLUS_INCLUDE_PATH": str(headers)},
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
