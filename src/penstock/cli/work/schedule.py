"""The work of `penstock schedule …`, over a node's HTTP door."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from penstock.base.clock import SystemClock
from penstock.cli.cells import moment, short, time_left
from penstock.cli.confirmation import confirm
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.http_door import http_door
from penstock.cli.option_values import duration_ms, future_ms
from penstock.cli.output import print_json, print_table, say
from penstock.client.http import schedules
from penstock.client.http.client import HttpClient
from penstock.codec.http.schedules import ID_TEXT, PAGE_MAX, Cron, PendingMessage

CRON_COLUMNS: Final = ("name", "topic", "cron", "timezone", "missed", "next", "in")
PENDING_COLUMNS: Final = ("due", "in", "partition", "key", "value", "id")
_ID: Final = re.compile(ID_TEXT)

# ---------------------------------------------------------------------- cron


def create(http: str, topic: str, name: str, body: dict[str, Any], *, as_json: bool) -> None:
    with http_door(http) as client:
        cron = schedules.define_cron(client, topic, name, body)
    if as_json:
        print_json(cron)
    else:
        _print_cron(cron)
    say(f"schedule {name} sends to {topic}")


def list_crons(http: str, topic: str | None, *, as_json: bool) -> None:
    with http_door(http) as client:
        crons = schedules.list_crons(client, topic)
    if as_json:
        print_json({"crons": crons})
    elif crons:
        now_ms = SystemClock().now_ms()
        print_table(CRON_COLUMNS, [_cron_cells(cron, now_ms) for cron in crons])
    else:
        say("there are no schedules")


def _cron_cells(cron: Cron, now_ms: int) -> tuple[object, ...]:
    first = cron.next_runs[0] if cron.next_runs else None
    return (
        cron.name,
        cron.topic,
        cron.cron,
        cron.timezone,
        cron.missed,
        None if first is None else _local(first.local),
        None if first is None else time_left(first.due_ms - now_ms),
    )


def show(http: str, name: str, topic: str | None, *, as_json: bool) -> None:
    with http_door(http) as client:
        # No schedule's name is likely to have the length of an id; if one has, its topic tells them apart.
        if topic is None and _ID.fullmatch(name) is not None:
            message = schedules.show_pending(client, name)
            if as_json:
                print_json(message)
            else:
                _print_message(message)
            return
        cron = schedules.show_cron(client, _topic_of(client, name, topic), name)
    if as_json:
        print_json(cron)
    else:
        _print_cron(cron)


def delete(http: str, name: str, topic: str | None, *, is_confirmed: bool, as_json: bool) -> None:
    with http_door(http) as client:
        topic = _topic_of(client, name, topic)
        confirm(f"End the schedule {name} of topic {topic}?", is_confirmed=is_confirmed)
        schedules.delete_cron(client, topic, name)
    if as_json:
        print_json({"name": name, "topic": topic, "is_deleted": True})
    else:
        say(f"schedule {name} deleted")


def _topic_of(client: HttpClient, name: str, topic: str | None) -> str:
    if topic is not None:
        return topic
    topics = [cron.topic for cron in schedules.list_crons(client) if cron.name == name]
    if not topics:
        raise CommandError(f"there is no schedule {name!r}")
    if len(topics) > 1:
        raise CommandError(f"{name!r} is on {', '.join(topics)}: say which by --topic", exit_code=EXIT_USAGE)
    return topics[0]


def _print_cron(cron: Cron) -> None:
    facts: list[tuple[str, object]] = [
        ("topic", f"{cron.topic}, partition {cron.partition}"),
        ("cron", cron.cron),
        ("timezone", cron.timezone),
        ("missed times", cron.missed),
        *_content(cron),
    ]
    print_table(None, facts, title=f"schedule {cron.name}")
    now_ms = SystemClock().now_ms()
    rows = [(_local(run.local), time_left(run.due_ms - now_ms)) for run in cron.next_runs]
    if rows:
        print_table((f"next, in {cron.timezone}", "in"), rows)
    else:
        say("no time is left that it would be due at")


def _local(text: str) -> str:
    """As the clocks there show it, with the day of the week: that is what is got wrong."""
    return datetime.fromisoformat(text).strftime("%a %Y-%m-%d %H:%M:%S %z")


# ---------------------------------------------------------------------- delayed messages


def pending(http: str, topic: str | None, *, count: int, as_json: bool) -> None:
    with http_door(http) as client:
        if topic is None:
            _print_counts(client, as_json=as_json)
            return
        messages = _first(client, topic, count)
    if as_json:
        print_json({"messages": messages})
    elif messages:
        now_ms = SystemClock().now_ms()
        print_table(PENDING_COLUMNS, [_pending_cells(message, now_ms) for message in messages])
    else:
        say(f"nothing is delayed in {topic}")


def _print_counts(client: HttpClient, *, as_json: bool) -> None:
    counts = schedules.count_pending(client)
    if as_json:
        print_json(counts)
    elif counts.topics:
        print_table(("topic", "pending"), [(each.topic, each.pending_count) for each in counts.topics])
    else:
        say("nothing is delayed")


def _first(client: HttpClient, topic: str, count: int) -> list[PendingMessage]:
    found: list[PendingMessage] = []
    cursor: str | None = None
    while len(found) < count:
        page = schedules.list_pending(client, topic, count=min(count - len(found), PAGE_MAX), cursor=cursor)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            break
    return found


def _pending_cells(message: PendingMessage, now_ms: int) -> tuple[object, ...]:
    return (
        moment(message.due_ms),
        time_left(message.due_ms - now_ms),
        message.partition,
        short(message.key, message.key_base64),
        short(message.value, message.value_base64),
        message.id,
    )


def _print_message(message: PendingMessage) -> None:
    left = time_left(message.due_ms - SystemClock().now_ms())
    facts: list[tuple[str, object]] = [
        ("id", message.id),
        ("topic", f"{message.topic}, partition {message.partition}"),
        ("due", f"{moment(message.due_ms)} ({left})"),
        ("came", moment(message.scheduled_ms)),
        ("made by the schedule", message.cron),
        *_content(message),
    ]
    print_table(None, [fact for fact in facts if fact[1] is not None], title="delayed message")


def _content(message: PendingMessage | Cron) -> Sequence[tuple[str, object]]:
    return (
        ("key", short(message.key, message.key_base64)),
        ("value", short(message.value, message.value_base64)),
        *((f"header {name}", text) for name, text in message.headers.items()),
    )


def cancel(http: str, message_id: str, *, as_json: bool) -> None:
    with http_door(http) as client:
        schedules.cancel_pending(client, message_id)
    if as_json:
        print_json({"id": message_id, "is_cancelled": True})
    else:
        say(f"message {message_id} is cancelled")


def reschedule(http: str, message_id: str, *, after: str | None, at: str | None, as_json: bool) -> None:
    if at is not None:
        time = {"deliver_at": future_ms(at, "--at", now_ms=SystemClock().now_ms())}
    else:
        time = {"delay_ms": duration_ms(after or "", "--in")}
    with http_door(http) as client:
        message = schedules.reschedule_pending(client, message_id, time)
    if as_json:
        print_json(message)
    left = time_left(message.due_ms - SystemClock().now_ms())
    say(f"message {message_id} is due {moment(message.due_ms)} ({left})")
