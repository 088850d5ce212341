"""Queues and dead letters over the HTTP door, one function an act. Fields that are not known here are passed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.client.http_client import HttpClient, path_of

_QUEUES: Final = "queues"
_LETTERS: Final = "dead-letters"


class QueueInfo(msgspec.Struct, frozen=True):
    topic: str
    group: str
    created_ms: int
    changed_ms: int
    dead_letter_topic: str | None
    options: dict[str, Any]


class PartitionInfo(msgspec.Struct, frozen=True):
    partition: int
    finished_below: int
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    consumers: list[tuple[str, int]]


class QueueNumbers(msgspec.Struct, frozen=True):
    backlog_count: int
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    is_paused: bool
    partitions: list[PartitionInfo]


class QueueMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Delivered, or only looked at: then there is no receipt."""

    partition: int
    offset: int
    timestamp_ms: int
    id: str = ""
    receipt: str = ""
    state: str = ""
    delivery_count: int = 0
    lease_until_ms: int = 0
    consumer: str = ""
    until_ms: int = 0
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


class SettledReceipt(msgspec.Struct, frozen=True, omit_defaults=True):
    receipt: str
    outcome: str
    error: str | None = None


class DeadLetterSource(msgspec.Struct, frozen=True):
    topic: str
    group: str


class DeadLetterTopic(msgspec.Struct, frozen=True):
    topic: str
    partition_count: int
    pending_count: int
    stored_count: int
    sources: list[DeadLetterSource]


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    partition: int
    offset: int
    timestamp_ms: int
    state: str
    reason: str | None = None
    error: str | None = None
    origin_topic: str | None = None
    origin_partition: int | None = None
    origin_offset: int | None = None
    origin_group: str | None = None
    delivery_count: int | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


class LetterFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: str | None = None
    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class Redrive(msgspec.Struct, frozen=True):
    id: str
    topic: str
    group: str
    target: str | None
    state: str
    rate: int
    pending_count: int
    looked_count: int
    moved_count: int
    skipped_count: int
    lost_count: int
    reason: str
    started_ms: int
    ended_ms: int


class DryRun(msgspec.Struct, frozen=True):
    topic: str
    pending_count: int
    fitting_count: int


class _Queues(msgspec.Struct):
    queues: list[QueueInfo]


class _Messages(msgspec.Struct):
    messages: list[QueueMessage]


class _Results(msgspec.Struct):
    results: list[SettledReceipt]


class _DeadLetterTopics(msgspec.Struct):
    dead_letters: list[DeadLetterTopic]


class _DeadLetters(msgspec.Struct):
    messages: list[DeadLetter]


class _Purged(msgspec.Struct):
    purged_count: int


# Queues


def list_queues(client: HttpClient) -> list[QueueInfo]:
    return client.get(path_of(_QUEUES), _Queues).queues


def describe_queue(client: HttpClient, topic: str, group: str) -> QueueInfo:
    return client.get(path_of(_QUEUES, topic, group), QueueInfo)


def numbers_of(client: HttpClient, topic: str, group: str) -> QueueNumbers:
    return client.get(path_of(_QUEUES, topic, group, "stats"), QueueNumbers)


def define_queue(client: HttpClient, topic: str, group: str, options: dict[str, Any]) -> QueueInfo:
    return client.put(path_of(_QUEUES, topic, group), QueueInfo, options)


def delete_queue(client: HttpClient, topic: str, group: str) -> None:
    client.delete(path_of(_QUEUES, topic, group), type(None))


def receive(
    client: HttpClient, topic: str, group: str, *, count: int, wait_ms: int, lease_ms: int | None, consumer: str
) -> list[QueueMessage]:
    body = {"count": count, "wait_ms": wait_ms, "lease_ms": lease_ms, "consumer": consumer}
    return client.post(path_of(_QUEUES, topic, group, "receive"), _Messages, body).messages


def acknowledge(client: HttpClient, topic: str, group: str, receipts: Sequence[str]) -> list[SettledReceipt]:
    return client.post(path_of(_QUEUES, topic, group, "ack"), _Results, {"receipts": receipts}).results


def peek(client: HttpClient, topic: str, group: str, *, count: int) -> list[QueueMessage]:
    return client.get(path_of(_QUEUES, topic, group, "peek"), _Messages, {"count": count}).messages


def tell(client: HttpClient, topic: str, group: str, act: str) -> None:
    """pause, resume or purge."""
    client.post(path_of(_QUEUES, topic, group, act), type(None))


# Dead letters


def list_dead_letters(client: HttpClient) -> list[DeadLetterTopic]:
    return client.get(path_of(_LETTERS), _DeadLetterTopics).dead_letters


def show_dead_letters(client: HttpClient, topic: str, only: LetterFilter, *, count: int) -> list[DeadLetter]:
    query = {"count": count, **msgspec.structs.asdict(only)}
    return client.get(path_of(_LETTERS, topic), _DeadLetters, query).messages


def count_redrive(client: HttpClient, topic: str, only: LetterFilter) -> DryRun:
    body = {"dry_run": True, **msgspec.structs.asdict(only)}
    return client.post(path_of(_LETTERS, topic, "redrive"), DryRun, body)


def begin_redrive(client: HttpClient, topic: str, only: LetterFilter, *, target: str | None, rate: int) -> Redrive:
    body = {"target": target, "rate": rate, **msgspec.structs.asdict(only)}
    return client.post(path_of(_LETTERS, topic, "redrive"), Redrive, body)


def describe_redrive(client: HttpClient, topic: str, task: str) -> Redrive:
    return client.get(path_of(_LETTERS, topic, "redrives", task), Redrive)


def cancel_redrive(client: HttpClient, topic: str, task: str) -> Redrive:
    return client.delete(path_of(_LETTERS, topic, "redrives", task), Redrive)


def purge_dead_letters(client: HttpClient, topic: str) -> int:
    return client.post(path_of(_LETTERS, topic, "purge"), _Purged).purged_count
