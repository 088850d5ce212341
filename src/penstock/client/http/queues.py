"""Queues and dead letters over the HTTP door, one function an act. Fields that are not known here are passed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.client.http.client import HttpClient, path_of
from penstock.codec.http.dead_letters import (
    DeadLetter,
    DeadLetterList,
    DeadLetterMessages,
    DeadLetterTopic,
    DryRun,
    Purged,
    Redrive,
)
from penstock.codec.http.queues import QueueStats, SettledReceipt, SettleReply

# A partition, and the first and the last offset of a run in it.
Choice = tuple[int, int, int]

_QUEUES: Final = "queues"
_LETTERS: Final = "dead-letters"


class QueueInfo(msgspec.Struct, frozen=True):
    topic: str
    group: str
    created_ms: int
    changed_ms: int
    dead_letter_topic: str | None
    options: dict[str, Any]


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


class LetterFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: str | None = None
    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class _Queues(msgspec.Struct):
    queues: list[QueueInfo]


class _Messages(msgspec.Struct):
    messages: list[QueueMessage]


# Queues


def list_queues(client: HttpClient) -> list[QueueInfo]:
    return client.get(path_of(_QUEUES), _Queues).queues


def describe_queue(client: HttpClient, topic: str, group: str) -> QueueInfo:
    return client.get(path_of(_QUEUES, topic, group), QueueInfo)


def numbers_of(client: HttpClient, topic: str, group: str) -> QueueStats:
    return client.get(path_of(_QUEUES, topic, group, "stats"), QueueStats)


def define_queue(client: HttpClient, topic: str, group: str, options: dict[str, Any]) -> QueueInfo:
    return client.put(path_of(_QUEUES, topic, group), QueueInfo, options)


def delete_queue(client: HttpClient, topic: str, group: str) -> None:
    client.delete(path_of(_QUEUES, topic, group), type(None))


def receive(
    client: HttpClient, topic: str, group: str, *, count: int, wait_ms: int, lease_ms: int | None, consumer: str
) -> list[QueueMessage]:
    body = {"count": count, "wait_ms": wait_ms, "lease_ms": lease_ms, "consumer": consumer}
    path = path_of(_QUEUES, topic, group, "receive")
    return client.post(path, _Messages, body, meant_seconds=wait_ms / 1000).messages


def acknowledge(client: HttpClient, topic: str, group: str, receipts: Sequence[str]) -> list[SettledReceipt]:
    return client.post(path_of(_QUEUES, topic, group, "ack"), SettleReply, {"receipts": receipts}).results


def peek(client: HttpClient, topic: str, group: str, *, count: int) -> list[QueueMessage]:
    return client.get(path_of(_QUEUES, topic, group, "peek"), _Messages, {"count": count}).messages


def tell(client: HttpClient, topic: str, group: str, act: str) -> None:
    """pause, resume or purge."""
    client.post(path_of(_QUEUES, topic, group, act), type(None))


# Dead letters


def list_dead_letters(client: HttpClient) -> list[DeadLetterTopic]:
    return client.get(path_of(_LETTERS), DeadLetterList).dead_letters


def show_dead_letters(client: HttpClient, topic: str, only: LetterFilter, *, count: int) -> list[DeadLetter]:
    query = {"count": count, **msgspec.structs.asdict(only)}
    return client.get(path_of(_LETTERS, topic), DeadLetterMessages, query).messages


def count_redrive(
    client: HttpClient, topic: str, only: LetterFilter, offsets: Sequence[Choice] | None = None
) -> DryRun:
    body = {"dry_run": True, "offsets": offsets, **msgspec.structs.asdict(only)}
    return client.post(path_of(_LETTERS, topic, "redrive"), DryRun, body)


def begin_redrive(
    client: HttpClient,
    topic: str,
    only: LetterFilter,
    *,
    target: str | None,
    rate: int,
    offsets: Sequence[Choice] | None = None,
) -> Redrive:
    body = {"target": target, "rate": rate, "offsets": offsets, **msgspec.structs.asdict(only)}
    return client.post(path_of(_LETTERS, topic, "redrive"), Redrive, body)


def describe_redrive(client: HttpClient, topic: str, task: str) -> Redrive:
    return client.get(path_of(_LETTERS, topic, "redrives", task), Redrive)


def cancel_redrive(client: HttpClient, topic: str, task: str) -> Redrive:
    return client.delete(path_of(_LETTERS, topic, "redrives", task), Redrive)


def purge_dead_letters(client: HttpClient, topic: str) -> int:
    return client.post(path_of(_LETTERS, topic, "purge"), Purged).purged_count
