"""The work of `penstock dlq …`, over a node's HTTP door. The node redrives; here somebody watches it."""

from __future__ import annotations

import time
from typing import Final

from penstock.base.clock import SystemClock
from penstock.cli.cells import moment, short
from penstock.cli.confirmation import confirm
from penstock.cli.failure import CommandError
from penstock.cli.http_door import http_door
from penstock.cli.option_values import moment_ms_if_given
from penstock.cli.output import counted, print_json, print_table, say
from penstock.cli.progress import BenchProgress
from penstock.client.http import queues as letters
from penstock.client.http.client import HttpClient
from penstock.client.http.queues import LetterFilter
from penstock.codec.http.dead_letters import DeadLetter, Redrive

# How often the node is asked how far it is: the first answers soon, for redrives that take no time.
ASK_SECONDS_MIN: Final = 0.02
ASK_SECONDS_MAX: Final = 0.5
# With a filter every dead letter is looked at: an hour is more than a hundred million of them.
COUNT_SECONDS_MAX: Final = 3_600.0
SHOW_COLUMNS: Final = ("partition", "offset", "failed", "reason", "error", "deliveries", "origin", "key", "value")


def filter_of(*, reason: str | None, key: str | None, since: str | None, until: str | None) -> LetterFilter:
    now_ms = SystemClock().now_ms()
    since_ms = moment_ms_if_given(since, "--since", now_ms=now_ms)
    until_ms = moment_ms_if_given(until, "--until", now_ms=now_ms)
    return LetterFilter(reason, key, since_ms, until_ms)


def list_topics(http: str, *, as_json: bool) -> None:
    with http_door(http) as client:
        found = letters.list_dead_letters(client)
    if as_json:
        print_json({"dead_letters": found})
        return
    rows = [
        (
            each.topic,
            each.pending_count,
            each.stored_count,
            ", ".join(f"{source.topic}/{source.group}" for source in each.sources) or None,
        )
        for each in found
    ]
    if rows:
        print_table(("topic", "pending", "stored", "from"), rows)
    else:
        say("there are no dead-letter topics")


def show(http: str, topic: str, only: LetterFilter, *, count: int, as_json: bool) -> None:
    with http_door(http) as client:
        found = letters.show_dead_letters(client, topic, only, count=count)
    if as_json:
        print_json({"messages": found})
    elif found:
        print_table(SHOW_COLUMNS, [_cells(letter) for letter in found])
    else:
        say("no dead letters")


def _cells(letter: DeadLetter) -> tuple[object, ...]:
    origin = None if letter.origin_topic is None else f"{letter.origin_topic}-{letter.origin_partition}"
    return (
        letter.partition,
        letter.offset,
        moment(letter.last_failure_ms or letter.timestamp_ms),
        letter.reason,
        letter.error,
        letter.delivery_count,
        origin if letter.origin_offset is None else f"{origin}@{letter.origin_offset}",
        short(letter.key, letter.key_base64),
        short(letter.value, letter.value_base64),
    )


def count(http: str, topic: str, only: LetterFilter, *, as_json: bool) -> None:
    with http_door(http, timeout_seconds=COUNT_SECONDS_MAX) as client:
        found = letters.count_redrive(client, topic, only)
    if as_json:
        print_json(found)
    say(f"{found.fitting_count:,} of {counted(found.pending_count, 'dead letter')} would move, nothing was moved")


def redrive(
    http: str, topic: str, only: LetterFilter, *, target: str | None, rate: int, is_awaited: bool, as_json: bool
) -> None:
    with http_door(http) as client:
        task = letters.begin_redrive(client, topic, only, target=target, rate=rate)
        if is_awaited:
            task = watch(http, client, task)
    if as_json:
        print_json(task)
    if task.state == "failed":
        raise CommandError(f"{task.moved_count:,} moved, then: {task.reason}")
    say(_sentence(task))


def watch(http: str, client: HttpClient, task: Redrive) -> Redrive:
    pause_seconds = ASK_SECONDS_MIN
    with BenchProgress(f"redrive {task.topic}", float(task.pending_count)) as progress:
        try:
            while not task.ended_ms:
                time.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 1.5, ASK_SECONDS_MAX)
                task = letters.describe_redrive(client, task.topic, task.id)
                done = task.moved_count + task.skipped_count + task.lost_count + task.denied_count
                progress.update(done, f"{task.moved_count:,} moved, {task.pending_count - done:,} left")
        except KeyboardInterrupt:
            # Over a connection of its own: the other one may be in the middle of an answer.
            with http_door(http) as another:
                letters.cancel_redrive(another, task.topic, task.id)
            say("cancelled: what has moved has moved, the rest stays")
            raise
    return task


def _sentence(task: Redrive) -> str:
    if not task.ended_ms:
        return f"redrive {task.id} has begun, {counted(task.pending_count, 'dead letter')} to look at"
    skipped = f", {task.skipped_count:,} did not fit" if task.skipped_count else ""
    return f"{task.moved_count:,} moved{skipped}" + ("" if task.state == "completed" else f" ({task.state})")


def purge(http: str, topic: str, *, is_confirmed: bool, as_json: bool) -> None:
    question = f"Drop all dead letters that are pending in {topic}?"
    confirm(question, is_confirmed=is_confirmed, refused="nothing was dropped")
    with http_door(http) as client:
        dropped = letters.purge_dead_letters(client, topic)
    if as_json:
        print_json({"topic": topic, "purged_count": dropped})
    say(f"{counted(dropped, 'dead letter')} dropped")
