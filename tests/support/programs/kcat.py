"""kcat, from PATH or from the distribution's packages without installing them.

kcat 1.7 brings librdkafka 2.0, the oldest client we promise to serve, so no test goes without it for want of
root: the packages are downloaded into `build/kcat`, unpacked there, and run with their own library path.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import msgspec

CACHE: Final = Path(__file__).parents[3] / "build" / "kcat"
PACKAGES: Final = ("kcat", "librdkafka1", "libyajl2")
# What librdkafka itself needs and most machines have; a minimal container may not. Taken if they can be had.
LIBRARIES: Final = ("libsasl2-2", "liblz4-1", "libzstd1")
STEP_SECONDS_MAX: Final = 120
RUN_SECONDS_MAX: Final = 60


class Kcat(msgspec.Struct, frozen=True):
    program: str
    library_path: str = ""

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Standard output of one run; a failed run fails the test with kcat's own words."""
        done = subprocess.run(
            [self.program, *arguments],
            input=stdin,
            capture_output=True,
            env=self._environment(),
            timeout=RUN_SECONDS_MAX,
        )
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr.decode(errors='replace')}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        if not self.library_path:
            return dict(os.environ)
        return {**os.environ, "LD_LIBRARY_PATH": self.library_path}


def find_kcat() -> Kcat | str:
    """kcat, or the reason why there is none."""
    for name in ("kcat", "kafkacat"):
        installed = shutil.which(name)
        if installed is not None:
            return Kcat(installed)
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "kcat is not on PATH and there is no apt to fetch it with"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Two test workers may come here at once; the second finds what the first has unpacked.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _unpacked() or _fetch()


def _unpacked() -> Kcat | None:
    program = CACHE / "root" / "usr" / "bin" / "kcat"
    libraries = sorted({str(path.parent) for path in (CACHE / "root").rglob("lib*.so*")})
    if not program.exists():
        return None
    found = Kcat(str(program), ":".join(libraries))
    try:
        found.run("-V")
    except (AssertionError, OSError):
        return None
    return found


def _fetch() -> Kcat | str:
    downloads = CACHE / "downloads"
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir()
    options: list[str] = []
    failed = _step(["apt-get", "download", *PACKAGES], downloads)
    if failed:
        # The package lists of a new machine are empty: fetch them into a place of our own, without root.
        options = _private_lists()
        failed = _step(["apt-get", *options, "update"], downloads) or _step(
            ["apt-get", *options, "download", *PACKAGES], downloads
        )
    if failed:
        return f"kcat is not on PATH and could not be fetched: {failed}"
    _step(["apt-get", *options, "download", *LIBRARIES], downloads)
    for package in sorted(downloads.glob("*.deb")):
        failed = _step(["dpkg", "-x", str(package), str(CACHE / "root")], downloads)
        if failed:
            return f"kcat was fetched but could not be unpacked: {failed}"
    return _unpacked() or "kcat was fetched and unpacked but does not run here"


def _private_lists() -> list[str]:
    state, cache = CACHE / "apt-state", CACHE / "apt-cache"
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="]


def _step(command: list[str], directory: Path) -> str:
    """What went wrong, or nothing."""
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, timeout=STEP_SECONDS_MAX, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command[:2])}: {error}"
    if done.returncode == 0:
        return ""
    last_words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    return f"{command[0]} ended with {done.returncode}: {' '.join(last_words)}"
