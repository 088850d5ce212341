"""The work of `penstock trace` and `penstock why`, over a node's HTTP door."""

from __future__ import annotations

from datetime import datetime, tzinfo

import msgspec

from penstock.base.clock import SystemClock
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.http_door import http_door
from penstock.cli.option_values import moment_ms_if_given
from penstock.cli.output import print_json, print_table, say, write_text
from penstock.client.http import trace as http_trace
from penstock.domain.trace.events import Journey, Place
from penstock.domain.trace.picture import render
from penstock.domain.trace.why import Reason

WHY_COLUMNS = ("where", "who", "why")


class Asked(msgspec.Struct, frozen=True):
    message_id: str | None
    topic: str | None
    partition: int | None
    offset: int | None

    def place(self) -> str | Place:
        if self.message_id is not None:
            if self.topic is not None or self.offset is not None:
                raise CommandError("a message id, or --topic and --offset: one of them is meant", exit_code=EXIT_USAGE)
            return self.message_id
        if self.topic is None or self.offset is None:
            raise CommandError("which message? Give its id, or --topic and --offset", exit_code=EXIT_USAGE)
        return Place(self.topic, self.partition or 0, self.offset)


def trace(http: str, asked: Asked, *, form: str, as_json: bool) -> None:
    place = asked.place()
    with http_door(http) as client:
        journey = http_trace.trace(client, place)
    _show(journey, form=form, as_json=as_json)


def trace_key(
    http: str, asked: Asked, key: str, *, since: str | None, until: str | None, form: str, as_json: bool
) -> None:
    if asked.topic is None or asked.message_id is not None:
        raise CommandError("--key needs --topic, and no message id", exit_code=EXIT_USAGE)
    now_ms = SystemClock().now_ms()
    since_ms = moment_ms_if_given(since, "--since", now_ms=now_ms)
    until_ms = moment_ms_if_given(until, "--until", now_ms=now_ms)
    with http_door(http) as client:
        found = http_trace.trace_key(client, asked.topic, key, since_ms=since_ms, until_ms=until_ms)
    for note in found.notes:
        say(note)
    if as_json:
        print_json(found)
        return
    if not found.journeys:
        raise CommandError(f"no message of key {key!r} in {asked.topic!r} at that time")
    for number, journey in enumerate(found.journeys):
        if number:
            write_text("\n")
        _show(journey, form=form, as_json=False)


def why(http: str, asked: Asked, *, as_json: bool) -> None:
    place = asked.place()
    with http_door(http) as client:
        answer = http_trace.why(client, place)
    if as_json:
        print_json(answer)
        return
    print_table(WHY_COLUMNS, [_cells(reason) for reason in answer.reasons], title=f"message {answer.id}")
    for note in answer.notes:
        say(f"note: {note}")


def _cells(reason: Reason) -> tuple[str, str, str]:
    return str(reason.place), f"{reason.kind} {reason.group}".strip(), reason.sentence


def _show(journey: Journey, *, form: str, as_json: bool) -> None:
    if as_json:
        print_json(journey)
    else:
        write_text(render(journey, form, _zone()))


def _zone() -> tzinfo:
    zone = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone().tzinfo
    assert zone is not None
    return zone
