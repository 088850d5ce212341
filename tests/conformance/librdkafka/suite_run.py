"""Runs errands: one start of the suite's program each, against a node that the scenario asks for.

The program ends itself by abort() after a failure and can hang where a client hangs, so each start has its own
process, its own time and its own log file. A test that fails has a second chance when the others are done, alone: many
of them measure time. The table shows who needed it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from conformance.librdkafka import kafka_scripts
from conformance.librdkafka.outcomes import Outcome, State, merge, parse_report
from conformance.librdkafka.suite_catalogue import DEFAULT_SCENARIO, Errand
from conformance.librdkafka.suite_source import Suite
from support.node_process import NodeProcess

# The version whose table of APIs our node tells; tests choose by it what they may ask for.
KAFKA_VERSION: Final = "4.2.0"
# Beyond what the program allows any of its tests.
ERRAND_SECONDS_MAX: Final = 1_800.0
STOP_SECONDS_MAX: Final = 10.0
# How much longer than its authors allow a test may take: they run it alone, on a machine of its own.
PATIENCE: Final = 1.5
USER: Final = "admin"
PASSWORD: Final = "for these tests only"
LOGIN_WISHES: Final = {
    "PENSTOCK_KAFKA__SASL_MECHANISMS": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "PENSTOCK_KAFKA__USERS": f'{{"{USER}": "{PASSWORD}"}}',
    "PENSTOCK_ACCESS__SUPER_USERS": f"User:{USER}",
    # Tokens that the tests write themselves, as Kafka takes them when it is not told whom to believe.
    "PENSTOCK_KAFKA__UNSECURED_TOKENS": "true",
    # 0142 asks for this setting, and each of its parts lasts a little longer than that. Some use tokens that last half
    # as long: the client looks once a second whether one has 80 % of its time behind it, and logs in again at 90 %.
    # With less than 20 s it is chance which of the two comes first.
    "PENSTOCK_KAFKA__REAUTHENTICATION_MS_MAX": "40000",
}


class Settings(msgspec.Struct, frozen=True):
    directory: Path
    is_quick: bool = False
    jobs: int = 1
    has_second_chance: bool = True
    # "classic" or "consumer": which group protocol the tests' consumers speak.
    group_protocol: str = "classic"
    debug: str = ""
    # Kafka's jars, for tests that bring a client in Java.
    jars: Path | None = None
    # Tests that are expected to fail.
    listed: frozenset[str] = frozenset()

    @property
    def kafka_path(self) -> Path:
        return self.directory / "kafka"


@contextmanager
def node_for(scenario: str, settings: Settings, *, asks_for_login: bool) -> Iterator[NodeProcess]:
    """Four partitions in a topic that is created by being named: the tests count on it."""
    directory = settings.directory / f"node-{scenario}{'-login' if asks_for_login else ''}"
    shutil.rmtree(directory, ignore_errors=True)
    wishes = {
        "PENSTOCK_BROKER__DEFAULT_PARTITIONS": "4",
        "PENSTOCK_BROKER__AUTO_CREATE_TOPICS": str(scenario == DEFAULT_SCENARIO).lower(),
        # 0081 makes fifty groups in the 180 s it allows itself, too many for 3 s each; 0102 wants two members, started
        # one after the other, to meet in the first round.
        "PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "1000",
        # A consumer whose application sleeps says nothing more (KIP-848); tests wait 20 s for the others to notice.
        "PENSTOCK_GROUPS__CONSUMER_SESSION_TIMEOUT_MS": "10000",
        # A test of compaction waits 20 s for it. What is due is saved by one round and cleaned by the next.
        "PENSTOCK_BROKER__CLEANER_CHECK_MS": "5000",
        **(LOGIN_WISHES if asks_for_login else {}),
    }
    with NodeProcess(directory, environment=wishes) as node:
        yield node


def run_errands(suite: Suite, errands: list[Errand], settings: Settings) -> Iterator[Outcome]:
    """Outcomes as they come. Errands of one scenario share a node, as tests share a broker in life."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    kafka_scripts.lay_out(settings.kafka_path, settings.jars)
    kinds = dict.fromkeys((bool(errand.mechanisms), errand.scenario) for errand in errands)
    again: list[tuple[Errand, NodeProcess]] = []
    with ExitStack() as stack:
        nodes = {
            (asks_for_login, scenario): stack.enter_context(node_for(scenario, settings, asks_for_login=asks_for_login))
            for asks_for_login, scenario in sorted(kinds)
        }
        # Logins wait for their end, for minutes and without work: they go beside everything else.
        pools = {
            True: stack.enter_context(ThreadPoolExecutor(1)),
            False: stack.enter_context(ThreadPoolExecutor(settings.jobs)),
        }
        started = {}
        for errand in errands:
            node = nodes[bool(errand.mechanisms), errand.scenario]
            future = pools[bool(errand.mechanisms)].submit(_run, suite, errand, settings, node.kafka)
            started[future] = errand, node
        for future in as_completed(started):
            outcomes = future.result()
            if settings.has_second_chance and _has_surprise(outcomes, settings):
                again.append(started[future])
            else:
                yield from outcomes
        # One by one, with nothing beside them.
        for errand, node in again:
            for outcome in _run(suite, errand, settings, node.kafka):
                yield msgspec.structs.replace(outcome, attempts=2)


