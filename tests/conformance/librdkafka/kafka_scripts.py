"""Stands in for the scripts of a Kafka installation that a few tests start: `kafka-topics.sh` and `kafka-acls.sh`.

What such a test proves is the broker, not the script, so the same wish goes to our node: for topics by `penstock
topic`, for rules about access by confluent-kafka's admin client. One test brings a client in Java of its own, which
`kafka-run-class.sh` starts with Kafka's jars, where there are some. `KAFKA_PATH` names the directory of all this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

SCRIPTS: Final = ("kafka-topics.sh", "kafka-acls.sh")
WAIT_SECONDS_MAX: Final = 30

# What fails where Kafka's jars are not.
JAVA_TESTS: Final = ("0098_consumer_txn",)

_SCRIPT: Final = '#!/bin/sh\nexec "{python}" "{program}" {name} "$@"\n'
_RUN_CLASS: Final = (
    '#!/bin/sh\nexec "${{JAVA_HOME:+$JAVA_HOME/bin/}}java" -Xmx256m -cp "$CLASSPATH:{libraries}/*" "$@"\n'
)


def lay_out(directory: Path, jars: Path | None) -> None:
    """Fills a directory to be named by KAFKA_PATH."""
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        text = _SCRIPT.format(python=sys.executable, program=Path(__file__).resolve(), name=name)
        _write(directory / "bin" / name, text)
    libraries = directory / "libs"
    libraries.unlink(missing_ok=True)
    if jars is not None:
        libraries.symlink_to(jars)
        _write(directory / "bin" / "kafka-run-class.sh", _RUN_CLASS.format(libraries=libraries))


def _write(script: Path, text: str) -> None:
    script.write_text(text)
    script.chmod(0o755)


# kafka-topics.sh


def topic_words(arguments: Sequence[str]) -> list[str]:
    """The words of kafka-topics.sh as words of `penstock`."""
    parser = argparse.ArgumentParser(prog="kafka-topics.sh")
    parser.add_argument("--bootstrap-server", required=True)
    act = parser.add_mutually_exclusive_group(required=True)
    for name in ("create", "alter", "delete"):
        act.add_argument(f"--{name}", dest="act", action="store_const", const=name)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions")
    parser.add_argument("--replication-factor", choices=["1"])
    parser.add_argument("--config", action="append", default=[])
    wish = parser.parse_args(arguments)
    words = ["topic", wish.act, wish.topic, "--bootstrap", wish.bootstrap_server]
    if wish.act == "delete":
        return [*words, "--yes"]
    if wish.partitions is not None:
        words += ["--partitions", wish.partitions]
    for config in wish.config:
        words += ["--config", config]
    return words


# kafka-acls.sh


class Rule(NamedTuple):
    bootstrap: str
    is_added: bool
    topic: str
    principal: str
    host: str
    operation: str
    is_allowed: bool


def parse_rule(arguments: Sequence[str]) -> Rule:
    parser = argparse.ArgumentParser(prog="kafka-acls.sh")
    parser.add_argument("--bootstrap-server", required=True)
    act = parser.add_mutually_exclusive_group(required=True)
    act.add_argument("--add", action="store_true")
    act.add_argument("--remove", action="store_true")
    parser.add_argument("--force", action="store_true", help="never asked here")
    principal = parser.add_mutually_exclusive_group(required=True)
    principal.add_argument("--allow-principal")
    principal.add_argument("--deny-principal")
    parser.add_argument("--allow-host", default="*")
    parser.add_argument("--deny-host", default="*")
    parser.add_argument("--operation", default="All")
    parser.add_argument("--topic", required=True)
    wish = parser.parse_args(arguments)
    is_allowed = wish.allow_principal is not None
    return Rule(
        wish.bootstrap_server,
        wish.add,
        wish.topic,
        wish.allow_principal if is_allowed else wish.deny_principal,
        wish.allow_host if is_allowed else wish.deny_host,
        wish.operation.upper(),
        is_allowed,
    )


def apply_rule(rule: Rule) -> None:
    from confluent_kafka import admin

    parts = (
        admin.ResourceType.TOPIC,
        rule.topic,
        admin.ResourcePatternType.LITERAL,
        rule.principal,
        rule.host,
        admin.AclOperation[rule.operation],
        admin.AclPermissionType.ALLOW if rule.is_allowed else admin.AclPermissionType.DENY,
    )
    client = admin.AdminClient({"bootstrap.servers": rule.bootstrap})
    if rule.is_added:
        answers = list(client.create_acls([admin.AclBinding(*parts)]).values())
    else:
        answers = list(client.delete_acls([admin.AclBindingFilter(*parts)]).values())
    for answer in answers:
        answer.result(WAIT_SECONDS_MAX)


def main(name: str, arguments: Sequence[str]) -> int:
    if name == "kafka-topics.sh":
        return subprocess.run([sys.executable, "-m", "penstock.main", *topic_words(arguments)]).returncode
    apply_rule(parse_rule(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
