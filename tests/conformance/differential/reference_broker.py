"""Apache Kafka as a second broker: its published jars from Maven Central, one process, broker and controller in one.

The jars lie in `build/reference-broker/` (git ignores it) once they have been fetched; without Java, without Maven or
without an answer from Maven Central there is no second broker, and `find_jars` says why in a sentence.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from support.door.raw_kafka import RawConnection
from support.node_process import die_with_parent

# The newest that runs on Java 17. Accepted differences are judged against this one, so it is not a range.
KAFKA_VERSION: Final = "4.3.1"
NODE_ID: Final = 1
# As many as a node of ours makes: who must share a coordinator's partition does so at both.
INTERNAL_PARTITIONS: Final = 8
# A cold cache fetches 45 MB; a Maven that cannot reach anything gives up sooner by itself.
FETCH_SECONDS_MAX: Final = 600
# About 5 s on a free machine; two cores may be busy with another suite.
READY_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 30.0
LOG_BYTES_SHOWN_MAX: Final = 6_000
NEVER_MS: Final = 10**9
# Who may log in, with which password, and for how long that holds: at both brokers.
USERS: Final = {"alice": "in-wonderland", "bob": "builder"}
REAUTHENTICATION_MS: Final = 60_000

CACHE: Final = Path(__file__).parents[3] / "build" / "reference-broker" / KAFKA_VERSION
# The broker, and its command-line tools: apart, because each brings libraries of its own.
BROKER: Final = "kafka_2.13"
TOOLS: Final = "kafka-tools"

_PROJECT: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>reference-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>ARTIFACT</artifactId><version>VERSION</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
# Two compilers and a parallel collector would take both cores for a broker that answers a few thousand questions.
JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


def find_java() -> str | None:
    """The program `java`, by JAVA_HOME or on the path."""
    home = os.environ.get("JAVA_HOME")
    if home and (found := shutil.which("java", path=f"{home}/bin")):
        return found
    return shutil.which("java")


def find_jars(
    artifact: str = BROKER, *, directory: Path = CACHE, fetch_seconds_max: float = FETCH_SECONDS_MAX
) -> Path | str:
    """The folder of the jars, fetched if need be, or the reason why there are none."""
    if find_java() is None:
        return "no Java: neither JAVA_HOME nor the path leads to one"
    cache = directory if artifact == BROKER else directory.with_name(f"{directory.name}-{artifact}")
    if (cache / "complete").exists():
        return cache / "jars"
    maven = shutil.which("mvn")
    if maven is None:
        return "no Maven on the path, and Apache Kafka's jars have not been fetched before"
    return _fetch(maven, artifact, cache, fetch_seconds_max)


def _fetch(maven: str, artifact: str, cache: Path, fetch_seconds_max: float) -> Path | str:
    jars = cache / "jars"
    shutil.rmtree(cache, ignore_errors=True)
    jars.mkdir(parents=True)
    (cache / "pom.xml").write_text(_PROJECT.replace("ARTIFACT", artifact).replace("VERSION", KAFKA_VERSION))
    command = [maven, "-q", "-B", _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    try:
        done = subprocess.run(
            command, cwd=cache, timeout=fetch_seconds_max, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except subprocess.TimeoutExpired:
        return f"Maven Central did not answer within {fetch_seconds_max} s"
    if done.returncode != 0:
        return f"Maven cannot fetch Apache Kafka {KAFKA_VERSION}: {_first_error(done.stdout)}"
    (cache / "complete").touch()
    return jars


def _first_error(output: str) -> str:
    errors = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines() or ["it says nothing"]
    return errors[0][:300]


class ReferenceBroker:
    """Apache Kafka in a process of its own, in `directory`. Use it as a context."""

    def __init__(self, jars: Path, directory: Path) -> None:
        self.address = ("127.0.0.1", 0)
        # A second door, where one has to log in.
        self.login_address = ("127.0.0.1", 0)
        self.ready_seconds = 0.0
        self._jars = jars
        self._directory = directory
        self._log_path = directory / "kafka.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        began = time.monotonic()
        self._directory.mkdir(parents=True, exist_ok=True)
        port, controller_port, login_port = free_ports(3)
        self.address = ("127.0.0.1", port)
        self.login_address = ("127.0.0.1", login_port)
        properties = self._directory / "server.properties"
        properties.write_text(_properties(port, controller_port, login_port, self._directory / "data"))
        self._format(properties)
        with self._log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(properties)],
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509  one system call
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_ready(began + READY_SECONDS_MAX)
        self.ready_seconds = time.monotonic() - began
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _java(self) -> list[str]:
        java = find_java()
        assert java is not None
        return [java, *JAVA_OPTIONS, "-cp", f"{self._jars}/*"]

    def _format(self, properties: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a", 1)
        command = [*self._java(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        done = subprocess.run([*command, "--config", str(properties)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"Kafka's storage cannot be formatted: {done.stdout}\n{done.stderr}"

    def _wait_ready(self, deadline: float) -> None:
        """Until it leads and until both of its coordinators answer: they make their internal topics when asked."""
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                tail = self._log_path.read_text(errors="replace")[-LOG_BYTES_SHOWN_MAX:]
                raise AssertionError(f"Apache Kafka did not become ready\n{tail}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            with RawConnection(self, timeout_seconds=5) as connection:
                brokers = connection.ask(MetadataRequest(topics=()), MetadataResponse, 9).brokers
                return len(brokers) == 1 and has_coordinators(connection) and _has_producer_ids(connection)
        except (OSError, AssertionError):
            return False


def has_coordinators(connection: RawConnection) -> bool:
    """Both of them; asking makes their internal topics."""
    return all(
        connection.ask(FindCoordinatorRequest(key="anyone", key_type=kind), FindCoordinatorResponse, 2).error_code
        == wire.ErrorCode.NONE
        for kind in (0, 1)
    )


def _has_producer_ids(connection: RawConnection) -> bool:
    """Kafka asks its controller for a block of them when the first is wanted, and refuses until it has one."""
    request = InitProducerIdRequest(transaction_timeout_ms=60_000)
    return connection.ask(request, InitProducerIdResponse, 4).error_code == wire.ErrorCode.NONE


def _login_module(name: str, users: dict[str, str]) -> str:
    known = "".join(f' user_{user}="{password}"' for user, password in users.items())
    return f"org.apache.kafka.common.security.{name}LoginModule required{known};"


def free_ports(count: int) -> list[int]:
    """Held all at once, so that they differ; another process may still take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _properties(port: int, controller_port: int, login_port: int, data: Path) -> str:
    """Kafka's defaults but for what one small broker needs, and what would make an answer depend on the clock."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": NODE_ID,
        "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:{controller_port}",
        "listeners": ",".join(
            f"{name}://127.0.0.1:{number}"
            for name, number in (("PLAINTEXT", port), ("CONTROLLER", controller_port), ("LOGIN", login_port))
        ),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.login.plain.sasl.jaas.config": _login_module("plain.Plain", USERS),
        "listener.name.login.scram-sha-256.sasl.jaas.config": _login_module("scram.Scram", {}),
        "listener.name.login.plain.connections.max.reauth.ms": REAUTHENTICATION_MS,
        "listener.name.login.scram-sha-256.connections.max.reauth.ms": REAUTHENTICATION_MS,
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": INTERNAL_PARTITIONS,
        "group.initial.rebalance.delay.ms": 0,
        # What no rule names is open to everybody, as at a node of ours.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        # Otherwise a second passes between two assignments, and an answer depends on when it was asked for.
        "group.consumer.min.assignment.interval.ms": 0,
        "group.consumer.assignment.interval.ms": 0,
        "group.consumer.assignor.offload.enable": "false",
        "group.share.min.assignment.interval.ms": 0,
        "group.share.assignment.interval.ms": 0,
        "group.share.assignor.offload.enable": "false",
        "log.cleaner.backoff.ms": 500,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        # The records of the dialogues have a fixed day, long past: retention would take them away.
        "log.retention.check.interval.ms": NEVER_MS,
        "log.initial.task.delay.ms": NEVER_MS,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
