"""The work of `penstock queue …`, over a node's HTTP door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.cli.cells import moment, short
from penstock.cli.confirmation import confirm
from penstock.cli.failure import CommandError
from penstock.cli.http_door import http_door
from penstock.cli.option_values import duration_ms
from penstock.cli.output import print_json, print_table, say
from penstock.client.http import queues
from penstock.client.http.client import HttpClient, RefusedError
from penstock.client.http.queues import QueueInfo, QueueMessage
from penstock.codec.http.queues import PartitionStats, QueueStats, SettledReceipt

_GONE: Final = 404
# Told otherwise already, or of doors that have words of their own for them.
HIDDEN_OPTIONS: Final = frozenset({"dead_letter_topic", "attributes"})
LIST_COLUMNS: Final = ("topic", "group", "ordering", "backlog", "delayed", "leased", "waiting", "dying", "paused")
PARTITION_COLUMNS: Final = ("partition", "finished below", "leased", "waiting", "blocked", "dying", "consumers")


def list_queues(http: str, *, as_json: bool) -> None:
    with http_door(http) as client:
        found = [(queue, _numbers(client, queue)) for queue in queues.list_queues(client)]
    if as_json:
        print_json({"queues": [_document(queue, numbers) for queue, numbers in found if numbers is not None]})
        return
    if not found:
        say("there are no queues")
        return
    print_table(LIST_COLUMNS, [_cells(queue, numbers) for queue, numbers in found if numbers is not None])


def _numbers(client: HttpClient, queue: QueueInfo) -> QueueStats | None:
    """None: deleted since it was listed."""
    try:
        return queues.numbers_of(client, queue.topic, queue.group)
    except RefusedError as error:
        if error.status == _GONE:
            return None
        raise


def _document(queue: QueueInfo, numbers: QueueStats) -> dict[str, object]:
    return {**msgspec.structs.asdict(queue), **msgspec.structs.asdict(numbers)}


def _cells(queue: QueueInfo, numbers: QueueStats) -> tuple[object, ...]:
    return (
        queue.topic,
        queue.group,
        queue.options.get("ordering"),
        numbers.backlog_count,
        numbers.delayed_count,
        numbers.leased_count,
        numbers.waiting_count + numbers.blocked_count,
        numbers.dying_count,
        numbers.is_paused,
    )


def describe(http: str, topic: str, group: str, *, as_json: bool) -> None:
    with http_door(http) as client:
        queue = queues.describe_queue(client, topic, group)
        numbers = queues.numbers_of(client, topic, group)
    if as_json:
        print_json(_document(queue, numbers))
        return
    facts: list[tuple[str, object]] = [
        ("backlog", f"{numbers.backlog_count:,}"),
        ("delayed", f"{numbers.delayed_count:,}"),
        ("with consumers", f"{numbers.leased_count:,}"),
        ("waiting for another try", f"{numbers.waiting_count:,}"),
        ("waiting for earlier ones of their key", f"{numbers.blocked_count:,}"),
        ("on their way to the dead letters", f"{numbers.dying_count:,}"),
        ("dead letters go to", queue.dead_letter_topic),
        ("paused", numbers.is_paused),
        ("created", moment(queue.created_ms)),
        *((name, _setting(value)) for name, value in queue.options.items() if name not in HIDDEN_OPTIONS),
    ]
    print_table(None, facts, title=f"queue {topic}/{group}")
    print_table(PARTITION_COLUMNS, [_partition_cells(each) for each in numbers.partitions])


def _setting(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _partition_cells(row: PartitionStats) -> tuple[object, ...]:
    consumers = ", ".join(f"{name} ({count})" for name, count in row.consumers) or None
    return (
        row.partition,
        row.finished_below,
        row.leased_count,
        row.waiting_count,
        row.blocked_count,
        row.dying_count,
        consumers,
    )


def create(
    http: str, topic: str, group: str, *, lease: str | None, options: Mapping[str, object], as_json: bool
) -> None:
    wanted = {name: value for name, value in options.items() if value is not None}
    if lease is not None:
        wanted["lease_ms"] = duration_ms(lease, "--lease")
    with http_door(http) as client:
        queue = queues.define_queue(client, topic, group, wanted)
    if as_json:
        print_json(queue)
    say(f"queue {topic}/{group} is ready, its dead letters go to {queue.dead_letter_topic or 'nobody'}")


def delete(http: str, topic: str, group: str, *, is_confirmed: bool, as_json: bool) -> None:
    confirm(f"Forget the queue {topic}/{group}, and who has which of its messages?", is_confirmed=is_confirmed)
    with http_door(http) as client:
        queues.delete_queue(client, topic, group)
    if as_json:
        print_json({"topic": topic, "group": group, "is_deleted": True})
    else:
        say(f"queue {topic}/{group} deleted")


def receive(
    http: str,
    topic: str,
    group: str,
    *,
    count: int,
    wait: str,
    lease: str | None,
    consumer: str,
    is_acked: bool,
    as_json: bool,
) -> None:
    wait_ms = duration_ms(wait, "--wait")
    lease_ms = None if lease is None else duration_ms(lease, "--lease")
    with http_door(http) as client:
        messages = queues.receive(
            client, topic, group, count=count, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer
        )
        _print_messages(messages, as_json=as_json, last_column="receipt")
        if is_acked and messages:
            # Printed before: whoever stops us in between gets them again.
            _report(queues.acknowledge(client, topic, group, [message.receipt for message in messages]))


def ack(http: str, topic: str, group: str, receipts: Sequence[str], *, as_json: bool) -> None:
    with http_door(http) as client:
        results = queues.acknowledge(client, topic, group, list(dict.fromkeys(receipts)))
    if as_json:
        print_json({"results": results})
    _report(results)


def _report(results: Sequence[SettledReceipt]) -> None:
    done = [result for result in results if result.outcome in ("done", "finished")]
    say(f"{len(done)} of {len(results)} acked")
    if len(done) < len(results):
        lost = sum(result.outcome == "not-held" for result in results)
        failed = len(results) - len(done) - lost
        reasons = [f"{lost} are no longer ours: their lease ran out"] if lost else []
        reasons += [f"{failed} failed, they can be tried again"] if failed else []
        raise CommandError("; ".join(reasons))


def peek(http: str, topic: str, group: str, *, count: int, as_json: bool) -> None:
    with http_door(http) as client:
        messages = queues.peek(client, topic, group, count=count)
    _print_messages(messages, as_json=as_json, last_column="state")


def tell(http: str, topic: str, group: str, act: str, told: str, *, as_json: bool) -> None:
    with http_door(http) as client:
        queues.tell(client, topic, group, act)
    if as_json:
        print_json({"topic": topic, "group": group, "done": act})
    else:
        say(f"queue {topic}/{group} {told}")


def purge(http: str, topic: str, group: str, *, is_confirmed: bool, as_json: bool) -> None:
    confirm(f"Skip everything that is in the queue {topic}/{group} now?", is_confirmed=is_confirmed)
    tell(http, topic, group, "purge", "is empty", as_json=as_json)


def _print_messages(messages: Sequence[QueueMessage], *, as_json: bool, last_column: str) -> None:
    if as_json:
        print_json({"messages": messages})
        return
    columns = ("partition", "offset", "time", "deliveries", "key", "value", last_column)
    rows = [
        (
            message.partition,
            message.offset,
            moment(message.timestamp_ms),
            message.delivery_count,
            short(message.key, message.key_base64),
            short(message.value, message.value_base64),
            message.receipt if last_column == "receipt" else message.state,
        )
        for message in messages
    ]
    if rows:
        print_table(columns, rows)
    else:
        say("no messages")
