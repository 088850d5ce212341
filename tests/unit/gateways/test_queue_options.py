"""Every option of a queue at every door: a door can set it, or it is written down here why it cannot.

A new field of `QueueOptions` fails here until each door has its answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from penstock.cli.app import app, run
from penstock.domain.group.settings import DEAD_LETTERS_AUTHOR
from penstock.domain.queue.definition import QueueOptions, Start
from penstock.domain.share.settings import queue_options
from penstock.gateways.rest.queue_settings import QueueSettings
from penstock.gateways.sqs.attributes import options_of

ARN = "arn:aws:sqs:eu-central-1:000000000000:letters"

# What sets the field at that door, to something else than it is there by default.
HTTP: dict[str, Mapping[str, Any]] = {
    "ordering": {"ordering": "key"},
    "lease_ms": {"lease_ms": 1_000},
    "deliveries_max": {"deliveries_max": 7},
    "back_off": {"back_off": {"kind": "fixed", "initial_ms": 9}},
    "in_flight_max": {"in_flight_max": 9},
    "in_flight_per_consumer_max": {"in_flight_per_consumer_max": 9},
    "dead_letter_topic": {"dead_letter_topic": "letters"},
    "keeps_expired": {"keeps_expired": True},
    "start": {"start": "latest"},
    "is_committed_only": {"is_committed_only": False},
    "attributes": {"attributes": {"a": "b"}},
}
SQS: dict[str, Mapping[str, str]] = {
    "ordering": {"FifoQueue": "true"},
    "lease_ms": {"VisibilityTimeout": "7"},
    "deliveries_max": {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 3})},
    "dead_letter_topic": {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 3})},
    "start": {"PenstockStart": "latest"},
    "attributes": {"DelaySeconds": "1"},
}
SHARE_GROUPS: dict[str, Mapping[str, str]] = {
    "lease_ms": {"share.record.lock.duration.ms": "15000"},
    "deliveries_max": {"share.delivery.count.limit": "7"},
    "in_flight_max": {"share.partition.max.record.locks": "500"},
    "dead_letter_topic": {"errors.deadletterqueue.topic.name": "letters"},
    "dead_letter_author": {DEAD_LETTERS_AUTHOR: "User:alice"},
    "copies_dead_letters": {"errors.deadletterqueue.copy.record.enable": "false"},
    "start": {"share.auto.offset.reset": "earliest"},
    "start_ago_ms": {"share.auto.offset.reset": "by_duration:PT1H"},
    "is_committed_only": {"share.isolation.level": "read_committed"},
}
COMMAND_LINE: dict[str, tuple[str, ...]] = {
    "ordering": ("--ordering", "key"),
    "lease_ms": ("--lease", "1s"),
    "deliveries_max": ("--deliveries", "7"),
    "dead_letter_topic": ("--dead-letters", "letters"),
    "start": ("--start", "latest"),
}
# Why a door has no name for it.
EXCLUDED: dict[str, dict[str, str]] = {
    "http": {
        "dead_letter_author": "it is who asks, never what somebody says; at this door everybody is anonymous",
        "copies_dead_letters": "a share group's setting in Kafka; elsewhere a letter without its value helps nobody",
        "start_ago_ms": "a share group's setting in Kafka; over HTTP a queue begins at an end of the log",
    },
    "sqs": {
        "back_off": "SQS has none: what is given back says itself when it is visible again",
        "in_flight_max": "AWS has a fixed quota, and no attribute for it",
        "in_flight_per_consumer_max": "consumers of SQS have no names",
        "dead_letter_author": "it is who asks, never what somebody says; at this door everybody is anonymous",
        "keeps_expired": "with AWS a message that outlives its retention is gone",
        "copies_dead_letters": "with AWS a dead letter is always the whole message",
        "start_ago_ms": "an SQS queue has no topic before it; PenstockStart names the two ends",
        "is_committed_only": "SQS knows no transactions",
    },
    "share groups": {
        "ordering": "Kafka's share groups promise none",
        "back_off": "Kafka's share groups have none: a released record is there at once",
        "in_flight_per_consumer_max": "a member says with each fetch how many it takes",
        "keeps_expired": "Kafka knows no time to live of a record",
        "attributes": "only the mark that a share group made the queue",
    },
    "command line": {
        "back_off": "four numbers: by HTTP, where they have names",
        "in_flight_max": "by HTTP: a bound for the node, seldom for a person to choose",
        "in_flight_per_consumer_max": "by HTTP, as the one before",
        "dead_letter_author": "it is who asks, never what somebody says",
        "keeps_expired": "by HTTP",
        "copies_dead_letters": "a setting of share groups, for the tools of Kafka",
        "start_ago_ms": "a setting of share groups, for the tools of Kafka",
        "is_committed_only": "by HTTP: nobody has wanted the other by hand",
        "attributes": "what other doors remember with a queue",
    },
}
NAMED: dict[str, Mapping[str, object]] = {
    "http": HTTP,
    "sqs": SQS,
    "share groups": SHARE_GROUPS,
    "command line": COMMAND_LINE,
}


@pytest.mark.parametrize("door", NAMED)
def test_every_option_is_named_or_excluded_with_a_reason(door: str) -> None:
    fields = set(QueueOptions.__struct_fields__)
    named, excluded = set(NAMED[door]), set(EXCLUDED[door])
    assert named | excluded == fields, f"{door} has no answer for {sorted(fields ^ (named | excluded))}"
    assert not named & excluded, f"{door} both names and excludes {sorted(named & excluded)}"
    assert all(len(reason) >= len("by HTTP") for reason in EXCLUDED[door].values())


@pytest.mark.parametrize("field", HTTP)
def test_option_is_set_over_http(field: str) -> None:
    settings = msgspec.convert(HTTP[field], QueueSettings)
    assert _changed(QueueSettings().options(), settings.options()) == {field}


def test_http_takes_no_option_that_is_excluded() -> None:
    assert set(QueueSettings.__struct_fields__) == set(HTTP)


@pytest.mark.parametrize("field", SQS)
def test_option_is_set_over_sqs(field: str) -> None:
    asked = dict(SQS[field])
    start = Start(asked.pop("PenstockStart", Start.EARLIEST))
    before, after = options_of({}, {}, start=Start.EARLIEST), options_of(asked, {}, start=start)
    assert field in _changed(before, after)
    # SQS ties some together, and remembers what it was asked.
    assert _changed(before, after) <= {field, "attributes", "deliveries_max", "dead_letter_topic"}


@pytest.mark.parametrize("field", SHARE_GROUPS)
def test_option_is_set_by_a_share_group(field: str) -> None:
    changed = _changed(queue_options({}), queue_options(SHARE_GROUPS[field]))
    assert field in changed
    assert changed <= {field, "start"}, "a duration stands in the place of an end"


@pytest.mark.parametrize("field", COMMAND_LINE)
def test_option_is_set_by_the_command_line(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with _door_that_listens() as (address, bodies):
        assert run(app, ["queue", "create", "orders", "workers", "--http", address, *COMMAND_LINE[field]]) == 0
    capsys.readouterr()
    assert [set(body) for body in bodies] == [{field}]
    assert msgspec.convert(bodies[0], QueueSettings).options() != QueueOptions()


def _changed(before: QueueOptions, after: QueueOptions) -> set[str]:
    fields = QueueOptions.__struct_fields__
    return {field for field in fields if getattr(before, field) != getattr(after, field)}


@contextmanager
def _door_that_listens() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Takes the definition of a queue and keeps its body."""
    bodies: list[dict[str, Any]] = []

    class Door(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            info = {"topic": "orders", "group": "workers", "created_ms": 0, "changed_ms": 0}
            reply = json.dumps({**info, "dead_letter_topic": None, "options": {}}).encode()
            self.send_response(201)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
