"""Logins of real clients at a real node: every mechanism, wrong passwords, logins that expire, rules for who it is."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from conformance.differential.reference_broker import find_jars, find_java
from support.node_process import NodeProcess
from support.programs.kcat import Kcat

ADMIN: Final = ("admin", "opens everything")
BOB: Final = ("bob, the =builder", "cän we fix it")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# One in every run, the others in `make conformance`: they cost seconds each, and share their code.
MOST_SLOW: Final = (
    "SCRAM-SHA-256",
    pytest.param("SCRAM-SHA-512", marks=pytest.mark.slow),
    pytest.param("PLAIN", marks=pytest.mark.slow),
)
WAIT_SECONDS_MAX: Final = 20.0
# Each client logs in several times while a test runs.
EXPIRY_MS: Final = 2_000
JAVA_PROGRAM: Final = Path(__file__).with_name("JavaLogin.java")
JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
KAFKAJS: Final = Path(__file__).parents[2] / "build" / "kafkajs" / "node_modules"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    wishes = {
        "PENSTOCK_KAFKA__SASL_MECHANISMS": ",".join(MECHANISMS),
        "PENSTOCK_KAFKA__USERS": json.dumps(dict([ADMIN])),
        "PENSTOCK_KAFKA__REAUTHENTICATION_MS_MAX": str(EXPIRY_MS),
        "PENSTOCK_ACCESS__SUPER_USERS": f"User:{ADMIN[0]}",
        "PENSTOCK_ACCESS__ALLOW_WITHOUT_RULE": "true",
        "PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with NodeProcess(tmp_path_factory.mktemp("login"), environment=wishes) as running:
        admin = AdminClient(login(running))
        mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        upsertions = [
            UserScramCredentialUpsertion(BOB[0], ScramCredentialInfo(mechanism, 8192), BOB[1].encode())
            for mechanism in mechanisms
        ]
        # One by one: two changes of one user in one request are two for one name.
        for upsertion in upsertions:
            for future in admin.alter_user_scram_credentials([upsertion]).values():
                future.result(WAIT_SECONDS_MAX)
        for future in admin.create_topics([NewTopic("t", 1), NewTopic("closed", 1)]).values():
            future.result(WAIT_SECONDS_MAX)
        rule = AclBinding(
            ResourceType.TOPIC,
            "closed",
            ResourcePatternType.LITERAL,
            "User:carol",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for future in admin.create_acls([rule]).values():
            future.result(WAIT_SECONDS_MAX)
        yield running


def login(node: NodeProcess, mechanism: str = "PLAIN", who: tuple[str, str] = ADMIN, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": who[0],
        "sasl.password": who[1],
        **more,
    }


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {WAIT_SECONDS_MAX:.0f} s"
        time.sleep(0.02)


# confluent-kafka


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("who", [ADMIN, BOB])
def test_librdkafka_logs_in_and_writes_and_reads(node: NodeProcess, mechanism: str, who: tuple[str, str]) -> None:
    producer = Producer(login(node, mechanism, who))
    value, failures = f"{mechanism} {who[0]} {time.monotonic()}".encode(), []
    producer.produce("t", value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert failures == [None]
    consumer = Consumer(
        login(node, mechanism, who, **{"group.id": f"{mechanism}{who[0]}", "auto.offset.reset": "earliest"})
    )
    consumer.subscribe(["t"])
    found: list[bytes | None] = []

    def has_come() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
        return value in found

    wait_for(has_come, "the message")
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("who", [(BOB[0], "no we can't"), ("nobody", BOB[1])])
def test_librdkafka_is_told_that_a_password_is_wrong(node: NodeProcess, mechanism: str, who: tuple[str, str]) -> None:
    errors: list[Any] = []
    client = AdminClient(login(node, mechanism, who, error_cb=errors.append))
    wait_for(lambda: client.poll(0.1) or errors, "an error")
    assert errors[0].name() == "_AUTHENTICATION"
    assert "the user or the password is wrong" in errors[0].str()


@pytest.mark.parametrize("mechanism", MOST_SLOW)
def test_messages_flow_through_logins_that_expire(node: NodeProcess, mechanism: str) -> None:
    logins = f'penstock_kafka_logins_total{{mechanism="{mechanism}",outcome="accepted"}}'
    before = metric(node, logins)
    errors: list[Any] = []
    failures: list[Any] = []
    producer = Producer(login(node, mechanism, BOB, error_cb=errors.append))
    deadline = time.monotonic() + 2.5 * EXPIRY_MS / 1000
    sent = 0
    while time.monotonic() < deadline:
        producer.produce("t", b"x", on_delivery=lambda error, _: failures.append(error))
        sent += 1
        producer.poll(0.01)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert failures == [None] * sent
    assert errors == []
    assert metric(node, logins) >= before + 3


def metric(node: NodeProcess, name: str) -> float:
    import urllib.request

    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=WAIT_SECONDS_MAX) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_rules_hold_for_whoever_has_logged_in(node: NodeProcess) -> None:
    refused: dict[str, Any] = {}
    for who in (ADMIN, BOB):
        producer = Producer(login(node, "SCRAM-SHA-256", who))
        producer.produce("closed", b"x", on_delivery=lambda error, _, who=who: refused.setdefault(who[0], error))
        producer.flush(WAIT_SECONDS_MAX)
    assert refused[ADMIN[0]] is None
    assert refused[BOB[0]].name() == "TOPIC_AUTHORIZATION_FAILED"


def test_who_does_not_log_in_gets_nothing(node: NodeProcess) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": node.kafka}).list_topics(timeout=2)


# Others


@pytest.mark.parametrize("mechanism", MOST_SLOW)
def test_kafka_python_logs_in(node: NodeProcess, mechanism: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    wishes = {
        "bootstrap_servers": node.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ADMIN[0],
        "sasl_plain_password": ADMIN[1],
    }
    producer = KafkaProducer(**wishes)
    producer.send("t", b"kafka-python").get(WAIT_SECONDS_MAX)
    producer.close()
    consumer = KafkaConsumer("t", auto_offset_reset="earliest", consumer_timeout_ms=10_000, **wishes)
    assert next(iter(consumer)).topic == "t"
    consumer.close()


@pytest.mark.parametrize("mechanism", MOST_SLOW)
def test_aiokafka_logs_in(node: NodeProcess, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run(password: str) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=node.kafka,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=ADMIN[0],
            sasl_plain_password=password,
        )
        try:
            await producer.start()
            await producer.send_and_wait("t", b"aiokafka")
        finally:
            await producer.stop()

    asyncio.run(run(ADMIN[1]))
    with pytest.raises(Exception, match=r"(?i)bootstrap|authentication"):
        asyncio.run(run("wrong"))


KAFKAJS_PROGRAM: Final = """
const { Kafka, logLevel } = require("kafkajs");
const [broker, mechanism, username, password] = process.argv.slice(1);
const sasl = { mechanism, username, password };
// It logs in again that long before the end; 10 s unless told, which would be before every request.
const reauthenticationThreshold = 800;
const kafka = new Kafka({
  brokers: [broker], sasl, reauthenticationThreshold, logLevel: logLevel.NOTHING, retry: { retries: 1 },
});
const producer = kafka.producer();
(async () => {
  await producer.connect();
  const started = Date.now();
  // Long enough for the login to expire: it logs in again by itself.
  while (Date.now() - started < 3000) {
    await producer.send({ topic: "t", messages: [{ value: "kafkajs" }] });
    await new Promise((done) => setTimeout(done, 200));
  }
  await producer.disconnect();
  console.log("sent");
})().catch((error) => { console.log(error.name + ": " + error.message); process.exit(1); });
"""


@pytest.mark.parametrize("mechanism", MOST_SLOW)
def test_kafkajs_logs_in_and_again_when_it_expires(node: NodeProcess, mechanism: str) -> None:
    program = shutil.which("node")
    if program is None or not (KAFKAJS / "kafkajs").is_dir():
        pytest.skip("kafkajs is not here: test_groups_kafkajs.py fetches it")

    def run(password: str) -> str:
        words = [program, "-e", KAFKAJS_PROGRAM, node.kafka, mechanism.lower(), ADMIN[0], password]
        environment = {"NODE_PATH": str(KAFKAJS), "PATH": "/usr/bin:/bin", "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment).stdout

    assert run(ADMIN[1]).strip() == "sent"
    assert "password is wrong" in run("wrong")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_logs_in(node: NodeProcess, kcat: Kcat, mechanism: str) -> None:
    words = [f"{name}={value}" for name, value in login(node, mechanism, BOB).items() if name != "bootstrap.servers"]
    settings = [part for word in words for part in ("-X", word)]
    kcat.run("-b", node.kafka, "-P", "-t", "t", *settings, stdin=b"kcat\n")
    assert b"topic" in kcat.run("-b", node.kafka, "-L", *settings)


@pytest.mark.slow
def test_kafkas_own_client_logs_in_and_again_when_it_expires(node: NodeProcess) -> None:
    jars = find_jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    begin = [find_java() or "java", *JAVA_OPTIONS, "-cp", f"{jars}/*", str(JAVA_PROGRAM), node.kafka]

    def run(password: str, milliseconds: int) -> list[str]:
        words = [*begin, ADMIN[0], password, str(milliseconds), *MECHANISMS]
        return subprocess.run(words, capture_output=True, text=True, timeout=120).stdout.splitlines()

    assert run(ADMIN[1], 2 * EXPIRY_MS) == [f"{mechanism} sent" for mechanism in MECHANISMS]
    assert run("wrong", 0) == [f"{mechanism} SaslAuthenticationException" for mechanism in MECHANISMS]


# Ours


@pytest.mark.parametrize("mechanism", MOST_SLOW)
def test_command_line_logs_in_and_manages_users(node: NodeProcess, tmp_path: Path, mechanism: str) -> None:
    def run(*words: str, who: tuple[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        password = tmp_path / "password"
        password.write_text(who[1] + "\n")
        begin = [sys.executable, "-m", "penstock.main", "--user", who[0], "--password-file", str(password)]
        words = (*begin, "--mechanism", mechanism, *words, "--bootstrap", node.kafka)
        return subprocess.run(words, capture_output=True, text=True, timeout=60, input=stdin)

    carol = (f"carol-{mechanism}", "sings")
    assert run("topic", "list", who=carol).returncode == 1
    made = run("user", "create", carol[0], "--password-file", "-", who=ADMIN, stdin=f"{carol[1]}\n")
    assert made.returncode == 0, made.stderr
    assert run("user", "list", who=carol).returncode == 1
    again = run("user", "create", carol[0], "--password-file", "-", who=ADMIN, stdin="stolen\n")
    assert (again.returncode, "exists already: --replace" in again.stderr) == (1, True)
    listed = run("user", "list", "--json", who=ADMIN)
    assert {user["user"] for user in json.loads(listed.stdout)["users"]} >= {BOB[0], carol[0]}
    carol = (carol[0], "hums")
    new = run("user", "create", carol[0], "--password-file", "-", "--replace", who=ADMIN, stdin=f"{carol[1]}\n")
    assert (new.returncode, run("topic", "list", who=carol).returncode) == (0, 0)
    assert run("user", "delete", carol[0], "--yes", who=ADMIN).returncode == 0
    refused = run("topic", "list", who=carol)
    assert "the user or the password is wrong" in refused.stderr
    assert carol[1] not in made.stdout + made.stderr + listed.stdout + refused.stderr
