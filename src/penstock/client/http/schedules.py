"""Delayed messages and cron schedules over the HTTP door, one function an act."""

from __future__ import annotations

from typing import Any, Final

from penstock.client.http.client import HttpClient, path_of
from penstock.codec.http.schedules import Cron, CronList, PendingCounts, PendingMessage, PendingPage

_SCHEDULES: Final = "schedules"
_CRONS: Final = "crons"


def count_pending(client: HttpClient) -> PendingCounts:
    return client.get(path_of("schedule-counts"), PendingCounts)


def list_pending(client: HttpClient, topic: str, *, count: int, cursor: str | None = None) -> PendingPage:
    return client.get(path_of(_SCHEDULES), PendingPage, {"topic": topic, "count": count, "cursor": cursor})


def show_pending(client: HttpClient, message_id: str) -> PendingMessage:
    return client.get(path_of(_SCHEDULES, message_id), PendingMessage)


def cancel_pending(client: HttpClient, message_id: str) -> None:
    client.delete(path_of(_SCHEDULES, message_id), type(None))


def reschedule_pending(client: HttpClient, message_id: str, time: dict[str, int]) -> PendingMessage:
    """`time`: delay_ms or deliver_at."""
    return client.patch(path_of(_SCHEDULES, message_id), PendingMessage, time)


def list_crons(client: HttpClient, topic: str | None = None) -> list[Cron]:
    return client.get(path_of(_CRONS), CronList, {"topic": topic}).crons


def show_cron(client: HttpClient, topic: str, name: str) -> Cron:
    return client.get(path_of(_CRONS, topic, name), Cron)


def define_cron(client: HttpClient, topic: str, name: str, body: dict[str, Any]) -> Cron:
    return client.put(path_of(_CRONS, topic, name), Cron, body)


def delete_cron(client: HttpClient, topic: str, name: str) -> None:
    client.delete(path_of(_CRONS, topic, name), type(None))