def _has_surprise(outcomes: list[Outcome], settings: Settings) -> bool:
    """What is expected to fail is not asked again: it fails slowly, by waiting."""
    return any(found.state is State.FAILED and found.name not in settings.listed for found in outcomes)


def _run(suite: Suite, errand: Errand, settings: Settings, kafka: str) -> list[Outcome]:
    return merge([_run_by(suite, errand, settings, kafka, mechanism) for mechanism in errand.mechanisms or ("",)])


def _run_by(suite: Suite, errand: Errand, settings: Settings, kafka: str, mechanism: str) -> list[Outcome]:
    stem = f"{errand.number}-{mechanism.lower() or errand.scenario}"
    log_path, report = settings.directory / f"{stem}.log", settings.directory / f"{stem}.json"
    report.unlink(missing_ok=True)
    words = [str(suite.program), "-p1", "-K", "-s", errand.scenario]
    words += ["-Q"] if settings.is_quick else []
    words += [] if any(test.is_local for test in errand.tests) else ["-L"]
    environment = {
        **suite.environment(),
        "TESTS": errand.number,
        "TEST_REPORT": str(report),
        # Not by -V: the program frees that word at its end, and dies of it.
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_CONSUMER_GROUP_PROTOCOL": settings.group_protocol,
        "RDKAFKA_TEST_CONF": str(_write_configuration(settings, stem, kafka, mechanism)),
        "KAFKA_PATH": str(settings.kafka_path),
        "BROKERS": kafka,
    }
    if settings.debug:
        environment["TEST_DEBUG"] = settings.debug
    # Set on build machines, where it would stretch the tests' own time limits and skip some of them.
    environment.pop("CI", None)
    began = time.monotonic()
    with log_path.open("wb") as log_file:
        ending = _start_and_wait(words, suite.tests, environment, log_file.fileno())
    output = log_path.read_text(errors="replace")
    told = report.read_text(errors="replace") if report.exists() else ""
    outcomes = parse_report(told, f"{output}\n{ending}", [test.name for test in errand.tests])
    if not told:
        seconds = time.monotonic() - began
        outcomes = [msgspec.structs.replace(outcome, seconds=seconds) for outcome in outcomes]
    return outcomes


def _write_configuration(settings: Settings, stem: str, kafka: str, mechanism: str) -> Path:
    path = settings.directory / f"{stem}.conf"
    lines = [f"bootstrap.servers={kafka}", "test.topic.random=true", f"test.timeout.multiplier={PATIENCE}"]
    if mechanism:
        lines += ["security.protocol=sasl_plaintext", f"sasl.mechanism={mechanism}"]
    if mechanism == "OAUTHBEARER":
        lines += ["enable.sasl.oauthbearer.unsecure.jwt=true", f"sasl.oauthbearer.config=principal={USER}"]
    elif mechanism:
        lines += [f"sasl.username={USER}", f"sasl.password={PASSWORD}"]
    path.write_text("\n".join(lines) + "\n")
    return path


def _start_and_wait(words: list[str], directory: Path, environment: dict[str, str], output: int) -> str:
    """How the program ended, in words; empty for an ordinary end."""
    process = subprocess.Popen(
        words,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # A group of its own: scripts that a test starts end with it.
        start_new_session=True,
    )
    try:
        code = process.wait(ERRAND_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"stopped by the runner after {ERRAND_SECONDS_MAX:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS_MAX)
    return "" if code >= 0 else f"ended by signal {signal.Signals(-code).name}"
