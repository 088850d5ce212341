"""Journeys of messages over the HTTP door, one function a question."""

from __future__ import annotations

from penstock.client.http.client import HttpClient, path_of
from penstock.domain.trace.events import Journey, JourneyList, Place
from penstock.domain.trace.why import WhyAnswer


def trace(client: HttpClient, asked: str | Place) -> Journey:
    return client.get(path_of("trace", *_parts(asked)), Journey)


def why(client: HttpClient, asked: str | Place) -> WhyAnswer:
    return client.get(path_of("why", *_parts(asked)), WhyAnswer)


def trace_key(client: HttpClient, topic: str, key: str, *, since_ms: int | None, until_ms: int | None) -> JourneyList:
    query = {"topic": topic, "key": key, "since_ms": since_ms, "until_ms": until_ms}
    return client.get(path_of("trace"), JourneyList, query)


def _parts(asked: str | Place) -> tuple[str, ...]:
    return (asked,) if isinstance(asked, str) else (asked.topic, str(asked.partition), str(asked.offset))
